#include "base/dtype.h"

namespace quire {
namespace {

// In the order of the enum.
constexpr struct {
  absl::string_view name;
  std::int64_t size;
} kDTypes[] = {{"invalid", 0}, {"f32", 4},   {"bf16", 2},  {"f16", 2}, {"fp8_e4m3", 1}, {"int8", 1},
               {"uint8", 1},   {"int32", 4}, {"int64", 8}, {"f64", 8}, {"bool", 1}};

}  // namespace

absl::string_view DTypeName(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

std::int64_t DTypeSize(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].size;
}

}  // namespace quire
