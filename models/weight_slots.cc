#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "models/stored_rows.h"
#include "models/weights.h"

namespace quire::models {
namespace {

// Sums of products of an integer matrix fit 32 bits up to here; see QuantizedShape.
constexpr std::int64_t kMostIntegerInputs = 65536;

bool IsWeightType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool IsBlocks(const StoredTensor& tensor) {
  return tensor.blocks != GgmlType::kNone;
}

// An extent that a tensor must have, and the keys of config.json that it comes from.
struct Extent {
  std::int64_t size;
  absl::string_view keys;
};

// Looks tensors up, checks them, and remembers which ones were asked for.
class SlotFinder {
 public:
  explicit SlotFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::StatusOr<const StoredTensor*> Find(const std::string& name,
                                           std::initializer_list<Extent> extents) {
    const StoredTensor* tensor = checkpoint_.Find(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is missing"));
    }
    std::vector<std::int64_t> shape;
    std::vector<absl::string_view> keys;
    for (const Extent& extent : extents) {
      shape.push_back(extent.size);
      keys.push_back(extent.keys);
    }
    if (tensor->shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor->file, ": tensor ", name, ": shape is ", tensor->ShapeText(),
                       ", the configuration asks for [", absl::StrJoin(shape, ", "), "] (",
                       absl::StrJoin(keys, ", "), ")"));
    }
    if (!IsWeightType(tensor->dtype) && !(IsBlocks(*tensor) && shape.size() == 2)) {
      return absl::UnimplementedError(
          absl::StrCat(tensor->file, ": tensor ", name, ": dtype ", tensor->type,
                       " is not supported (supported: F32, F16, BF16)"));
    }
    used_.insert(tensor);
    return tensor;
  }

  void MarkUsed(const StoredTensor* tensor) { used_.insert(tensor); }
  bool IsUsed(const StoredTensor& tensor) const { return used_.contains(&tensor); }
  const absl::flat_hash_set<const StoredTensor*>& used() const { return used_; }

 private:
  const Checkpoint& checkpoint_;
  absl::flat_hash_set<const StoredTensor*> used_;
};

// A part of a fused matrix.
struct Part {
  std::string name;  // without ".weight"
  Extent rows;
  bool has_bias;
};

// Chooses the form of matrices.
class FormChooser {
 public:
  explicit FormChooser(const WeightTarget& target) : target_(target) {}

  // Of one tensor by itself.
  absl::StatusOr<MatrixForm> FormOf(const StoredTensor& tensor, bool is_head) const {
    const std::optional<MatrixForm> converted = ConvertedForm(target_.quantization, is_head);
    if (!converted && !IsBlocks(tensor)) return StoredForm(tensor);
    const bool keeps_blocks = target_.quantization == Quantization::kAuto && !target_.cuda;
    if (!converted && !keeps_blocks) return MatrixForm{.dtype = DType::kF32};
    const MatrixForm form = converted ? *converted : StoredForm(tensor);
    QUIRE_RETURN_IF_ERROR(CheckInputs(tensor, form, is_head));
    return form;
  }

  // Parts of one input. Neighbours of one form share a matrix; plain ones of different types share
  // one in f32.
  absl::StatusOr<std::vector<MatrixSlot>> Matrices(const std::vector<const StoredTensor*>& parts,
                                                   bool is_head) const {
    std::vector<MatrixSlot> matrices;
    for (const StoredTensor* part : parts) {
      QUIRE_ASSIGN_OR_RETURN(const MatrixForm form, FormOf(*part, is_head));
      const bool both_plain =
          !matrices.empty() && matrices.back().form.is_plain() && form.is_plain();
      if (matrices.empty() || (matrices.back().form != form && !both_plain)) {
        matrices.push_back(MatrixSlot{});
      }
      MatrixSlot& matrix = matrices.back();
      if (matrix.parts.empty()) matrix.form = form;
      matrix.k = static_cast<std::uint32_t>(part->shape[1]);
      if (matrix.form != form) matrix.form.dtype = DType::kF32;
      matrix.parts.push_back(part);
      matrix.n += static_cast<std::uint32_t>(part->shape[0]);
    }
    return matrices;
  }

 private:
  absl::Status CheckInputs(const StoredTensor& tensor, const MatrixForm& form, bool is_head) const {
    const std::int64_t k = tensor.shape[1];
    std::string needs;
    if (form.group != 0 && k % form.group != 0) {
      needs = absl::StrCat("a multiple of ", form.group);
    } else if (k > kMostIntegerInputs) {
      needs = absl::StrCat("at most ", kMostIntegerInputs);
    } else {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.file, ": tensor ", tensor.name, ": model.quantization ",
        QuantizationName(target_.quantization),
        is_head ? absl::StrCat(" holds the output head as ", FormName(form), ", which") : "",
        " needs ", needs, " inputs, this matrix has ", k));
  }

  const WeightTarget& target_;
};

absl::StatusOr<LinearSlot> FindLinear(SlotFinder& finder, const FormChooser& chooser,
                                      const std::vector<Part>& parts, const Extent& columns,
                                      bool is_head = false) {
  LinearSlot slot;
  slot.k = static_cast<std::uint32_t>(columns.size);
  std::vector<const StoredTensor*> weights;
  for (const Part& part : parts) {
    QUIRE_ASSIGN_OR_RETURN(const StoredTensor* weight,
                           finder.Find(absl::StrCat(part.name, ".weight"), {part.rows, columns}));
    weights.push_back(weight);
    slot.n += static_cast<std::uint32_t>(part.rows.size);
    if (!part.has_bias) continue;
    QUIRE_ASSIGN_OR_RETURN(const StoredTensor* bias,
                           finder.Find(absl::StrCat(part.name, ".bias"), {part.rows}));
    slot.biases.push_back(bias);
  }
  QUIRE_ASSIGN_OR_RETURN(slot.matrices, chooser.Matrices(weights, is_head));
  return slot;
}

absl::StatusOr<LayerSlots> FindLayer(SlotFinder& finder, const FormChooser& chooser,
                                     const ModelSpec& spec, const TensorNames& names,
                                     std::size_t index) {
  const LayerSpec& layer = spec.layers[index];
  const AttentionSpec& heads = layer.heads;
  const std::string prefix = absl::StrCat(names.layer_prefix, index, ".");
  const auto name = [&](absl::string_view part) { return absl::StrCat(prefix, part); };
  const Extent hidden{spec.hidden, "hidden_size"};
  const Extent q_rows{std::int64_t{heads.num_heads} * heads.head_size,
                      "num_attention_heads * head_dim"};
  const Extent kv_rows{std::int64_t{heads.num_kv_heads} * heads.head_size,
                       "num_key_value_heads * head_dim"};
  const Extent inner{layer.dense.intermediate, "intermediate_size"};

  LayerSlots slots;
  QUIRE_ASSIGN_OR_RETURN(slots.attn_in,
                         finder.Find(absl::StrCat(name(names.attn_in), ".weight"), {hidden}));
  QUIRE_ASSIGN_OR_RETURN(slots.qkv, FindLinear(finder, chooser,
                                               {{name(names.q), q_rows, heads.q_bias},
                                                {name(names.k), kv_rows, heads.k_bias},
                                                {name(names.v), kv_rows, heads.v_bias}},
                                               hidden));
  QUIRE_ASSIGN_OR_RETURN(
      slots.o, FindLinear(finder, chooser, {{name(names.o), hidden, heads.o_bias}}, q_rows));
  QUIRE_ASSIGN_OR_RETURN(slots.mlp_in,
                         finder.Find(absl::StrCat(name(names.mlp_in), ".weight"), {hidden}));
  QUIRE_ASSIGN_OR_RETURN(slots.gate_up,
                         FindLinear(finder, chooser,
                                    {{name(names.gate), inner, layer.dense.gate_bias},
                                     {name(names.up), inner, layer.dense.up_bias}},
                                    hidden));
  QUIRE_ASSIGN_OR_RETURN(
      slots.down,
      FindLinear(finder, chooser, {{name(names.down), hidden, layer.dense.down_bias}}, inner));
  return slots;
}

// The number behind the prefix of a layer's tensor, or -1.
std::int64_t LayerOf(absl::string_view name, absl::string_view prefix) {
  if (!absl::StartsWith(name, prefix)) return -1;
  name.remove_prefix(prefix.size());
  std::int64_t number = -1;
  const std::size_t dot = name.find('.');
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &number)) return -1;
  return number;
}

// Tensors that publishers leave in files and that no family computes with: buffers, and layers
// behind the last one, which hold heads for predicting several tokens.
bool IsIgnorable(const ModelSpec& spec, const TensorNames& names, const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::EndsWith(name, ".attn.bias") ||
         absl::EndsWith(name, ".masked_bias") || absl::StartsWith(name, "mtp.") ||
         absl::StartsWith(name, "model.mtp.") ||
         LayerOf(name, names.layer_prefix) >= static_cast<std::int64_t>(spec.layers.size());
}

absl::Status CheckUnused(const SlotFinder& finder, const ModelSpec& spec, const TensorNames& names,
                         const Checkpoint& checkpoint, WeightSlots* slots) {
  std::size_t behind = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (finder.IsUsed(tensor)) continue;
    if (!IsIgnorable(spec, names, tensor.name)) {
      return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name,
                                                     " has no place in this architecture"));
    }
    if (LayerOf(tensor.name, names.layer_prefix) >= static_cast<std::int64_t>(spec.layers.size())) {
      ++behind;
    }
  }
  if (behind > 0) {
    slots->warnings.push_back(absl::StrCat(behind, " tensors of layers behind num_hidden_layers ",
                                           spec.layers.size(), " are not used"));
  }
  return absl::OkStatus();
}

absl::Status FindHead(SlotFinder& finder, const FormChooser& chooser, const ModelSpec& spec,
                      const TensorNames& names, const Checkpoint& checkpoint, WeightSlots* slots) {
  const std::string weight_name = absl::StrCat(names.head, ".weight");
  if (!spec.tie_embeddings) {
    QUIRE_ASSIGN_OR_RETURN(
        slots->head, FindLinear(finder, chooser,
                                {{std::string(names.head), {spec.vocab_size, "vocab_size"}, false}},
                                {spec.hidden, "hidden_size"}, /*is_head=*/true));
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(slots->head.matrices,
                         chooser.Matrices({slots->embedding}, /*is_head=*/true));
  slots->head.n = spec.vocab_size;
  slots->head.k = spec.hidden;
  const StoredTensor* stored = checkpoint.Find(weight_name);
  if (stored == nullptr) return absl::OkStatus();
  finder.MarkUsed(stored);
  if (stored->type != slots->embedding->type ||
      !std::equal(stored->bytes.begin(), stored->bytes.end(), slots->embedding->bytes.begin(),
                  slots->embedding->bytes.end())) {
    slots->warnings.push_back(absl::StrCat("tensor ", weight_name,
                                           " differs from the embedding and is not used, since ",
                                           "tie_word_embeddings is true"));
  }
  return absl::OkStatus();
}

// Calls fn(matrix, is_head) for each matrix.
template <typename Fn>
void ForEachMatrix(const WeightSlots& slots, Fn&& fn) {
  for (const LayerSlots& layer : slots.layers) {
    for (const LinearSlot* slot : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      for (const MatrixSlot& matrix : slot->matrices) fn(matrix, false);
    }
  }
  for (const MatrixSlot& matrix : slots.head.matrices) fn(matrix, true);
}

void CountParameters(const SlotFinder& finder, const ModelSpec& spec, const TensorNames& names,
                     WeightSlots* slots) {
  const std::string tied_head = absl::StrCat(names.head, ".weight");
  std::array<std::int64_t, 4> by_type{};
  constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kInvalid};
  for (const StoredTensor* tensor : finder.used()) {
    if (spec.tie_embeddings && tensor->name == tied_head) continue;
    slots->parameter_count += tensor->num_elements();
    for (std::size_t i = 0; i < by_type.size(); ++i) {
      if (tensor->dtype == kTypes[i]) by_type[i] += tensor->num_elements();
    }
  }
  const auto most = std::max_element(by_type.begin(), by_type.end()) - by_type.begin();
  slots->stored_dtype = kTypes[most];
}

// The integer form of most of the layers' weights that have one; empty when none has.
std::string MostIntegerForm(const WeightSlots& slots) {
  std::map<std::string, std::int64_t> elements;
  ForEachMatrix(slots, [&](const MatrixSlot& slot, bool is_head) {
    if (is_head || slot.form.is_plain()) return;
    elements[FormName(slot.form)] += std::int64_t{slot.n} * slot.k;
  });
  if (elements.empty()) return "";
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void WarnOfSecondRounding(const WeightTarget& target, WeightSlots* slots) {
  const StoredTensor* blocks = nullptr;
  ForEachMatrix(*slots, [&](const MatrixSlot& slot, bool) {
    for (const StoredTensor* part : slot.parts) {
      if (!IsBlocks(*part) || slot.form.is_plain() || slot.form == StoredForm(*part)) continue;
      if (blocks == nullptr) blocks = part;
    }
  });
  if (blocks != nullptr) {
    slots->warnings.push_back(absl::StrCat(
        "model.quantization ", QuantizationName(target.quantization), " rounds weights again that ",
        "the file holds as ", blocks->type, ", such as ", blocks->name, "; auto would not"));
  }
}

std::int64_t MatrixBytes(const MatrixSlot& slot, const WeightTarget& target) {
  if (!slot.form.is_plain()) return kernels::QuantizedBytes(slot.form.ShapeOf(slot.n, slot.k));
  if (target.cuda) {
    const DType dtype = target.activation == DType::kBF16 ? DType::kBF16 : slot.form.dtype;
    return std::int64_t{slot.n} * slot.k * DTypeSize(dtype);
  }
  constexpr std::int64_t kPanel = kernels::PackedLinear::kPanel;
  const std::int64_t panels = (std::int64_t{slot.n} + kPanel - 1) / kPanel;
  const std::int64_t columns = (std::int64_t{slot.k} + 1) / 2 * 2;
  return panels * kPanel * columns * DTypeSize(slot.form.dtype);
}

// Calls fn(elements) for each norm and each bias.
template <typename Fn>
void ForEachVector(const WeightSlots& slots, Fn&& fn) {
  const auto linear = [&](const LinearSlot& slot) {
    if (!slot.biases.empty()) fn(std::int64_t{slot.n});
  };
  for (const LayerSlots& layer : slots.layers) {
    fn(layer.attn_in->num_elements());
    fn(layer.mlp_in->num_elements());
    for (const LinearSlot* slot : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      linear(*slot);
    }
  }
  fn(slots.final_norm->num_elements());
  linear(slots.head);
}

}  // namespace

absl::StatusOr<WeightSlots> FindWeights(const ModelSpec& spec, const TensorNames& names,
                                        const Checkpoint& checkpoint, const WeightTarget& target) {
  QUIRE_RETURN_IF_ERROR(CheckQuantization(target.quantization, target.cuda));
  SlotFinder finder(checkpoint);
  const FormChooser chooser(target);
  WeightSlots slots;
  QUIRE_ASSIGN_OR_RETURN(slots.embedding, finder.Find(absl::StrCat(names.embedding, ".weight"),
                                                      {{spec.vocab_size, "vocab_size"},
                                                       {spec.hidden, "hidden_size"}}));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(LayerSlots layer, FindLayer(finder, chooser, spec, names, i));
    slots.layers.push_back(std::move(layer));
  }
  QUIRE_ASSIGN_OR_RETURN(slots.final_norm, finder.Find(absl::StrCat(names.final_norm, ".weight"),
                                                       {{spec.hidden, "hidden_size"}}));
  QUIRE_RETURN_IF_ERROR(FindHead(finder, chooser, spec, names, checkpoint, &slots));
  QUIRE_RETURN_IF_ERROR(CheckUnused(finder, spec, names, checkpoint, &slots));
  CountParameters(finder, spec, names, &slots);
  slots.integer_format = MostIntegerForm(slots);
  WarnOfSecondRounding(target, &slots);
  return slots;
}

std::int64_t VectorFloats(const WeightSlots& slots) {
  std::int64_t floats = 0;
  ForEachVector(slots, [&](std::int64_t count) { floats += PaddedVector(count); });
  return floats;
}

DType EmbeddingDType(const StoredTensor& embedding, Quantization quantization) {
  if (!IsBlocks(embedding)) return embedding.dtype;
  return quantization == Quantization::kNone ? DType::kF32 : DType::kF16;
}

bool HasIntegers(const WeightSlots& slots) {
  bool has = false;
  ForEachMatrix(slots, [&](const MatrixSlot& slot, bool) { has |= !slot.form.is_plain(); });
  return has;
}

std::int64_t WeightBytes(const WeightSlots& slots, const WeightTarget& target) {
  std::int64_t bytes = VectorFloats(slots) * static_cast<std::int64_t>(sizeof(float)) +
                       slots.embedding->num_elements() *
                           DTypeSize(EmbeddingDType(*slots.embedding, target.quantization));
  ForEachMatrix(slots, [&](const MatrixSlot& slot, bool) { bytes += MatrixBytes(slot, target); });
  return bytes;
}

}  // namespace quire::models
