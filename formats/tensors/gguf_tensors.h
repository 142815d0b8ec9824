#pragma once

// The weights of a GGUF file as the tensors of a checkpoint.

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

// A file and what its header says. Movable: moving keeps the views valid.
struct OpenedGguf {
  ModelFile file;
  GgufFile gguf;  // a view of `file`
};
// REQUIRES: files.gguf() is not empty. Errors as ModelFiles::Open and GgufFile::Parse.
absl::StatusOr<OpenedGguf> OpenGguf(const ModelFiles& files);

// The tensors in file order, shapes slowest dimension first. Returns INVALID_ARGUMENT that names
// the tensor when its type is unknown, its rows are no whole blocks, or its bytes are misaligned,
// outside the file or those of another tensor; UNIMPLEMENTED, by name, for types that are not read.
// Unused bytes between tensors and behind the last are let be.
absl::StatusOr<std::vector<StoredTensor>> ReadGgufTensors(const OpenedGguf& opened);

// Tensors that divide the rotation frequencies: of llama3 scaling, and the two sets of longrope.
inline constexpr absl::string_view kRopeFactors = "rope_freqs.weight";
inline constexpr absl::string_view kLongRopeFactors = "rope_factors_long.weight";
inline constexpr absl::string_view kShortRopeFactors = "rope_factors_short.weight";

// One of them: [rotary size / 2], positive and finite. Empty when the file has none. Errors name
// the tensor.
absl::StatusOr<std::vector<float>> ReadRopeFactors(const OpenedGguf& opened,
                                                   absl::string_view name);

// What a checkpoint makes of them.
struct GgufTensors {
  std::vector<StoredTensor> tensors;
  std::shared_ptr<const void> memory;  // of those that are not in the file as they are
};

// ReadGgufTensors without rope factors. Files of architecture llama have the rows of attn_q and
// attn_k put back into the order of Hugging Face checkpoints: of each head of d rows, file row 2j
// becomes row j and 2j + 1 becomes j + d/2, so that rope rotates halves; other architectures have
// them in that order. Whole rows move, blocks stay whole. Errors
// as ReadGgufTensors.
absl::StatusOr<GgufTensors> LoadGgufTensors(const OpenedGguf& opened);

}  // namespace quire::formats
