#pragma once

// Writes model fixtures as GGUF files with the keys, tensor names and layouts of llama.cpp's
// converter, build 11434. These files lack the blocks for multi-token prediction.

#include <string>

#include "formats/tensors/ggml_blocks.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/gguf_writer.h"

namespace quire::models::parity {

struct GgufOptions {
  // Type of the matrices that programs quantize. A matrix whose rows are not whole blocks of this
  // type is Q8_0.
  formats::GgmlType type = formats::GgmlType::kF32;
  bool is_dequantized = false;  // F32 with the values of `type`
  bool in_layers_only = false;  // embeddings and the output head stay F32
  bool has_tokenizer = false;   // with that of the fixture
};

// Returns a file of the general.architecture `architecture`. REQUIRES: the family of the fixture
// has such files.
GgufWriter ConvertToGguf(EditedFixture& fixture, const std::string& architecture,
                         const GgufOptions& options = {});

}  // namespace quire::models::parity
