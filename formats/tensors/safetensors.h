#pragma once

// Reads the header of a safetensors file: which tensors it holds, and where.
//
//   8 bytes   n, little endian
//   n bytes   JSON: {"name": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [begin, end]}, ...}
//   rest      data; the tensors cover it without gap and without overlap
//
// Nothing in the header is believed: every number is checked against the file's size before it is
// used, and nothing is allocated from a number alone. Source: github.com/huggingface/safetensors,
// README.md, section "Format".

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "formats/tensors/ggml_blocks.h"

namespace quire::formats {

class QuantizedTensor;

struct StoredTensor {
  std::string name;
  std::string type;  // as stored: "BF16"
  // kInvalid: blocks, codes, or a type that no weight may have, such as C64.
  DType dtype = DType::kInvalid;
  // Set when a GGUF file holds the rows as blocks; each row then takes GgmlRowBytes.
  GgmlType blocks = GgmlType::kNone;
  // Set when this is a matrix whose codes, scales and so on are tensors of the file
  // (join_quantized.h); `bytes` are those of its codes.
  std::shared_ptr<const QuantizedTensor> quantized;
  std::int64_t first_row = 0;  // of `quantized`, where this is a piece of a stack of matrices
  // Of a piece of a stack that does not lie row by row: element (r, i) is stored at [i, r]; and the
  // rows of the first half (of a vector, its elements) are stored at even places, those of the
  // second half at odd ones.
  bool is_transposed = false;
  bool is_interleaved = false;
  // Rows are in the order of Hugging Face checkpoints, whatever the file's is.
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // into the file or a copy; not necessarily aligned
  std::string file;                  // label of the file, for messages
  // The bytes lie in a MappedFile, so that they need no memory once they have been used.
  bool is_mapped = false;

  // Whether values are blocks or codes, not elements of `dtype`.
  bool is_coded() const { return blocks != GgmlType::kNone || quantized != nullptr; }
  bool is_row_by_row() const { return !is_transposed && !is_interleaved; }
  std::int64_t num_elements() const;
  std::string ShapeText() const;  // "[4, 8]"
};

// The tensors in order of their data. `label` begins every message. Returns INVALID_ARGUMENT that
// names the tensor and the numbers.
absl::StatusOr<std::vector<StoredTensor>> ReadSafetensors(std::span<const std::byte> file,
                                                          absl::string_view label);

}  // namespace quire::formats
