#include "cache_manager/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/status.h"

namespace quire::cache {
namespace {

std::int64_t RoundUp(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The offset of the first byte that is not `pattern`, or -1.
std::int64_t FindOther(std::span<const std::byte> bytes, std::byte pattern) {
  const auto other =
      std::find_if(bytes.begin(), bytes.end(), [&](std::byte b) { return b != pattern; });
  return other == bytes.end() ? -1 : other - bytes.begin();
}

}  // namespace

std::byte* KvPool::Region::base() const {
  if (num_pages == 0) return nullptr;
  return static_cast<std::byte*>(buffer.data()) + guard_bytes;
}

std::span<std::byte> KvPool::Region::page(BlockId id) const {
  if (num_pages == 0) return {};
  QUIRE_CHECK(std::int64_t{id.value()} < num_pages);
  return {base() + std::int64_t{id.value()} * page_bytes, static_cast<std::size_t>(page_bytes)};
}

std::span<std::byte> KvPool::Region::leading_guard() const {
  return buffer.bytes().first(static_cast<std::size_t>(guard_bytes));
}

std::span<std::byte> KvPool::Region::trailing_guard() const {
  return buffer.bytes().subspan(static_cast<std::size_t>(guard_bytes + num_pages * page_bytes));
}

absl::Status KvPool::Region::CheckIntegrity(const char* name, std::byte pattern) const {
  if (num_pages == 0) return absl::OkStatus();
  const struct {
    const char* what;
    std::span<const std::byte> bytes;
    std::byte expected;
  } areas[] = {{"null page", page(kNullBlock), std::byte{0}},
               {"leading guard", leading_guard(), pattern},
               {"trailing guard", trailing_guard(), pattern}};
  for (const auto& area : areas) {
    const std::int64_t offset = FindOther(area.bytes, area.expected);
    if (offset >= 0) {
      return absl::InternalError(
          absl::StrCat(name, ": byte ", offset, " of the ", area.what, " was overwritten"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<KvPool::Region> KvPool::Map(std::int64_t page_bytes, std::int64_t row_bytes,
                                           std::uint32_t num_pages) {
  Region region;
  region.page_bytes = page_bytes;
  region.num_pages = num_pages;
  // Whole system pages, so that the first KV page starts at an aligned address.
  region.guard_bytes = RoundUp(std::int64_t{kGuardRows} * row_bytes, DeviceBuffer::kAlignment);
  QUIRE_ASSIGN_OR_RETURN(
      region.buffer,
      DeviceBuffer::Allocate(MemoryKind::kHost, 2 * region.guard_bytes + num_pages * page_bytes));
  return region;
}

absl::StatusOr<KvPool> KvPool::Create(const KvGeometry& geometry, const KvPoolOptions& options) {
  QUIRE_RETURN_IF_ERROR(geometry.Validate());
  KvPool pool(geometry, options);
  const std::int64_t element = DTypeSize(geometry.dtype);
  QUIRE_ASSIGN_OR_RETURN(pool.blocks_, Map(geometry.block_stride() * element,
                                           geometry.row_elements() * element, geometry.num_blocks));
  if (geometry.quantized()) {
    const std::int64_t scale = DTypeSize(geometry.scale_dtype);
    QUIRE_ASSIGN_OR_RETURN(pool.scales_,
                           Map(geometry.scale_block_stride() * scale,
                               geometry.scale_row_elements() * scale, geometry.num_blocks));
  }
  if (options.guard_canary) {
    for (const Region* region : {&pool.blocks_, &pool.scales_}) {
      if (region->num_pages == 0) continue;
      for (const std::span<std::byte> guard : {region->leading_guard(), region->trailing_guard()}) {
        std::memset(guard.data(), 0xff, guard.size());
      }
    }
  }
  return pool;
}

std::int64_t KvPool::size_bytes() const {
  return blocks_.buffer.size_bytes() + scales_.buffer.size_bytes();
}

absl::Status KvPool::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(blocks_.CheckIntegrity("blocks", guard_pattern()));
  return scales_.CheckIntegrity("scales", guard_pattern());
}

}  // namespace quire::cache
