#include "models/weights/moe_slots.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/weights/stored_rows.h"

namespace quire::models {
namespace {

// NAME.weight and NAME.bias in the types in which they are stored.
absl::StatusOr<LinearSlot> FindUnconverted(SlotFinder& finder, const std::string& name,
                                           const Extent& rows, const Extent& columns,
                                           bool has_bias) {
  QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* weight,
                         finder.Find(absl::StrCat(name, ".weight"), {rows, columns}));
  LinearSlot slot;
  slot.n = static_cast<std::uint32_t>(rows.size);
  slot.k = static_cast<std::uint32_t>(columns.size);
  const MatrixForm form = weight->is_coded() ? PlainForm(*weight) : StoredForm(*weight);
  slot.matrices.push_back({.parts = {weight}, .n = slot.n, .k = slot.k, .form = form});
  if (!has_bias) return slot;
  QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* bias,
                         finder.Find(absl::StrCat(name, ".bias"), {rows}));
  slot.biases.push_back(bias);
  return slot;
}

// One MLP: NAME.{gate,up,down} with the family's names for these.
absl::Status FindExpert(SlotFinder& finder, const FormChooser& chooser, const Extent& hidden,
                        const MlpSpec& mlp, const Extent& inner, const TensorNames& names,
                        const std::string& prefix, LinearSlot* gate_up, LinearSlot* down) {
  const auto name = [&](absl::string_view part) { return absl::StrCat(prefix, ".", part); };
  QUIRE_ASSIGN_OR_RETURN(*gate_up, FindLinear(finder, chooser,
                                              {{name(names.expert_gate), inner, mlp.gate_bias},
                                               {name(names.expert_up), inner, mlp.up_bias}},
                                              hidden));
  QUIRE_ASSIGN_OR_RETURN(
      *down,
      FindLinear(finder, chooser, {{name(names.expert_down), hidden, mlp.down_bias}}, inner));
  return absl::OkStatus();
}

// Expert `e` of a stack: a matrix [rows, columns], or a vector [rows] where `columns` is 0.
formats::StoredTensor Piece(const formats::StoredTensor& stack, std::uint32_t e, std::int64_t rows,
                            std::int64_t columns) {
  const std::size_t bytes = stack.bytes.size() / static_cast<std::size_t>(stack.shape[0]);
  formats::StoredTensor piece = stack;
  piece.name = absl::StrCat(stack.name, "[", e, "]");
  piece.shape = {rows};
  if (columns > 0) piece.shape.push_back(columns);
  piece.bytes = stack.bytes.subspan(e * bytes, bytes);
  piece.first_row = stack.first_row + e * rows;
  return piece;
}

// One of the two stacks of a mixture, cut into the slots of its experts.
absl::Status CutStack(SlotFinder& finder, const FormChooser& chooser, const std::string& name,
                      const Extent& experts, const Extent& rows, const Extent& columns,
                      bool is_interleaved, bool has_bias, std::vector<LinearSlot>* slots) {
  const formats::StoredTensor* const stored = finder.Peek(name);
  const bool is_coded = stored != nullptr && stored->quantized != nullptr;
  QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* stack,
                         is_coded ? finder.Find(name, {experts, rows, columns})
                                  : finder.Find(name, {experts, columns, rows}));
  const formats::StoredTensor* biases = nullptr;
  if (has_bias) {
    QUIRE_ASSIGN_OR_RETURN(biases, finder.Find(absl::StrCat(name, "_bias"), {experts, rows}));
  }
  for (std::uint32_t e = 0; e < slots->size(); ++e) {
    LinearSlot& slot = (*slots)[e];
    slot.n = static_cast<std::uint32_t>(rows.size);
    slot.k = static_cast<std::uint32_t>(columns.size);
    formats::StoredTensor piece = Piece(*stack, e, rows.size, columns.size);
    piece.is_transposed = stack->quantized == nullptr;
    piece.is_interleaved = is_interleaved;
    QUIRE_ASSIGN_OR_RETURN(
        slot.matrices, chooser.Matrices({finder.AddPiece(std::move(piece))}, /*is_head=*/false));
    if (biases == nullptr) continue;
    formats::StoredTensor bias = Piece(*biases, e, rows.size, /*columns=*/0);
    bias.is_interleaved = is_interleaved;
    slot.biases.push_back(finder.AddPiece(std::move(bias)));
  }
  return absl::OkStatus();
}

absl::Status FindStacked(SlotFinder& finder, const FormChooser& chooser, const Extent& hidden,
                         const MoeSpec& moe, const TensorNames& names, const std::string& prefix,
                         MoeSlots* slots) {
  const Extent experts{moe.num_experts, "number of experts"};
  const Extent inner{moe.expert.intermediate, "width of an expert"};
  const Extent both{2 * inner.size, "2 * width of an expert"};
  QUIRE_RETURN_IF_ERROR(CutStack(finder, chooser, absl::StrCat(prefix, names.stacked_gate_up),
                                 experts, both, hidden, /*is_interleaved=*/true,
                                 moe.expert.gate_bias, &slots->gate_up));
  return CutStack(finder, chooser, absl::StrCat(prefix, names.stacked_down), experts, hidden, inner,
                  /*is_interleaved=*/false, moe.expert.down_bias, &slots->down);
}

// Three stacks, one of them NAME.weight [experts, outputs, inputs] with NAME.bias.
absl::Status FindSplit(SlotFinder& finder, const FormChooser& chooser, const Extent& hidden,
                       const MoeSpec& moe, const TensorNames& names, const std::string& prefix,
                       MoeSlots* slots) {
  const Extent experts{moe.num_experts, "number of experts"};
  const Extent inner{moe.expert.intermediate, "width of an expert"};
  const struct {
    absl::string_view name;
    Extent rows, columns;
    bool has_bias;
    std::vector<LinearSlot>* slots;
  } stacks[] = {{names.split_gate, inner, hidden, moe.expert.gate_bias, &slots->gate_up},
                {names.split_up, inner, hidden, moe.expert.up_bias, &slots->gate_up},
                {names.split_down, hidden, inner, moe.expert.down_bias, &slots->down}};
  std::vector<std::vector<const formats::StoredTensor*>> gate_up(moe.num_experts);
  for (const auto& stack : stacks) {
    const std::string name = absl::StrCat(prefix, stack.name);
    QUIRE_ASSIGN_OR_RETURN(
        const formats::StoredTensor* weight,
        finder.Find(absl::StrCat(name, ".weight"), {experts, stack.rows, stack.columns}));
    const formats::StoredTensor* bias = nullptr;
    if (stack.has_bias) {
      QUIRE_ASSIGN_OR_RETURN(bias, finder.Find(absl::StrCat(name, ".bias"), {experts, stack.rows}));
    }
    for (std::uint32_t e = 0; e < moe.num_experts; ++e) {
      LinearSlot& slot = (*stack.slots)[e];
      slot.n += static_cast<std::uint32_t>(stack.rows.size);
      slot.k = static_cast<std::uint32_t>(stack.columns.size);
      const formats::StoredTensor* piece =
          finder.AddPiece(Piece(*weight, e, stack.rows.size, stack.columns.size));
      if (bias != nullptr) {
        slot.biases.push_back(finder.AddPiece(Piece(*bias, e, stack.rows.size, /*columns=*/0)));
      }
      std::vector<const formats::StoredTensor*> parts = {piece};
      if (stack.slots == &slots->gate_up) {
        gate_up[e].push_back(piece);
        parts = gate_up[e];
      }
      QUIRE_ASSIGN_OR_RETURN(slot.matrices, chooser.Matrices(parts, /*is_head=*/false));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MoeSlots> FindMoe(SlotFinder& finder, const FormChooser& chooser,
                                 std::uint32_t hidden, const MoeSpec& moe, const TensorNames& names,
                                 const std::string& prefix) {
  const Extent width{hidden, "hidden_size"};
  const Extent experts{moe.num_experts, "number of experts"};
  std::string root = absl::StrCat(prefix, names.moe);
  if (names.moe.empty()) root.pop_back();  // the dot of the layer's prefix
  const auto name = [&](absl::string_view part) { return absl::StrCat(root, ".", part); };
  if (!names.moe_alias.empty() && !finder.Peek(absl::StrCat(name(names.router), ".weight"))) {
    const std::string other = absl::StrCat(prefix, names.moe_alias);
    if (finder.Peek(absl::StrCat(other, ".", names.router, ".weight"))) root = other;
  }
  MoeSlots slots;
  QUIRE_ASSIGN_OR_RETURN(
      slots.router, FindUnconverted(finder, name(names.router), experts, width, moe.router_bias));
  if (moe.choice_bias) {
    QUIRE_ASSIGN_OR_RETURN(slots.choice_bias.tensor,
                           finder.Find(name(names.choice_bias), {experts}));
  }
  slots.gate_up.resize(moe.num_experts);
  slots.down.resize(moe.num_experts);
  if (!names.split_gate.empty()) {
    QUIRE_RETURN_IF_ERROR(FindSplit(finder, chooser, width, moe, names, name(""), &slots));
  } else if (names.stacked_gate_up.empty()) {
    const Extent inner{moe.expert.intermediate, "width of an expert"};
    for (std::uint32_t e = 0; e < moe.num_experts; ++e) {
      QUIRE_RETURN_IF_ERROR(FindExpert(finder, chooser, width, moe.expert, inner, names,
                                       absl::StrCat(name("experts."), e), &slots.gate_up[e],
                                       &slots.down[e]));
    }
  } else {
    QUIRE_RETURN_IF_ERROR(
        FindStacked(finder, chooser, width, moe, names, name("experts."), &slots));
  }
  if (!moe.shared) return slots;
  const Extent shared{moe.shared->intermediate, "width of the shared expert"};
  QUIRE_RETURN_IF_ERROR(FindExpert(finder, chooser, width, *moe.shared, shared, names,
                                   name(names.shared), &slots.shared_gate_up, &slots.shared_down));
  if (moe.shared_gate) {
    QUIRE_ASSIGN_OR_RETURN(slots.shared_gate,
                           FindUnconverted(finder, name(names.shared_gate), {1, "1"}, width,
                                           /*has_bias=*/false));
  }
  return slots;
}

}  // namespace quire::models
