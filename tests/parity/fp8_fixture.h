#pragma once

// Fixtures whose matrices are rounded to fp8, and files that tests assemble.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/parity/edited_fixture.h"

namespace quire::models::parity {

struct FileTensor {
  std::string name, type, bytes;
  std::vector<std::int64_t> shape;
};

// Returns the bytes of a safetensors file.
std::string SafetensorsOf(const std::vector<FileTensor>& tensors);

template <typename T>
std::string BytesOfValues(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Takes two fixtures of the same bf16 model. Stores the matrices of one, except routers, embeddings
// and heads, in fp8 with blocks of 128, and the f32 values that they represent in the other.
// Returns the names of the matrices.
std::vector<std::string> MakeFp8(EditedFixture* fp8, EditedFixture* exact);

}  // namespace quire::models::parity
