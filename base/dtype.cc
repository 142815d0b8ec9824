#include "base/dtype.h"

#include <array>

namespace quire {
namespace {

struct Entry {
  DType dtype;
  absl::string_view name;
  std::int64_t size;
};

constexpr std::array<Entry, 11> kDTypes = {{{DType::kInvalid, "invalid", 0},
                                            {DType::kF32, "f32", 4},
                                            {DType::kBF16, "bf16", 2},
                                            {DType::kF16, "f16", 2},
                                            {DType::kF8E4M3, "fp8_e4m3", 1},
                                            {DType::kI8, "int8", 1},
                                            {DType::kU8, "uint8", 1},
                                            {DType::kI32, "int32", 4},
                                            {DType::kI64, "int64", 8},
                                            {DType::kF64, "f64", 8},
                                            {DType::kBool, "bool", 1}}};

const Entry& EntryOf(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

}  // namespace

absl::string_view DTypeName(DType dtype) {
  return EntryOf(dtype).name;
}

std::int64_t DTypeSize(DType dtype) {
  return EntryOf(dtype).size;
}

}  // namespace quire
