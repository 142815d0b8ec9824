#include "formats/stored_quantization.h"

#include "absl/strings/str_cat.h"

namespace quire::formats {

absl::string_view StoredMethodName(StoredMethod method) {
  constexpr absl::string_view kNames[] = {"none", "fp8", "mxfp4",
                                          "gptq", "awq", "compressed-tensors"};
  return kNames[static_cast<std::size_t>(method)];
}

std::string StoredTypeName(const StoredQuantization& quantization) {
  std::string name(StoredMethodName(quantization.method));
  if (quantization.method == StoredMethod::kMxfp4) return name;
  if (quantization.is_fp8) {
    if (quantization.method != StoredMethod::kFp8) name += " fp8";
  } else {
    absl::StrAppend(&name, " int", quantization.bits);
  }
  if (quantization.scope == ScaleScope::kGroup)
    absl::StrAppend(&name, " g", quantization.group_size);
  if (quantization.scope == ScaleScope::kBlock) {
    absl::StrAppend(&name, " ", quantization.block_rows, "x", quantization.block_columns);
  }
  return name;
}

}  // namespace quire::formats
