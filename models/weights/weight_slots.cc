#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "models/weights/layer_slots.h"
#include "models/weights/slot_finder.h"
#include "models/weights/stored_rows.h"
#include "models/weights/weights.h"

namespace quire::models {
namespace {

// Returns the layer number of a tensor's name, or -1 if it has none.
std::int64_t LayerOf(absl::string_view name, absl::string_view prefix) {
  if (!absl::StartsWith(name, prefix)) return -1;
  name.remove_prefix(prefix.size());
  std::int64_t number = -1;
  const std::size_t dot = name.find('.');
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &number)) return -1;
  return number;
}

// True for the projections and norms of K and V of layers that read the K and V of an earlier
// layer. Published files have these tensors, but the computation does not use them.
bool IsUnusedSharedKv(const ModelSpec& spec, const TensorNames& names, const std::string& name) {
  const std::int64_t number = LayerOf(name, names.layer_prefix);
  if (number < 0 || number >= static_cast<std::int64_t>(spec.layers.size())) return false;
  const auto layer = static_cast<std::size_t>(number);
  if (spec.layers[layer].kv_from_layer < 0) return false;
  const std::string prefix = LayerPrefix(names, layer);
  return std::ranges::any_of(std::array{names.k, names.v, names.k_norm}, [&](const auto& part) {
    return !part.empty() && absl::StartsWith(name, absl::StrCat(prefix, part, "."));
  });
}

// True for unused tensors that are not an error: buffers, heads for multi-token prediction (stored
// under a prefix or as layers after the last one), IsUnusedSharedKv, and TensorNames::skipped.
bool IsIgnorable(const ModelSpec& spec, const TensorNames& names, const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::EndsWith(name, ".attn.bias") ||
         absl::EndsWith(name, ".masked_bias") || absl::StartsWith(name, "mtp.") ||
         absl::StartsWith(name, "model.mtp.") || IsUnusedSharedKv(spec, names, name) ||
         LayerOf(name, names.layer_prefix) >= static_cast<std::int64_t>(spec.layers.size()) ||
         std::any_of(names.skipped.begin(), names.skipped.end(),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

// True for an all-zero bias, which old quantization tools write for every quantized matrix.
bool IsZeroBias(const Checkpoint& checkpoint, const formats::StoredTensor& tensor) {
  constexpr absl::string_view kBias = ".bias";
  if (!absl::EndsWith(tensor.name, kBias)) return false;
  const formats::StoredTensor* matrix = checkpoint.Find(
      absl::StrCat(tensor.name.substr(0, tensor.name.size() - kBias.size()), ".weight"));
  return matrix != nullptr && matrix->quantized != nullptr &&
         std::all_of(tensor.bytes.begin(), tensor.bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

absl::Status CheckUnused(const SlotFinder& finder, const ModelSpec& spec, const TensorNames& names,
                         const Checkpoint& checkpoint, WeightSlots* slots) {
  std::size_t num_extra = 0;
  for (const formats::StoredTensor& tensor : checkpoint.tensors()) {
    if (finder.IsUsed(tensor)) continue;
    if (!IsIgnorable(spec, names, tensor.name) && !IsZeroBias(checkpoint, tensor)) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.file, ": tensor ", tensor.name, " is not used by this architecture"));
    }
    if (LayerOf(tensor.name, names.layer_prefix) >= static_cast<std::int64_t>(spec.layers.size())) {
      ++num_extra;
    }
  }
  if (num_extra > 0) {
    slots->warnings.push_back(absl::StrCat(num_extra,
                                           " tensors of layers beyond num_hidden_layers ",
                                           spec.layers.size(), " are not used"));
  }
  return absl::OkStatus();
}

absl::Status FindHead(SlotFinder& finder, const FormChooser& chooser, const ModelSpec& spec,
                      const TensorNames& names, WeightSlots* slots) {
  if (spec.num_labels > 0) {
    QUIRE_ASSIGN_OR_RETURN(slots->labels,
                           finder.Find("score.weight", {{spec.num_labels, "num_labels"},
                                                        {spec.hidden, "hidden_size"}}));
  }
  if (!spec.has_head) return absl::OkStatus();
  const std::string weight_name = absl::StrCat(names.head, ".weight");
  if (!spec.tie_embeddings) {
    QUIRE_ASSIGN_OR_RETURN(
        slots->head, FindLinear(finder, chooser,
                                {{std::string(names.head), {spec.vocab_size, "vocab_size"}, false}},
                                {spec.hidden, "hidden_size"}, MatrixRole::kHead));
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(slots->head.matrices,
                         chooser.Matrices({slots->embedding}, MatrixRole::kHead));
  slots->head.n = spec.vocab_size;
  slots->head.k = spec.hidden;
  const formats::StoredTensor* stored = finder.Peek(weight_name);
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
    for (const auto& [name, slot] : LinearsOf(layer)) {
      for (const MatrixSlot& matrix : slot->matrices) fn(matrix, false);
    }
  }
  for (const MatrixSlot& matrix : slots.input_context.matrices) fn(matrix, false);
  for (const MatrixSlot& matrix : slots.head.matrices) fn(matrix, true);
}

void CountParameters(const SlotFinder& finder, const ModelSpec& spec, const TensorNames& names,
                     WeightSlots* slots) {
  const std::string tied_head = absl::StrCat(names.head, ".weight");
  std::array<std::int64_t, 4> by_type{};
  constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kInvalid};
  for (const formats::StoredTensor* tensor : finder.used()) {
    if (spec.tie_embeddings && tensor->name == tied_head) continue;
    slots->parameter_count += tensor->num_elements();
    for (std::size_t i = 0; i < by_type.size(); ++i) {
      if (tensor->dtype == kTypes[i]) by_type[i] += tensor->num_elements();
    }
  }
  const auto most = std::max_element(by_type.begin(), by_type.end()) - by_type.begin();
  slots->stored_dtype = kTypes[most];
}

// Returns the form that most of the quantized layer weights have; empty if none is quantized.
std::string MostCommonQuantizedForm(const WeightSlots& slots) {
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

// Returns the lists of matrices that have an element per expert.
template <typename Layer>
auto ExpertsOf(Layer& layer) {
  std::vector<std::remove_reference_t<decltype((layer.moe.gate_up))>*> experts;
  ForEachRow(layer, [&](BlockKind, const auto& row, auto& block) {
    if (row.info.kind == TensorKind::kExpertMatrices) experts.push_back(&(block.*row.linears));
  });
  return experts;
}

// Returns the first matrix of a slot whose form on a GPU differs from that of `like`, or null.
const MatrixSlot* FindDifferentForm(const LinearSlot& slot, const LinearSlot& like,
                                    const WeightTarget& target) {
  const auto gpu_form = [&target](MatrixForm form) {
    // GPUs store unquantized weights in the dtype of activations (CudaPacking).
    if (form.is_plain() && target.activation == DType::kBF16) form.dtype = DType::kBF16;
    return form;
  };
  for (std::size_t i = 0; i < slot.matrices.size(); ++i) {
    const MatrixSlot& matrix = slot.matrices[i];
    if (i >= like.matrices.size() || matrix.n != like.matrices[i].n ||
        gpu_form(matrix.form) != gpu_form(like.matrices[i].form)) {
      return &matrix;
    }
  }
  return nullptr;
}

// GPUs compute all experts of a layer in one launch, so the experts must have the same form.
absl::Status CheckExpertForms(const WeightTarget& target, const WeightSlots& slots) {
  for (const LayerSlots& layer : slots.layers) {
    for (const std::vector<LinearSlot>* experts : ExpertsOf(layer)) {
      for (const LinearSlot& expert : *experts) {
        const LinearSlot& first = experts->front();
        const MatrixSlot* const other = FindDifferentForm(expert, first, target);
        if (other == nullptr) continue;
        const MatrixSlot& like = first.matrices[0];
        return absl::UnimplementedError(absl::StrCat(
            other->parts[0]->file, ": tensor ", other->parts[0]->name, " would be stored as ",
            FormName(other->form), ", but ", like.parts[0]->name, " as ", FormName(like.form),
            "; GPUs need all experts of a layer in one format; set model.quantization to ",
            "\"int8_g32\" to convert them"));
      }
    }
  }
  return absl::OkStatus();
}

// Warns about quantized weights that no kernel supports. They are dequantized and need more memory
// than in the file.
void WarnOfWidening(const WeightTarget& target, WeightSlots* slots) {
  if (target.quantization != Quantization::kAuto) return;
  const formats::StoredTensor* wide = nullptr;
  DType dtype = DType::kInvalid;
  ForEachMatrix(*slots, [&](const MatrixSlot& slot, bool) {
    for (const formats::StoredTensor* part : slot.parts) {
      if (wide != nullptr || part->quantized == nullptr || !slot.form.is_plain()) continue;
      wide = part;
      dtype = slot.form.dtype;
    }
  });
  if (wide == nullptr) return;
  if (target.cuda && target.activation == DType::kBF16) dtype = DType::kBF16;
  slots->warnings.push_back(absl::StrCat(
      "weights that are stored as ", wide->type, ", such as ", wide->name, ", are converted to ",
      DTypeName(dtype), ", ", DTypeSize(dtype), " bytes each, since no kernel reads the stored ",
      "format without loss; model.quantization int8_g32 quantizes them to about 1 byte each"));
}

void WarnOfRequantization(const WeightTarget& target, WeightSlots* slots) {
  const formats::StoredTensor* example = nullptr;
  ForEachMatrix(*slots, [&](const MatrixSlot& slot, bool) {
    for (const formats::StoredTensor* part : slot.parts) {
      if (!part->is_quantized() || slot.form.is_plain() || slot.form == StoredForm(*part)) continue;
      if (example == nullptr) example = part;
    }
  });
  if (example != nullptr) {
    slots->warnings.push_back(
        absl::StrCat("model.quantization ", QuantizationName(target.quantization),
                     " requantizes weights that are stored as ", example->type, ", such as ",
                     example->name, "; auto keeps them as stored"));
  }
}

absl::Status NoFp8Error(const WeightTarget& target) {
  std::string why = absl::StrCat("model.quantization ", QuantizationName(target.quantization));
  if (target.dummy) {
    why = "model.load_mode dummy creates unquantized weights";
  } else if (target.quantization == Quantization::kAuto) {
    absl::StrAppend(&why, " finds no fp8_e4m3 weights in the files that it can keep as stored");
  } else {
    absl::StrAppend(&why, " converts them; auto keeps weights that are stored as fp8_e4m3");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "model.fp8_activations requires fp8_e4m3 weights, and no matrix of this model has ",
      "them: ", why));
}

// Turns on dynamic activation quantization for fp8 matrices. The matrices of experts are not
// row-major, since GroupedLinear does not run on fp8 tensor cores.
absl::Status QuantizeFp8Activations(const WeightTarget& target, WeightSlots* slots) {
  bool has_fp8 = false;
  const bool allows_row_major = target.cuda && target.activation == DType::kBF16;
  const auto quantize_inputs = [&](LinearSlot* slot) {
    for (MatrixSlot& matrix : slot->matrices) {
      if (!matrix.form.is_fp8()) continue;
      has_fp8 = true;
      matrix.form.quantizes_activations = true;
      matrix.form.allows_row_major = allows_row_major;
      if (!target.cuda) continue;
      const absl::Status checked =
          kernels::CheckCudaQuantizedShape(matrix.form.ShapeOf(matrix.n, matrix.k));
      if (checked.ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(matrix.parts[0]->file, ": tensor ", matrix.parts[0]->name,
                       ": model.fp8_activations: ", checked.message()));
    }
    return absl::OkStatus();
  };
  for (LayerSlots& layer : slots->layers) {
    for (const auto& [name, slot] : LinearsOf(layer)) QUIRE_RETURN_IF_ERROR(quantize_inputs(slot));
  }
  QUIRE_RETURN_IF_ERROR(quantize_inputs(&slots->input_context));
  QUIRE_RETURN_IF_ERROR(quantize_inputs(&slots->head));
  for (LayerSlots& layer : slots->layers) {
    for (std::vector<LinearSlot>* const experts : ExpertsOf(layer)) {
      for (LinearSlot& expert : *experts) {
        for (MatrixSlot& matrix : expert.matrices) matrix.form.allows_row_major = false;
      }
    }
  }
  return has_fp8 ? absl::OkStatus() : NoFp8Error(target);
}

void WarnOfUselessFp8Activations(const WeightTarget& target, WeightSlots* slots) {
  std::int64_t quantized = 0, useless = 0;
  const MatrixSlot* first = nullptr;
  ForEachMatrix(*slots, [&](const MatrixSlot& slot, bool) {
    if (!slot.form.quantizes_activations) return;
    ++quantized;
    if (target.multiplies_fp8 && kernels::SupportsFp8Product(slot.form.ShapeOf(slot.n, slot.k))) {
      return;
    }
    ++useless;
    if (first == nullptr) first = &slot;
  });
  if (useless == 0) return;
  slots->warnings.push_back(absl::StrCat(
      "model.fp8_activations quantizes the inputs of ", quantized, " matrices, but ", useless,
      " of them, such as ", first->parts[0]->name, ", are not multiplied in fp8, which costs ",
      "accuracy and saves no time; fp8 products need a GPU of compute capability 9.0, bf16 ",
      "activations, a matrix outside the experts, and one scale per row or per group of a ",
      "multiple of 128 inputs"));
}

std::int64_t BytesOf(const MatrixSlot& slot, const WeightTarget& target) {
  if (target.cuda && !slot.form.is_plain()) {
    return kernels::CudaQuantizedPaddedBytes(slot.form.ShapeOf(slot.n, slot.k));
  }
  if (slot.form.is_fp8()) return kernels::Fp8Bytes(slot.form.Fp8ShapeOf(slot.n, slot.k));
  if (slot.form.is_integer()) return kernels::QuantizedBytes(slot.form.ShapeOf(slot.n, slot.k));
  if (target.cuda) {
    return kernels::CudaPlainPaddedBytes(slot.form.dtype, slot.n, slot.k, target.activation);
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
  const auto vector = [&](const VectorSlot& slot) {
    std::int64_t elements = 0;
    for (const formats::StoredTensor* part : slot.parts) elements += part->num_elements();
    if (elements > 0) fn(elements);
  };
  for (const LayerSlots& layer : slots.layers) {
    for (const VectorSlot* slot : VectorsOf(layer)) vector(*slot);
    for (const auto& [name, slot] : LinearsOf(layer)) linear(*slot);
  }
  vector(slots.input_norm);
  vector(slots.final_norm);
  linear(slots.head);
}

// Finds the tensors of PerLayerInputSpec.
absl::Status FindLayerInputs(SlotFinder& finder, const FormChooser& chooser, const ModelSpec& spec,
                             const TensorNames& names, WeightSlots* slots) {
  const PerLayerInputSpec& inputs = spec.layer_inputs;
  if (inputs.size == 0) return absl::OkStatus();
  const Extent size{inputs.size, "hidden_size_per_layer_input"};
  const Extent all{std::int64_t{inputs.size} * static_cast<std::int64_t>(spec.layers.size()),
                   "num_hidden_layers * hidden_size_per_layer_input"};
  QUIRE_ASSIGN_OR_RETURN(slots->input_embedding,
                         finder.Find(absl::StrCat(names.input_embedding, ".weight"),
                                     {{inputs.vocab, "vocab_size_per_layer_input"}, all}));
  QUIRE_ASSIGN_OR_RETURN(
      slots->input_context,
      FindLinear(finder, chooser, {{std::string(names.input_context), all, /*has_bias=*/false}},
                 {spec.hidden, "hidden_size"}));
  QUIRE_ASSIGN_OR_RETURN(slots->input_norm,
                         FindNorm(finder, inputs.norm, std::string(names.input_norm), size));
  return absl::OkStatus();
}

// Checkpoints of a model class without a head ("LlamaModel") omit the prefix "model." in tensor
// names. So do embedding models that were made from such a class.
TensorNames NamesIn(const Checkpoint& checkpoint, TensorNames names) {
  constexpr absl::string_view kPrefix = "model.";
  if (checkpoint.Find(absl::StrCat(names.embedding, ".weight")) != nullptr) return names;
  const absl::string_view bare = absl::StripPrefix(names.embedding, kPrefix);
  if (checkpoint.Find(absl::StrCat(bare, ".weight")) == nullptr) return names;
  for (absl::string_view* name :
       {&names.embedding, &names.final_norm, &names.layer_prefix, &names.input_embedding,
        &names.input_context, &names.input_norm}) {
    absl::ConsumePrefix(name, kPrefix);
  }
  return names;
}

}  // namespace

absl::StatusOr<WeightSlots> FindWeights(const ModelSpec& spec, const TensorNames& family_names,
                                        const Checkpoint& checkpoint, const WeightTarget& target) {
  const TensorNames names = NamesIn(checkpoint, family_names);
  SlotFinder finder(checkpoint);
  const FormChooser chooser(target);
  WeightSlots slots;
  QUIRE_ASSIGN_OR_RETURN(slots.embedding, finder.Find(absl::StrCat(names.embedding, ".weight"),
                                                      {{spec.vocab_size, "vocab_size"},
                                                       {spec.hidden, "hidden_size"}}));
  QUIRE_RETURN_IF_ERROR(FindLayerInputs(finder, chooser, spec, names, &slots));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(LayerSlots layer, FindLayer(finder, chooser, spec, names, i));
    slots.layers.push_back(std::move(layer));
  }
  QUIRE_ASSIGN_OR_RETURN(slots.final_norm,
                         FindNorm(finder, spec.final_norm, std::string(names.final_norm),
                                  {spec.hidden, "hidden_size"}));
  QUIRE_RETURN_IF_ERROR(FindHead(finder, chooser, spec, names, &slots));
  QUIRE_RETURN_IF_ERROR(CheckUnused(finder, spec, names, checkpoint, &slots));
  slots.pieces = finder.TakePieces();
  CountParameters(finder, spec, names, &slots);
  if (target.cuda) QUIRE_RETURN_IF_ERROR(CheckExpertForms(target, slots));
  slots.quantized_format = MostCommonQuantizedForm(slots);
  WarnOfRequantization(target, &slots);
  WarnOfWidening(target, &slots);
  if (target.fp8_activations) QUIRE_RETURN_IF_ERROR(QuantizeFp8Activations(target, &slots));
  WarnOfUselessFp8Activations(target, &slots);
  return slots;
}

std::int64_t VectorFloats(const WeightSlots& slots) {
  std::int64_t floats = 0;
  ForEachVector(slots, [&](std::int64_t count) { floats += PaddedVector(count); });
  return floats;
}

DType EmbeddingDType(const formats::StoredTensor& embedding, Quantization quantization) {
  if (!embedding.is_quantized()) return embedding.dtype;
  if (embedding.quantized != nullptr) return DType::kF32;
  return quantization == Quantization::kNone ? DType::kF32 : DType::kF16;
}

QuantizedMatrices QuantizedMatricesOf(const WeightSlots& slots) {
  QuantizedMatrices quantized;
  ForEachMatrix(slots, [&](const MatrixSlot& slot, bool) {
    quantized.integers |= slot.form.is_integer();
    quantized.act_orders |= slot.form.has_act_order;
    quantized.fp8 |= slot.form.is_fp8();
  });
  return quantized;
}

std::int64_t MatrixBytes(const LinearSlot& slot, const WeightTarget& target) {
  std::int64_t bytes = 0;
  for (const MatrixSlot& matrix : slot.matrices) bytes += BytesOf(matrix, target);
  return bytes;
}

std::int64_t WeightBytes(const WeightSlots& slots, const WeightTarget& target) {
  std::int64_t bytes = VectorFloats(slots) * static_cast<std::int64_t>(sizeof(float)) +
                       slots.embedding->num_elements() *
                           DTypeSize(EmbeddingDType(*slots.embedding, target.quantization));
  for (const LayerSlots& layer : slots.layers) {
    for (const auto& [name, slot] : LinearsOf(layer)) bytes += MatrixBytes(*slot, target);
  }
  if (slots.input_embedding != nullptr) {
    bytes += slots.input_embedding->num_elements() *
             DTypeSize(EmbeddingDType(*slots.input_embedding, target.quantization));
  }
  return bytes + MatrixBytes(slots.input_context, target) + MatrixBytes(slots.head, target);
}

}  // namespace quire::models
