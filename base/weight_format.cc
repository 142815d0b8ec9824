#include "base/weight_format.h"

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr std::uint32_t kMaxInputs = 65536;

}  // namespace

absl::string_view WeightFormatName(WeightFormat format) {
  static constexpr absl::string_view kNames[] = {"plain", "int8", "fp8_e4m3", "int4", "fp4_e2m1"};
  return kNames[static_cast<std::size_t>(format)];
}

absl::Status CheckQuantizedShape(const QuantizedShape& shape) {
  const bool is_int4 = shape.format == WeightFormat::kInt4;
  if (!is_int4 && shape.format != WeightFormat::kInt8) {
    return absl::InvalidArgumentError(absl::StrCat("quantized weights are ",
                                                   WeightFormatName(shape.format),
                                                   ", the CPU supports int8 and int4"));
  }
  if (shape.n == 0 || shape.n > INT32_MAX || shape.k == 0 || shape.k > kMaxInputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantized weights are [", shape.n, ", ", shape.k,
                     "], both must be at least 1 and at most [", INT32_MAX, ", ", kMaxInputs, "]"));
  }
  if (shape.has_zero_points && !shape.has_min) {
    return absl::InvalidArgumentError("quantized weights have zero points without has_min");
  }
  if (shape.has_act_order && shape.has_min && !shape.has_zero_points) {
    return absl::InvalidArgumentError(
        absl::StrCat(WeightFormatName(shape.format),
                     " weights have an act-order permutation and minimums that are not zero "
                     "points, only zero points are supported with a permutation"));
  }
  if (shape.scale_per_feature()) return absl::OkStatus();
  const bool known = shape.group == 32 || shape.group == 64 || shape.group == 128 ||
                     (shape.group == 16 && !is_int4);
  if (!known || shape.k % shape.group != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(WeightFormatName(shape.format), " weights have ", shape.k,
                     " inputs in groups of ", shape.group, shape.has_min ? " with minimums" : "",
                     ", a group must divide the inputs and be ", is_int4 ? "" : "16, ",
                     "32, 64 or 128", is_int4 || shape.has_min ? "" : ", or all inputs"));
  }
  return absl::OkStatus();
}

absl::Status CheckFp8Shape(const Fp8Shape& shape) {
  if (shape.n == 0 || shape.n > INT32_MAX || shape.k == 0 || shape.k > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("fp8 weights are [", shape.n, ", ", shape.k,
                                                   "], both must be 1 to ", INT32_MAX));
  }
  if (shape.group == shape.k ||
      (shape.group != 0 && shape.group % 4 == 0 && shape.group < shape.k)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("fp8 weights have ", shape.k, " inputs in groups of ", shape.group,
                   ", a group must be a multiple of 4, or all inputs"));
}

}  // namespace quire
