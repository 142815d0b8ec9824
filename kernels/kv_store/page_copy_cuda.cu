// Page copies. The items of a launch are a kernel argument, so no staging buffer is needed. For
// each layer, a page has one run of page_size rows for K and one for V. The first rows of each run
// are copied. Each block copies one run of one item. Grid and blocks are small, because a copy runs
// concurrently with decode and must not delay it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/kv_store/page_copy.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMaxItems = 32;

struct CopyList {
  std::array<PageCopyItem, kMaxItems> items;
  std::uint32_t count;
};

// Byte layout of the values or the scales of a pool.
struct CopyLayout {
  std::byte* base;  // page 0 of layer 0's K
  std::int64_t page_stride;
  std::int64_t run_stride;  // distance between K or V of adjacent layers in a page
  std::int64_t row_bytes;
  std::uint32_t num_runs;  // kv_dim x layers
};

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    CopyPagesKernel(const __grid_constant__ CopyList list, const CopyLayout layout, bool zero) {
  const PageCopyItem item = list.items.data()[cuda::BlockY()];
  const std::int64_t run = cuda::BlockX() * layout.run_stride;
  auto* const to =
      reinterpret_cast<Unit*>(layout.base + item.destination * layout.page_stride + run);
  const auto* const from =
      reinterpret_cast<const Unit*>(layout.base + item.source * layout.page_stride + run);
  const std::int64_t units =
      item.num_rows * layout.row_bytes / static_cast<std::int64_t>(sizeof(Unit));
  for (std::int64_t i = cuda::ThreadIndex(); i < units; i += kThreads) {
    to[i] = zero ? Unit{} : from[i];
  }
}

// REQUIRES: sizes of rows, runs and pages are multiples of Unit.
template <typename Unit>
absl::Status LaunchCopy(const CudaContext& context, const CopyList& list, const CopyLayout& layout,
                        bool zero) {
  return cuda::Launch(context, "page_copy", CopyPagesKernel<Unit>,
                      {.blocks_x = layout.num_runs, .blocks_y = list.count, .threads = kThreads},
                      list, layout, zero);
}

absl::Status LaunchLayout(const CudaContext& context, const CopyList& list,
                          const CopyLayout& layout, bool zero) {
  const auto fits = [&](std::int64_t unit) {
    return layout.row_bytes % unit == 0 && layout.page_stride % unit == 0 &&
           reinterpret_cast<std::uintptr_t>(layout.base) % static_cast<std::uintptr_t>(unit) == 0;
  };
  if (fits(16)) return LaunchCopy<uint4>(context, list, layout, zero);
  if (fits(4)) return LaunchCopy<std::uint32_t>(context, list, layout, zero);
  return LaunchCopy<std::uint8_t>(context, list, layout, zero);
}

absl::Status LaunchList(const CudaContext& context, const AnyKvCollection& pool,
                        const CopyList& list, bool zero) {
  return std::visit(
      [&](const auto& collection) -> absl::Status {
        const cache::KvGeometry& geometry = collection.geometry();
        const auto layout = [&](void* base, std::int64_t page_elements, std::int64_t row_elements,
                                DType dtype) -> CopyLayout {
          const std::int64_t size = DTypeSize(dtype);
          return {static_cast<std::byte*>(base), page_elements * size,
                  geometry.page_size * row_elements * size, row_elements * size,
                  geometry.kv_dim * geometry.num_layers};
        };
        QUIRE_RETURN_IF_ERROR(LaunchLayout(context, list,
                                           layout(collection.blocks(), geometry.block_stride(),
                                                  geometry.row_elements(), geometry.dtype),
                                           zero));
        if constexpr (std::decay_t<decltype(collection)>::kQuantized) {
          return LaunchLayout(context, list,
                              layout(collection.scales(), geometry.scale_block_stride(),
                                     geometry.scale_row_elements(), geometry.scale_dtype),
                              zero);
        }
        return absl::OkStatus();
      },
      pool);
}

// True if `item` must not run in the same launch as the items of the list.
bool DependsOn(const PageCopyItem& item, const CopyList& list) {
  return std::any_of(
      list.items.begin(), list.items.begin() + list.count, [&](const PageCopyItem& other) {
        return item.source == other.destination || item.destination == other.source ||
               item.destination == other.destination;
      });
}

}  // namespace

namespace internal {

absl::Status CopyPagesCuda(const CudaContext& context, const AnyKvCollection& pool,
                           std::span<const PageCopyItem> items) {
  CopyList list{};
  for (const PageCopyItem& item : items) {
    if (item.source == item.destination || item.num_rows == 0) continue;
    if (list.count == kMaxItems || DependsOn(item, list)) {
      QUIRE_RETURN_IF_ERROR(LaunchList(context, pool, list, false));
      list.count = 0;
    }
    list.items[list.count++] = item;
  }
  return LaunchList(context, pool, list, false);
}

absl::Status ZeroPagesCuda(const CudaContext& context, const AnyKvCollection& pool,
                           std::span<const std::uint32_t> pages) {
  const std::uint32_t rows = std::visit([](const auto& c) { return c.geometry().page_size; }, pool);
  for (std::size_t at = 0; at < pages.size(); at += kMaxItems) {
    CopyList list{};
    for (const std::uint32_t page :
         pages.subspan(at, std::min<std::size_t>(kMaxItems, pages.size() - at))) {
      const PageCopyItem item = {page, page, rows};
      if (!DependsOn(item, list)) list.items[list.count++] = item;  // duplicates are skipped
    }
    QUIRE_RETURN_IF_ERROR(LaunchList(context, pool, list, true));
  }
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace quire::kernels
