#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

absl::Status CheckKvStep(const AnyKvView& keys, const AnyKvView& values,
                         const std::uint32_t* row_offsets, std::uint32_t batch_size) {
  const KvShape shape = KvShapeOf(keys);
  if (!(shape == KvShapeOf(values))) {
    return absl::InvalidArgumentError("key and value views have different shapes");
  }
  if (DTypeSize(shape.dtype) == 1 && shape.granularity < shape.head_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the KV cache has one scale per ", shape.granularity,
        " columns; the CPU supports only one scale per head of ", shape.head_size, " columns"));
  }
  if (batch_size > shape.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the step has ", batch_size, " sequences, the KV views have at most ", shape.batch_size));
  }
  const std::uint32_t* const lengths =
      std::visit([](const auto& view) { return view.cache_lengths; }, keys);
  const std::uint64_t room = std::uint64_t{shape.lookup_stride} * shape.page_size;
  for (std::uint32_t b = 0; b < batch_size; ++b) {
    if (row_offsets[b + 1] < row_offsets[b]) {
      return absl::InvalidArgumentError(
          absl::StrCat("row_offsets[", b + 1, "] is ", row_offsets[b + 1],
                       ", it must be at least row_offsets[", b, "] = ", row_offsets[b]));
    }
    const std::uint64_t tokens = std::uint64_t{lengths[b]} + (row_offsets[b + 1] - row_offsets[b]);
    if (tokens > room) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sequence ", b, " has ", tokens, " tokens, its lookup table has room for ", room));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
