#pragma once

// Reads the header of a safetensors file: the names, types, shapes and positions of its tensors.
//
//   8 bytes   n, little endian
//   n bytes   JSON: {"name": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [begin, end]}, ...}
//   rest      data; the tensors cover it without gap and without overlap
//
// The header is not trusted: every number is checked against the file size before it is used, and
// no allocation depends on an unchecked number. Source: github.com/huggingface/safetensors,
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

// A tensor of a safetensors or GGUF file, or a slice of one.
struct StoredTensor {
  std::string name;
  std::string type;  // type name in the file: "BF16"
  // kInvalid for quantized tensors and for unsupported types such as C64.
  DType dtype = DType::kInvalid;
  // Set when a GGUF file stores the rows in a block format, with GgmlRowBytes bytes per row.
  GgmlType blocks = GgmlType::kNone;
  // Set for a quantized matrix whose codes, scales and zero points are separate tensors of the file
  // (join_quantized.h). In this case `bytes` are the codes.
  std::shared_ptr<const QuantizedTensor> quantized;
  std::int64_t first_row = 0;  // in `quantized`, if this is a slice of a stack of matrices
  // Layout of this slice of a stack of matrices. If is_transposed, element (r, i) is stored at [i,
  // r]. If is_interleaved, rows (or elements of a vector) of the first half are stored at even
  // positions, and those of the second half at odd positions.
  bool is_transposed = false;
  bool is_interleaved = false;
  std::vector<std::int64_t> shape;   // the slowest dimension first
  std::span<const std::byte> bytes;  // in the file or a copy; may be unaligned
  std::string file;                  // label of the file in messages
  // The bytes are part of a MappedFile, so their memory can be reclaimed after use.
  bool is_mapped = false;

  // Returns whether the values are quantized (blocks or codes) instead of elements of `dtype`.
  bool is_quantized() const { return blocks != GgmlType::kNone || quantized != nullptr; }
  bool has_rows_in_order() const { return !is_transposed && !is_interleaved; }
  std::int64_t num_elements() const;
  std::string ShapeText() const;  // "[4, 8]"
};

// Returns the tensors in the order of their data. `label` starts every message. Returns
// INVALID_ARGUMENT with the tensor if the header is invalid.
absl::StatusOr<std::vector<StoredTensor>> ReadSafetensors(std::span<const std::byte> file,
                                                          absl::string_view label);

}  // namespace quire::formats
