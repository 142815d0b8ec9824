#include "kernels/kv_store/page_copy.h"

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::kernels {
namespace {

absl::Status CheckPage(const cache::KvGeometry& geometry, std::uint32_t page, bool writable) {
  if (page >= geometry.num_blocks || (writable && page == cache::kNullPage)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page is ", page, ", it must be ", writable ? 1 : 0, " to ", geometry.num_blocks - 1));
  }
  return absl::OkStatus();
}

const cache::KvGeometry& GeometryOf(const AnyKvCollection& pool) {
  return std::visit([](const auto& c) -> const cache::KvGeometry& { return c.geometry(); }, pool);
}

// Calls fn(view) for K and V of each layer. Row 0 of the view's lookup table has only the page
// `source`, row 1 only `destination`. Copies therefore access pages through views, as all kernels
// do.
template <typename Fn>
void ForEachView(const Backend& backend, const AnyKvCollection& pool, std::uint32_t source,
                 std::uint32_t destination, Fn&& fn) {
  const std::uint32_t table[2] = {source, destination};
  std::visit(
      [&](const auto& collection) {
        const auto& geometry = collection.geometry();
        const double bytes = static_cast<double>(geometry.page_size * geometry.row_elements() *
                                                 DTypeSize(geometry.dtype));
        backend.ParallelFor(2 * std::int64_t{geometry.num_layers}, bytes * 0.1,
                            [&](std::int64_t begin, std::int64_t end, int) {
                              for (std::int64_t i = begin; i < end; ++i) {
                                const auto layer = static_cast<std::uint32_t>(i / 2);
                                auto view = i % 2 == 0 ? collection.get_key_cache(layer)
                                                       : collection.get_value_cache(layer);
                                view.lookup_table = table;
                                view.lookup_stride = 1;
                                view.batch_size = 2;
                                fn(view);
                              }
                            });
      },
      pool);
}

template <typename View>
std::size_t RowBytes(const View& view, std::uint32_t rows) {
  return static_cast<std::size_t>(rows * view.row_elements()) * sizeof(typename View::Element);
}
template <typename View>
std::size_t ScaleBytes(const View& view, std::uint32_t rows) {
  return static_cast<std::size_t>(rows * view.scale_row_elements()) * sizeof(typename View::Scale);
}

}  // namespace

absl::Status CopyPages(const Backend& backend, const AnyKvCollection& pool,
                       std::span<const PageCopyItem> items) {
  const cache::KvGeometry& geometry = GeometryOf(pool);
  for (const PageCopyItem& item : items) {
    QUIRE_RETURN_IF_ERROR(CheckPage(geometry, item.source, false));
    QUIRE_RETURN_IF_ERROR(CheckPage(geometry, item.destination, true));
    if (item.num_rows > geometry.page_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "copy of ", item.num_rows, " tokens exceeds the page size ", geometry.page_size));
    }
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::CopyPagesCuda(*backend.cuda(), pool, items);
  }
  for (const PageCopyItem& item : items) {
    if (item.source == item.destination) continue;
    ForEachView(backend, pool, item.source, item.destination, [&](const auto& view) {
      std::memcpy(view.template block_paged_ptr<1>(1, 0, 0),
                  view.template block_paged_ptr<1>(0, 0, 0), RowBytes(view, item.num_rows));
      if constexpr (std::decay_t<decltype(view)>::kQuantized) {
        std::memcpy(view.scales_block_paged_ptr(1, 0, 0), view.scales_block_paged_ptr(0, 0, 0),
                    ScaleBytes(view, item.num_rows));
      }
    });
  }
  return absl::OkStatus();
}

absl::Status ZeroPages(const Backend& backend, const AnyKvCollection& pool,
                       std::span<const std::uint32_t> pages) {
  for (const std::uint32_t page : pages) {
    QUIRE_RETURN_IF_ERROR(CheckPage(GeometryOf(pool), page, true));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::ZeroPagesCuda(*backend.cuda(), pool, pages);
  }
  for (const std::uint32_t page : pages) {
    ForEachView(backend, pool, cache::kNullPage, page, [&](const auto& view) {
      std::memset(static_cast<void*>(view.template block_paged_ptr<1>(1, 0, 0)), 0,
                  RowBytes(view, view.page_size()));
      if constexpr (std::decay_t<decltype(view)>::kQuantized) {
        std::memset(view.scales_block_paged_ptr(1, 0, 0), 0, ScaleBytes(view, view.page_size()));
      }
    });
  }
  return absl::OkStatus();
}

absl::Status CopyPage(const Backend& backend, const PageCopyParams& params) {
  const PageCopyItem item{params.source, params.destination, params.num_rows};
  return CopyPages(backend, *params.pool, {&item, 1});
}

absl::Status ZeroPage(const Backend& backend, const AnyKvCollection& pool, std::uint32_t page) {
  return ZeroPages(backend, pool, {&page, 1});
}

}  // namespace quire::kernels
