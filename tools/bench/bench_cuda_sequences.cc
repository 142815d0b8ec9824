#include "tools/bench/bench_cuda_sequences.h"

#include <cstddef>
#include <random>

namespace quire::kernels {
namespace {

// Returns random elements. For one-byte types, no byte is a NaN in e4m3.
absl::StatusOr<DeviceBuffer> RandomPages(const Gpu& gpu, const cache::KvGeometry& geometry) {
  const std::int64_t bytes =
      geometry.num_blocks * geometry.block_stride() * DTypeSize(geometry.dtype);
  if (!geometry.quantized()) return Random<BF16>(gpu, bytes / 2);
  std::mt19937 generator(3);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 1 << 20)));
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(generator()) & 0xbf;
  return Repeated(gpu, codes.data(), static_cast<std::int64_t>(codes.size()), bytes);
}

}  // namespace

absl::StatusOr<DeviceSequences> DeviceSequences::Create(const Gpu& gpu, DType dtype,
                                                        const SequencesShape& shape) {
  const std::uint32_t keys = shape.cached + shape.rows;
  const std::uint32_t pages = (keys + kPage - 1) / kPage;
  const std::uint32_t stride = (pages + 7) / 8 * 8 + 16;
  cache::KvGeometry geometry{.num_blocks = shape.batch * pages + 1,
                             .num_layers = 1,
                             .page_size = kPage,
                             .num_heads = shape.kv_heads,
                             .head_size = shape.head_size,
                             .dtype = dtype};
  if (DTypeSize(dtype) == 1) {
    geometry.scale_dtype = DType::kF32;
    geometry.granularity = shape.head_size;
  }
  DeviceSequences made(shape.batch);
  QUIRE_ASSIGN_OR_RETURN(made.pool_, RandomPages(gpu, geometry));
  // Page 0 is the null page.
  QUIRE_RETURN_IF_ERROR(
      gpu.stream.Zero(made.pool_.data(), geometry.block_stride() * DTypeSize(dtype)));
  if (geometry.quantized()) {
    QUIRE_ASSIGN_OR_RETURN(
        made.scales_,
        ToDevice(gpu, std::vector<float>(static_cast<std::size_t>(geometry.num_blocks *
                                                                  geometry.scale_block_stride()),
                                         0.03f)));
  }
  std::vector<std::uint32_t> ids(std::size_t{shape.batch} * stride), offsets(shape.batch + 1);
  std::vector<std::uint32_t> live = {shape.batch};
  for (std::uint32_t b = 0; b < shape.batch; ++b) {
    live.push_back(b);
    offsets[b + 1] = offsets[b] + shape.rows;
    for (std::uint32_t i = 0; i < pages; ++i) ids[b * stride + i] = 1 + i * shape.batch + b;
  }
  const auto of_each = [&](std::uint32_t value) {
    return ToDevice(gpu, std::vector<std::uint32_t>(shape.batch, value));
  };
  QUIRE_ASSIGN_OR_RETURN(made.table_, ToDevice(gpu, ids));
  QUIRE_ASSIGN_OR_RETURN(made.lengths_, of_each(shape.cached));
  QUIRE_ASSIGN_OR_RETURN(made.row_offsets_, ToDevice(gpu, offsets));
  QUIRE_ASSIGN_OR_RETURN(made.live_sequences_, ToDevice(gpu, live));
  QUIRE_ASSIGN_OR_RETURN(made.prefill_tokens_, of_each(shape.is_prompt ? shape.rows : 0));
  QUIRE_ASSIGN_OR_RETURN(made.collection,
                         MakeKvCollection(geometry, made.pool_.data(),
                                          {static_cast<const std::uint32_t*>(made.table_.data()),
                                           static_cast<const std::uint32_t*>(made.lengths_.data()),
                                           stride, shape.batch, shape.rows, keys, shape.cached},
                                          geometry.quantized() ? made.scales_.data() : nullptr));
  return made;
}

}  // namespace quire::kernels
