#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

absl::Status CheckKvStep(const AnyKvView& keys, const AnyKvView& values,
                         const std::uint32_t* row_offsets, std::uint32_t batch_size) {
  const KvShape shape = KvShapeOf(keys);
  if (!(shape == KvShapeOf(values))) {
    return absl::InvalidArgumentError("key and value views have different shapes");
  }
  if (DTypeSize(shape.dtype) == 1 && shape.granularity < shape.head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv cache has one scale per ", shape.granularity,
                     " columns, the CPU requires one per token and head "
                     "of ",
                     shape.head_size));
  }
  if (batch_size > shape.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step has ", batch_size, " sequences, the limit of the views is ", shape.batch_size));
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
    const std::uint64_t keys_of_row =
        std::uint64_t{lengths[b]} + (row_offsets[b + 1] - row_offsets[b]);
    if (keys_of_row > room) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", b, " has ", keys_of_row,
                                                     " tokens, the limit of its lookup table is ",
                                                     room));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
