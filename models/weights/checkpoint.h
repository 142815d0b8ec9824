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

// All tensors of a model by name, whatever files they lie in.
//
// Place:      between the file readers and Weights.
// Invariants: names are unique. The headers of the files decide where a tensor is; the index of a
//             sharded checkpoint only names the files, and a tensor that it promises must be in one
//             of them.
// Threads:    immutable.
// Lifetime:   keeps the files open (mapped); tensor bytes are valid as long as it lives.
class Checkpoint {
 public:
  // Reads the GGUF file if files.gguf() names one, else model.safetensors, else
  // model.safetensors.index.json and its shards; matrices that are quantised are joined from their
  // parts (join_quantized.h). Returns NOT_FOUND or INVALID_ARGUMENT, with a hint when the directory
  // holds weights of a format that is not read.
  static absl::StatusOr<Checkpoint> Open(const formats::ModelFiles& files,
                                         const formats::StoredQuantization& quantization = {});

  // Tensors whose bytes lie in `memory`. REQUIRES: names are unique.
  static Checkpoint FromTensors(std::vector<formats::StoredTensor> tensors,
                                std::shared_ptr<const void> memory);

  // Sorted by name.
  const std::vector<formats::StoredTensor>& tensors() const { return tensors_; }
  // Null when there is none.
  const formats::StoredTensor* Find(absl::string_view name) const;
  std::int64_t total_bytes() const { return total_bytes_; }
  // For the load log.
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
