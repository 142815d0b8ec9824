#include "cache_manager/pool/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/status.h"

namespace quire::cache {
namespace {

std::int64_t RoundUp(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Returns the offset of the first byte that is not `pattern`, or -1.
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
  return {static_cast<std::byte*>(buffer.data()), static_cast<std::size_t>(guard_bytes)};
}

std::span<std::byte> KvPool::Region::trailing_guard() const {
  return {base() + num_pages * page_bytes, static_cast<std::size_t>(guard_bytes)};
}

absl::Status KvPool::Region::CheckIntegrity(const char* name, std::byte pattern,
                                            const Stream* stream) const {
  if (num_pages == 0) return absl::OkStatus();
  const struct {
    const char* what;
    std::span<const std::byte> bytes;
    std::byte expected;
  } areas[] = {{"null page", page(kNullBlock), std::byte{0}},
               {"leading guard", leading_guard(), pattern},
               {"trailing guard", trailing_guard(), pattern}};
  for (const auto& area : areas) {
    std::span<const std::byte> bytes = area.bytes;
    std::vector<std::byte> copy;
    if (stream != nullptr) {
      copy.resize(bytes.size());
      QUIRE_RETURN_IF_ERROR(
          stream->Copy(copy.data(), bytes.data(), static_cast<std::int64_t>(bytes.size())));
      QUIRE_RETURN_IF_ERROR(stream->Synchronize());
      bytes = copy;
    }
    const std::int64_t offset = FindOther(bytes, area.expected);
    if (offset >= 0) {
      return absl::InternalError(
          absl::StrCat(name, ": byte ", offset, " of the ", area.what, " was overwritten"));
    }
  }
  return absl::OkStatus();
}

KvPool::Region KvPool::LayOut(std::int64_t page_bytes, std::int64_t row_bytes,
                              std::uint32_t num_pages) {
  Region region;
  region.page_bytes = page_bytes;
  region.num_pages = num_pages;
  // The guard size is a multiple of the buffer alignment, so the first KV page is aligned.
  region.guard_bytes = RoundUp(std::int64_t{kGuardRows} * row_bytes, DeviceBuffer::kAlignment);
  return region;
}

KvPool::Region KvPool::LayOutBlocks(const KvGeometry& geometry) {
  const std::int64_t element = DTypeSize(geometry.dtype);
  return LayOut(geometry.block_stride() * element, geometry.row_elements() * element,
                geometry.num_blocks);
}

KvPool::Region KvPool::LayOutScales(const KvGeometry& geometry) {
  if (!geometry.quantized()) return Region();
  const std::int64_t scale = DTypeSize(geometry.scale_dtype);
  return LayOut(geometry.scale_block_stride() * scale, geometry.scale_row_elements() * scale,
                geometry.num_blocks);
}

std::int64_t KvPool::BytesFor(const KvGeometry& geometry) {
  return LayOutBlocks(geometry).total_bytes() + LayOutScales(geometry).total_bytes();
}

absl::Status KvPool::Fill(std::span<std::byte> guard) const {
  if (options_.stream == nullptr) {
    std::memset(guard.data(), 0xff, guard.size());
    return absl::OkStatus();
  }
  const std::vector<std::byte> pattern(guard.size(), std::byte{0xff});
  QUIRE_RETURN_IF_ERROR(options_.stream->Copy(guard.data(), pattern.data(),
                                              static_cast<std::int64_t>(pattern.size())));
  return options_.stream->Synchronize();
}

absl::Status KvPool::AllocateRegion(Region* region) const {
  if (region->num_pages == 0) return absl::OkStatus();
  const MemoryKind kind = options_.stream == nullptr ? MemoryKind::kHost : MemoryKind::kDevice;
  QUIRE_ASSIGN_OR_RETURN(region->buffer, DeviceBuffer::Allocate(kind, region->total_bytes()));
  if (!options_.guard_canary) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(Fill(region->leading_guard()));
  return Fill(region->trailing_guard());
}

absl::StatusOr<KvPool> KvPool::Create(const KvGeometry& geometry, const KvPoolOptions& options) {
  QUIRE_RETURN_IF_ERROR(geometry.Validate());
  KvPool pool(geometry, options);
  pool.blocks_ = LayOutBlocks(geometry);
  pool.scales_ = LayOutScales(geometry);
  QUIRE_RETURN_IF_ERROR(pool.AllocateRegion(&pool.blocks_));
  QUIRE_RETURN_IF_ERROR(pool.AllocateRegion(&pool.scales_));
  return pool;
}

std::int64_t KvPool::size_bytes() const {
  return blocks_.buffer.size_bytes() + scales_.buffer.size_bytes();
}

absl::Status KvPool::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(blocks_.CheckIntegrity("blocks", guard_pattern(), options_.stream));
  return scales_.CheckIntegrity("scales", guard_pattern(), options_.stream);
}

}  // namespace quire::cache
