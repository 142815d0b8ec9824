#pragma once

// Writes model fixtures as GGUF files with the keys, tensor names and layouts of llama.cpp's
// converter, build 11434. These files lack tokenizers and the blocks for multi-token prediction.

#include <string>

#include "tests/parity/edited_fixture.h"
#include "tests/parity/gguf_writer.h"

namespace quire::models::parity {

enum class MatrixType {
  kF32,
  kQ8,         // the matrices that programs quantize are Q8_0
  kRoundedQ8,  // F32 with the values of kQ8
};

// Returns a file of the general.architecture `architecture`. REQUIRES: the family of the fixture
// has such files.
GgufWriter ConvertToGguf(EditedFixture& fixture, const std::string& architecture,
                         MatrixType type = MatrixType::kF32);

}  // namespace quire::models::parity
