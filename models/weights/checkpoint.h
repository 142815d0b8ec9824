#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/model_files.h"
#include "formats/stored_quantization.h"
#include "formats/tensors/safetensors.h"

namespace quire::models {

// All tensors of a model by name, from one or several files.
//
// Place:      between the file readers and Weights.
// Invariants: names are unique. Headers of the files determine where a tensor is. The index of a
//             sharded checkpoint only names the files. Every tensor that the index lists must be in
//             one of the files.
// Threads:    immutable.
// Lifetime:   owns the mapped files; tensor bytes are valid until the Checkpoint is destroyed.
class Checkpoint {
 public:
  // Reads the GGUF file if files.gguf() names one, else model.safetensors, else
  // model.safetensors.index.json and its shards. Quantized matrices are assembled from their parts
  // (join_quantized.h). Returns NOT_FOUND or INVALID_ARGUMENT, with a hint if the directory has
  // weights in an unsupported format.
  static absl::StatusOr<Checkpoint> Open(const formats::ModelFiles& files,
                                         const formats::StoredQuantization& quantization = {});

  // Makes a checkpoint of tensors whose bytes are in `memory`. REQUIRES: names are unique.
  static Checkpoint FromTensors(std::vector<formats::StoredTensor> tensors,
                                std::shared_ptr<const void> memory);

  // Returns the tensors, sorted by name.
  const std::vector<formats::StoredTensor>& tensors() const { return tensors_; }
  // Returns null if there is no such tensor.
  const formats::StoredTensor* Find(absl::string_view name) const;
  std::int64_t total_bytes() const { return total_bytes_; }
  // Warnings for the load log.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  absl::Status AddFile(const formats::ModelFiles& files, absl::string_view name);
  absl::Status AddShards(const formats::ModelFiles& files);
  absl::Status AddGguf(const formats::ModelFiles& files);
  absl::Status Finish();

  std::vector<formats::ModelFile> files_;
  std::shared_ptr<const void> memory_;
  std::vector<formats::StoredTensor> tensors_;
  absl::flat_hash_map<std::string, std::size_t> by_name_;
  std::int64_t total_bytes_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace quire::models
