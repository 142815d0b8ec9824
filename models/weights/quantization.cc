#include "models/weights/quantization.h"

#include "absl/strings/str_cat.h"

namespace quire::models {

absl::string_view QuantizationName(Quantization quantization) {
  switch (quantization) {
    case Quantization::kAuto:
      return "auto";
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kInt8G32:
      return "int8_g32";
    case Quantization::kInt8G64:
      return "int8_g64";
    case Quantization::kInt8G128:
      return "int8_g128";
    case Quantization::kInt4G32:
      return "int4_g32";
    case Quantization::kInt4G64:
      return "int4_g64";
    case Quantization::kInt4G128:
      return "int4_g128";
  }
  return "";
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
  const MatrixForm int8_g32{.format = WeightFormat::kInt8, .group = 32};
  switch (quantization) {
    case Quantization::kAuto:
    case Quantization::kNone:
      return std::nullopt;
    default:
      if (role == MatrixRole::kHead) return int8_g32;
  }
  switch (quantization) {
    case Quantization::kInt8:
      return MatrixForm{.format = WeightFormat::kInt8};
    case Quantization::kInt8G64:
      return MatrixForm{.format = WeightFormat::kInt8, .group = 64};
    case Quantization::kInt8G128:
      return MatrixForm{.format = WeightFormat::kInt8, .group = 128};
    case Quantization::kInt4G32:
      return MatrixForm{.format = WeightFormat::kInt4, .group = 32};
    case Quantization::kInt4G64:
      return MatrixForm{.format = WeightFormat::kInt4, .group = 64};
    case Quantization::kInt4G128:
      return MatrixForm{.format = WeightFormat::kInt4, .group = 128};
    default:
      return int8_g32;
  }
}

}  // namespace quire::models
