#pragma once

// Reads the weights of a GGUF file as checkpoint tensors.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/gguf.h"
#include "formats/model_files.h"
#include "formats/tensors/safetensors.h"

namespace quire::formats {

// A file and its parsed header. Moving an OpenedGguf keeps the views valid.
struct OpenedGguf {
  ModelFile file;
  GgufFile gguf;  // a view of `file`
};
// Opens the GGUF file. REQUIRES: files.gguf() is not empty. Errors are those of ModelFiles::Open
// and GgufFile::Parse.
absl::StatusOr<OpenedGguf> OpenGguf(const ModelFiles& files);

// Returns the tensors in file order, with the slowest dimension of a shape first. Returns
// INVALID_ARGUMENT with the tensor if its type is unknown or its rows are not whole blocks. The
// same error means that its bytes are misaligned, lie outside the file or overlap another tensor.
// Returns UNIMPLEMENTED for types that are not supported. Gaps between tensors and bytes after the
// last one are allowed.
absl::StatusOr<std::vector<StoredTensor>> ReadGgufTensors(const OpenedGguf& opened);

// Names of the tensors whose elements divide the rotary frequencies: one for llama3 scaling, and
// two for longrope.
inline constexpr absl::string_view kRopeFactors = "rope_freqs.weight";
inline constexpr absl::string_view kLongRopeFactors = "rope_factors_long.weight";
inline constexpr absl::string_view kShortRopeFactors = "rope_factors_short.weight";

// Reads one of these tensors: [rotary size / 2], positive and finite. Returns an empty vector when
// the file lacks it.
absl::StatusOr<std::vector<float>> ReadRopeFactors(const OpenedGguf& opened,
                                                   absl::string_view name);

// The tensors that a checkpoint uses.
struct GgufTensors {
  std::vector<StoredTensor> tensors;
  std::shared_ptr<const void> memory;  // owns the bytes of tensors that are not views of the file
};

// Returns the tensors of ReadGgufTensors without the rope factors. Converts the following tensors
// to the form of Hugging Face checkpoints:
//
// - attn_q and attn_k of the architectures llama and granitehybrid. Their rows are permuted to
//   half-split rope order. In each head of d rows, file row 2j becomes row j, and file row 2j + 1
//   becomes row j + d/2. Files of other architectures already have this order. Whole rows are
//   moved, so quantization blocks stay intact.
// - ssm_a, which is -exp(A_log), becomes A_log. Returns UNIMPLEMENTED unless it is F32, and
//   INVALID_ARGUMENT for elements that are not negative.
// - ssm_norm, which has a row for each group, becomes a vector.
//
// Returns RESOURCE_EXHAUSTED if memory for the converted tensors cannot be allocated.
absl::StatusOr<GgufTensors> LoadGgufTensors(const OpenedGguf& opened);

}  // namespace quire::formats
