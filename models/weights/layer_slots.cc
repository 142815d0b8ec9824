#include "models/weights/layer_slots.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/weights/stored_rows.h"

namespace quire::models {
namespace {

// Cuts item `e`, an expert or a head, from a stack: a matrix [rows, columns], or a vector [rows] if
// `columns` is 0.
formats::StoredTensor CutItem(const formats::StoredTensor& stack, std::uint32_t e,
                              std::int64_t rows, std::int64_t columns) {
  const std::size_t bytes = stack.bytes.size() / static_cast<std::size_t>(stack.shape[0]);
  formats::StoredTensor piece = stack;
  piece.name = absl::StrCat(stack.name, "[", e, "]");
  piece.shape = {rows};
  if (columns > 0) piece.shape.push_back(columns);
  piece.bytes = stack.bytes.subspan(e * bytes, bytes);
  piece.first_row = stack.first_row + e * rows;
  return piece;
}

// Finds the tensors of one layer, given rows of the tensor tables.
class RowFinder {
 public:
  RowFinder(SlotFinder& finder, const FormChooser& chooser, const ModelSpec& spec,
            const TensorNames& names, std::size_t index)
      : finder_(finder),
        chooser_(chooser),
        names_(names),
        hidden_(spec.hidden),
        layer_(spec.layers[index]) {
    for (int kind = 0; kind < kNumBlockKinds; ++kind) {
      prefixes_.push_back(BlockPrefix(names, static_cast<BlockKind>(kind), index));
    }
    std::string& moe = prefixes_[static_cast<std::size_t>(BlockKind::kMoe)];
    if ((names.stacks_are_output_major || names.stacked_in_halves) &&
        finder.Peek(absl::StrCat(moe, "experts.", names.stacked_gate_up)) == nullptr) {
      names_.stacked_gate_up = names_.stacked_down = "";
    }
    const auto has = [&](absl::string_view name) {
      return finder.Peek(absl::StrCat(LayerPrefix(names, index), name, ".weight")) != nullptr;
    };
    if (!names.down_alias.empty() && !has(names.down) && has(names.down_alias)) {
      names_.gate = names.gate_alias;
      names_.up = names.up_alias;
      names_.down = names.down_alias;
    }
    if (names.moe_alias.empty()) return;
    const std::string other = absl::StrCat(LayerPrefix(names, index), names.moe_alias, ".");
    if (!HasRouter(moe) && HasRouter(other)) moe = other;
  }

  bool Has(BlockKind block, const TensorInfo& info) const {
    return HasBlock(layer_, block) && info.IsIn(layer_);
  }

  absl::StatusOr<VectorSlot> Vector(BlockKind block, const TensorInfo& info) const {
    const PartInfo& part = info.parts[0];
    if (info.kind == TensorKind::kNorm) {
      return FindNorm(finder_, info.norm(layer_), NameOf(block, info, part), ExtentOf(part.rows));
    }
    VectorSlot slot;
    for (const PartInfo& piece : info.PartsIn(names_)) {
      std::vector<Extent> extents = {ExtentOf(piece.rows)};
      if (info.columns != Dim::kNone) extents.push_back(ExtentOf(info.columns));
      QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* tensor,
                             finder_.FindVector(NameOf(block, info, piece), extents));
      slot.parts.push_back(tensor);
    }
    if (info.norm != nullptr) {
      slot.offset = info.norm(layer_).weight_offset;
      slot.scale = info.norm(layer_).weight_scale;
    }
    return slot;
  }

  absl::StatusOr<LinearSlot> Linear(BlockKind block, const TensorInfo& info) const {
    const std::vector<Part> parts = PartsUnder(prefix(block), info);
    if (info.kind == TensorKind::kUnconverted) {
      return FindUnconverted(parts.front(), ExtentOf(info.columns));
    }
    return FindLinear(finder_, chooser_, parts, ExtentOf(info.columns));
  }

  absl::StatusOr<std::vector<LinearSlot>> Linears(BlockKind block, const TensorInfo& info) const {
    if (info.kind == TensorKind::kHeadMatrices) return FindHeads(block, info);
    switch (ExpertStorageOf(names_)) {
      case ExpertStorage::kStacks:
        return FindStacks(block, info);
      case ExpertStorage::kTransposedStacks:
      case ExpertStorage::kRowStacks:
        return FindFusedStack(block, info);
      case ExpertStorage::kPerExpert:
        break;
    }
    std::vector<LinearSlot> slots;
    for (std::uint32_t e = 0; e < layer_.moe.num_experts; ++e) {
      const std::string expert = absl::StrCat(prefix(block), "experts.", e, ".");
      QUIRE_ASSIGN_OR_RETURN(
          LinearSlot slot,
          FindLinear(finder_, chooser_, PartsUnder(expert, info), ExtentOf(info.columns)));
      slots.push_back(std::move(slot));
    }
    return slots;
  }

 private:
  const std::string& prefix(BlockKind block) const {
    return prefixes_[static_cast<std::size_t>(block)];
  }
  bool HasRouter(const std::string& moe) const {
    return finder_.Peek(absl::StrCat(moe, names_.router, ".weight")) != nullptr;
  }
  Extent ExtentOf(Dim dim) const { return models::ExtentOf(dim, hidden_, layer_); }
  std::string NameOf(BlockKind block, const TensorInfo& info, const PartInfo& part) const {
    return PartName(names_, info, part, prefix(block));
  }
  bool HasBias(const PartInfo& part) const {
    return part.has_bias != nullptr && part.has_bias(layer_);
  }

  std::vector<Part> PartsUnder(const std::string& prefix, const TensorInfo& info) const {
    std::vector<Part> parts;
    for (const PartInfo& part : info.PartsIn(names_)) {
      std::vector<RowRange> picked;
      if (part.pick != nullptr) {
        picked = part.pick(layer_);
        if (picked.empty()) continue;
      }
      parts.push_back({PartName(names_, info, part, prefix), ExtentOf(part.rows), HasBias(part),
                       std::move(picked)});
    }
    return parts;
  }

  absl::StatusOr<LinearSlot> FindUnconverted(const Part& part, const Extent& columns) const {
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* weight,
                           finder_.Find(absl::StrCat(part.name, ".weight"), {part.rows, columns}));
    LinearSlot slot;
    slot.n = static_cast<std::uint32_t>(part.rows.size);
    slot.k = static_cast<std::uint32_t>(columns.size);
    const MatrixForm form = weight->is_quantized() ? PlainForm(*weight) : StoredForm(*weight);
    slot.matrices.push_back({.parts = {weight}, .n = slot.n, .k = slot.k, .form = form});
    if (!part.has_bias) return slot;
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* bias,
                           finder_.Find(absl::StrCat(part.name, ".bias"), {part.rows}));
    slot.biases.push_back(bias);
    return slot;
  }

  // Finds one stack per part: NAME.weight [experts, rows, columns] and NAME.bias.
  absl::StatusOr<std::vector<LinearSlot>> FindStacks(BlockKind block,
                                                     const TensorInfo& info) const {
    const Extent experts = ExtentOf(Dim::kExperts), columns = ExtentOf(info.columns);
    std::vector<LinearSlot> slots(layer_.moe.num_experts);
    std::vector<std::vector<const formats::StoredTensor*>> weights(slots.size());
    for (const PartInfo& part : info.PartsIn(names_)) {
      const std::string name = absl::StrCat(prefix(block), names_.*part.stack_name);
      const Extent rows = ExtentOf(part.rows);
      QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* weight,
                             finder_.Find(absl::StrCat(name, ".weight"), {experts, rows, columns}));
      const formats::StoredTensor* bias = nullptr;
      if (HasBias(part)) {
        QUIRE_ASSIGN_OR_RETURN(bias, finder_.Find(absl::StrCat(name, ".bias"), {experts, rows}));
      }
      for (std::uint32_t e = 0; e < slots.size(); ++e) {
        slots[e].n += static_cast<std::uint32_t>(rows.size);
        weights[e].push_back(finder_.AddPiece(CutItem(*weight, e, rows.size, columns.size)));
        if (bias == nullptr) continue;
        slots[e].biases.push_back(finder_.AddPiece(CutItem(*bias, e, rows.size, /*columns=*/0)));
      }
    }
    for (std::size_t e = 0; e < slots.size(); ++e) {
      slots[e].k = static_cast<std::uint32_t>(columns.size);
      QUIRE_ASSIGN_OR_RETURN(slots[e].matrices, chooser_.Matrices(weights[e], MatrixRole::kLayer));
    }
    return slots;
  }

  // Finds one stack for all parts. If there are several parts in a transposed stack, their columns
  // alternate or follow each other.
  absl::StatusOr<std::vector<LinearSlot>> FindFusedStack(BlockKind block,
                                                         const TensorInfo& info) const {
    const Extent experts = ExtentOf(Dim::kExperts), columns = ExtentOf(info.columns);
    const Extent rows = ExtentOf(info.fused.rows);
    const std::string name = absl::StrCat(prefix(block), "experts.", names_.*info.fused.name);
    const formats::StoredTensor* const stored = finder_.Peek(name);
    const bool is_quantized = stored != nullptr && stored->quantized != nullptr;
    const bool has_rows = ExpertStorageOf(names_) == ExpertStorage::kRowStacks;
    const bool is_transposed = !has_rows && !is_quantized;
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* stack,
                           is_transposed ? finder_.Find(name, {experts, columns, rows})
                                         : finder_.Find(name, {experts, rows, columns}));
    const formats::StoredTensor* biases = nullptr;
    if (HasBias(info.fused)) {
      QUIRE_ASSIGN_OR_RETURN(biases, finder_.Find(absl::StrCat(name, "_bias"), {experts, rows}));
    }
    const bool is_interleaved =
        !has_rows && info.parts[1].name != nullptr && !names_.stacked_in_halves;
    std::vector<LinearSlot> slots(layer_.moe.num_experts);
    for (std::uint32_t e = 0; e < slots.size(); ++e) {
      LinearSlot& slot = slots[e];
      slot.n = static_cast<std::uint32_t>(rows.size);
      slot.k = static_cast<std::uint32_t>(columns.size);
      formats::StoredTensor piece = CutItem(*stack, e, rows.size, columns.size);
      piece.is_transposed = is_transposed;
      piece.is_interleaved = is_interleaved;
      QUIRE_ASSIGN_OR_RETURN(slot.matrices, chooser_.Matrices({finder_.AddPiece(std::move(piece))},
                                                              MatrixRole::kLayer));
      if (biases == nullptr) continue;
      formats::StoredTensor bias = CutItem(*biases, e, rows.size, /*columns=*/0);
      bias.is_interleaved = is_interleaved;
      slot.biases.push_back(finder_.AddPiece(std::move(bias)));
    }
    return slots;
  }

  absl::StatusOr<std::vector<LinearSlot>> FindHeads(BlockKind block, const TensorInfo& info) const {
    const PartInfo& part = info.parts[0];
    if (!(names_.*part.stack_name).empty()) return FindHeadStack(block, info);
    const Extent rows = ExtentOf(part.rows);
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* whole,
                           finder_.Find(absl::StrCat(NameOf(block, info, part), ".weight"),
                                        {rows, ExtentOf(info.columns)}));
    if (whole->blocks != formats::GgmlType::kNone) {
      return absl::UnimplementedError(
          absl::StrCat(whole->file, ": tensor ", whole->name, " of type ", whole->type,
                       " is not supported (supported: F32, F16, BF16)"));
    }
    std::vector<LinearSlot> slots;
    const std::int64_t head_rows = rows.size / layer_.mla.num_heads;
    for (std::uint32_t h = 0; h < layer_.mla.num_heads; ++h) {
      QUIRE_ASSIGN_OR_RETURN(LinearSlot slot, CutHead(*whole, info.head, h, h * head_rows));
      slots.push_back(std::move(slot));
    }
    return slots;
  }

  // Finds one stack of the matrices of all heads.
  absl::StatusOr<std::vector<LinearSlot>> FindHeadStack(BlockKind block,
                                                        const TensorInfo& info) const {
    const std::string name = absl::StrCat(prefix(block), names_.*info.parts[0].stack_name);
    const Extent heads{layer_.mla.num_heads, "num_attention_heads"};
    const Extent rows = ExtentOf(info.outputs()), columns = ExtentOf(info.inputs());
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* stack,
                           finder_.Find(absl::StrCat(name, ".weight"), {heads, rows, columns}));
    std::vector<LinearSlot> slots(layer_.mla.num_heads);
    for (std::uint32_t h = 0; h < slots.size(); ++h) {
      slots[h].n = static_cast<std::uint32_t>(rows.size);
      slots[h].k = static_cast<std::uint32_t>(columns.size);
      const formats::StoredTensor* piece =
          finder_.AddPiece(CutItem(*stack, h, rows.size, columns.size));
      QUIRE_ASSIGN_OR_RETURN(slots[h].matrices, chooser_.Matrices({piece}, MatrixRole::kLayer));
    }
    return slots;
  }

  // Cuts the rows of one head, which begin at `first`.
  absl::StatusOr<LinearSlot> CutHead(const formats::StoredTensor& whole, const HeadRows& head,
                                     std::uint32_t number, std::int64_t first) const {
    const std::int64_t rows = ExtentOf(head.rows).size;
    // If `whole` is quantized, readers use first_row and only the size of `bytes`.
    const std::int64_t row_bytes = static_cast<std::int64_t>(whole.bytes.size()) / whole.shape[0];
    first += ExtentOf(head.first).size;
    formats::StoredTensor piece = whole;
    piece.name = absl::StrCat(whole.name, "[", head.piece, " ", number, "]");
    piece.shape = {rows, whole.shape[1]};
    if (head.is_transposed) std::swap(piece.shape[0], piece.shape[1]);
    piece.is_transposed = head.is_transposed;
    piece.first_row = first;
    piece.bytes = whole.bytes.subspan(static_cast<std::size_t>(first * row_bytes),
                                      static_cast<std::size_t>(rows * row_bytes));
    LinearSlot slot;
    slot.n = static_cast<std::uint32_t>(piece.shape[0]);
    slot.k = static_cast<std::uint32_t>(piece.shape[1]);
    QUIRE_ASSIGN_OR_RETURN(
        slot.matrices, chooser_.Matrices({finder_.AddPiece(std::move(piece))}, MatrixRole::kLayer));
    return slot;
  }

  SlotFinder& finder_;
  const FormChooser& chooser_;
  TensorNames names_;  // with the aliases that this layer's tensors use
  const std::uint32_t hidden_;
  const LayerSpec& layer_;
  std::vector<std::string> prefixes_;  // by BlockKind
};

template <typename T>
absl::Status Assign(absl::StatusOr<T> found, T* to) {
  if (found.ok()) *to = *std::move(found);
  return found.status();
}

}  // namespace

absl::StatusOr<LayerSlots> FindLayer(SlotFinder& finder, const FormChooser& chooser,
                                     const ModelSpec& spec, const TensorNames& names,
                                     std::size_t index) {
  const RowFinder rows(finder, chooser, spec, names, index);
  LayerSlots slots;
  absl::Status status;
  ForEachRow(slots, [&](BlockKind kind, const auto& row, auto& block) {
    if (!status.ok() || !rows.Has(kind, row.info)) return;
    if (row.vector != nullptr) {
      status = Assign(rows.Vector(kind, row.info), &(block.*row.vector));
    } else if (row.linear != nullptr) {
      status = Assign(rows.Linear(kind, row.info), &(block.*row.linear));
    } else {
      status = Assign(rows.Linears(kind, row.info), &(block.*row.linears));
    }
  });
  QUIRE_RETURN_IF_ERROR(status);
  return slots;
}

}  // namespace quire::models
