#pragma once

// How the slots of a model are filled from a checkpoint: tensors by name with the shape that the
// configuration asks for, and the form in which each matrix will be held.
//
// Place:      under FindWeights (weights.h).
// Invariants: a tensor that was returned counts as used.
// Threads:    one.
// Lifetime:   of the checkpoint and, FormChooser, of the target; tensors cut out of larger ones
//             live as long as what TakePieces returned.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config/layer_spec.h"
#include "models/weights/checkpoint.h"
#include "models/weights/weights.h"

namespace quire::models {

// An extent that a tensor must have, and the keys of config.json that it comes from.
struct Extent {
  std::int64_t size;
  absl::string_view keys;
};

// A part of a fused matrix.
struct Part {
  std::string name;  // without ".weight"
  Extent rows;
  bool has_bias;
};

// Looks tensors up, checks them, and remembers which ones were asked for.
class SlotFinder {
 public:
  explicit SlotFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Returns INVALID_ARGUMENT when the tensor is missing or has another shape, with both shapes and
  // the keys; UNIMPLEMENTED for a type that is not read.
  absl::StatusOr<const formats::StoredTensor*> Find(const std::string& name,
                                                    std::initializer_list<Extent> extents);
  // Null when there is none; the tensor does not count as used.
  const formats::StoredTensor* Peek(absl::string_view name) const { return checkpoint_.Find(name); }

  // A tensor that is part of one that was found.
  const formats::StoredTensor* AddPiece(formats::StoredTensor piece);
  std::vector<std::shared_ptr<const formats::StoredTensor>> TakePieces() {
    return std::move(pieces_);
  }

  void MarkUsed(const formats::StoredTensor* tensor) { used_.insert(tensor); }
  bool IsUsed(const formats::StoredTensor& tensor) const { return used_.contains(&tensor); }
  const absl::flat_hash_set<const formats::StoredTensor*>& used() const { return used_; }

 private:
  const Checkpoint& checkpoint_;
  absl::flat_hash_set<const formats::StoredTensor*> used_;
  std::vector<std::shared_ptr<const formats::StoredTensor>> pieces_;
};

// Chooses the form of matrices.
class FormChooser {
 public:
  explicit FormChooser(const WeightTarget& target) : target_(target) {}

  // Of one tensor by itself. Returns INVALID_ARGUMENT for inputs that the form cannot hold.
  absl::StatusOr<MatrixForm> FormOf(const formats::StoredTensor& tensor, bool is_head) const;

  // Parts of one input. Neighbours of one form, and one order of inputs if they have their own,
  // share a matrix; plain ones of different types share one in f32.
  absl::StatusOr<std::vector<MatrixSlot>> Matrices(
      const std::vector<const formats::StoredTensor*>& parts, bool is_head) const;

 private:
  absl::Status CheckInputs(const formats::StoredTensor& tensor, const MatrixForm& form,
                           bool is_head) const;

  const WeightTarget& target_;
};

// The matrices NAME.weight of the parts one below the other, and their biases NAME.bias.
absl::StatusOr<LinearSlot> FindLinear(SlotFinder& finder, const FormChooser& chooser,
                                      const std::vector<Part>& parts, const Extent& columns,
                                      bool is_head = false);

// NAME.weight with the norm's offset; nothing when the spec has no such norm.
absl::StatusOr<VectorSlot> FindNorm(SlotFinder& finder, const NormSpec& norm,
                                    const std::string& name, const Extent& elements);

}  // namespace quire::models
