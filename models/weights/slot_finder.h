#pragma once

// Finds the tensors of a model in a checkpoint, checks their shapes, and chooses the form in which
// each matrix is stored in memory.
//
// Place:      below FindWeights (weights.h).
// Invariants: a tensor that Find or FindVector returned counts as used.
// Threads:    one thread.
// Lifetime:   SlotFinder must not outlive its Checkpoint, nor FormChooser its WeightTarget.
//             Tensors cut from larger ones live as long as the vector that TakePieces returned.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config/layer_spec.h"
#include "models/config/tensor_table.h"
#include "models/weights/checkpoint.h"
#include "models/weights/quantization.h"
#include "models/weights/weights.h"

namespace quire::models {

// A part of a fused matrix.
struct Part {
  std::string name;  // without ".weight"
  Extent rows;
  bool has_bias;
  std::vector<RowRange> picked_rows = {};  // the stored rows to use; empty: all
};

// Looks up tensors by name, checks them and records which ones were used.
class SlotFinder {
 public:
  explicit SlotFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Returns INVALID_ARGUMENT if the tensor is missing or its shape differs from `extents`. The
  // message has both shapes and the keys of config.json that determine the expected one. Returns
  // UNIMPLEMENTED for an unsupported dtype.
  absl::StatusOr<const formats::StoredTensor*> Find(const std::string& name,
                                                    std::initializer_list<Extent> extents) {
    return Find(name, {extents.begin(), extents.size()}, /*keeps_unit_dimensions=*/true);
  }
  // Like Find, but ignores dimensions of 1 and refuses quantized tensors. Returns the tensor as a
  // vector of all elements.
  absl::StatusOr<const formats::StoredTensor*> FindVector(const std::string& name,
                                                          std::span<const Extent> extents);
  // Returns null if there is no such tensor. Does not mark the tensor as used.
  const formats::StoredTensor* Peek(absl::string_view name) const { return checkpoint_.Find(name); }

  // Takes ownership of a tensor that was cut from one that Find returned.
  const formats::StoredTensor* AddPiece(formats::StoredTensor piece);
  std::vector<std::shared_ptr<const formats::StoredTensor>> TakePieces() {
    return std::move(pieces_);
  }

  void MarkUsed(const formats::StoredTensor* tensor) { used_.insert(tensor); }
  bool IsUsed(const formats::StoredTensor& tensor) const { return used_.contains(&tensor); }
  const absl::flat_hash_set<const formats::StoredTensor*>& used() const { return used_; }

 private:
  absl::StatusOr<const formats::StoredTensor*> Find(const std::string& name,
                                                    std::span<const Extent> extents,
                                                    bool keeps_unit_dimensions);

  const Checkpoint& checkpoint_;
  absl::flat_hash_set<const formats::StoredTensor*> used_;
  std::vector<std::shared_ptr<const formats::StoredTensor>> pieces_;
};

// Chooses the form of matrices.
class FormChooser {
 public:
  explicit FormChooser(const WeightTarget& target) : target_(target) {}

  // Returns the form of a single tensor, or INVALID_ARGUMENT if the form does not support the
  // tensor's number of inputs.
  absl::StatusOr<MatrixForm> FormOf(const formats::StoredTensor& tensor, MatrixRole role) const;

  // Returns the matrices that are made of the tensors. Adjacent tensors with the same form and
  // act-order permutation are fused into one matrix. Adjacent unquantized tensors of different
  // dtypes are fused as f32.
  absl::StatusOr<std::vector<MatrixSlot>> Matrices(
      const std::vector<const formats::StoredTensor*>& parts, MatrixRole role) const;

 private:
  absl::Status CheckInputs(const formats::StoredTensor& tensor, const MatrixForm& form,
                           MatrixRole role) const;

  const WeightTarget& target_;
};

// Finds NAME.weight and NAME.bias of the parts and concatenates their rows.
absl::StatusOr<LinearSlot> FindLinear(SlotFinder& finder, const FormChooser& chooser,
                                      const std::vector<Part>& parts, const Extent& columns,
                                      MatrixRole role = MatrixRole::kLayer);

// Finds NAME.weight of a norm. Returns an empty slot if the spec has no such norm.
absl::StatusOr<VectorSlot> FindNorm(SlotFinder& finder, const NormSpec& norm,
                                    const std::string& name, const Extent& elements);

}  // namespace quire::models
