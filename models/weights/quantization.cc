#include "models/weights/quantization.h"

#include "absl/strings/str_cat.h"

namespace quire::models {

namespace {

// The values of Quantization, in order. A plain format means that matrices are not quantized.
constexpr struct {
  absl::string_view name;
  WeightFormat format = WeightFormat::kPlain;
  std::uint32_t group = 0;
} kQuantizations[] = {{"auto"},
                      {"none"},
                      {"int8", WeightFormat::kInt8},
                      {"int8_g32", WeightFormat::kInt8, 32},
                      {"int8_g64", WeightFormat::kInt8, 64},
                      {"int8_g128", WeightFormat::kInt8, 128},
                      {"int4_g32", WeightFormat::kInt4, 32},
                      {"int4_g64", WeightFormat::kInt4, 64},
                      {"int4_g128", WeightFormat::kInt4, 128}};

}  // namespace

absl::string_view QuantizationName(Quantization quantization) {
  return kQuantizations[static_cast<std::size_t>(quantization)].name;
}

std::optional<Quantization> QuantizationFromName(absl::string_view name) {
  for (const Quantization quantization : kAllQuantizations) {
    if (name == QuantizationName(quantization)) return quantization;
  }
  return std::nullopt;
}

std::string FormName(const MatrixForm& form) {
  if (form.is_plain()) return std::string(DTypeName(form.dtype));
  std::string name(WeightFormatName(form.format));
  if (form.group != 0) absl::StrAppend(&name, "_g", form.group);
  if (form.has_min) name += form.has_zero_points ? "_zero" : "_min";
  if (form.has_act_order) name += "_order";
  return name;
}

std::optional<MatrixForm> ConvertedForm(Quantization quantization, MatrixRole role) {
  const auto& [name, format, group] = kQuantizations[static_cast<std::size_t>(quantization)];
  if (format == WeightFormat::kPlain) return std::nullopt;
  if (role == MatrixRole::kHead) return MatrixForm{.format = WeightFormat::kInt8, .group = 32};
  return MatrixForm{.format = format, .group = group};
}

}  // namespace quire::models
