#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "models/config/layer_spec.h"
#include "models/config/tensor_table.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "models/weights/quantization.h"

namespace quire::models {

// A matrix in memory: the concatenated rows of its parts.
struct MatrixSlot {
  std::vector<const formats::StoredTensor*> parts;  // [rows, k] each
  std::uint32_t n = 0;                              // rows of all parts
  std::uint32_t k = 0;
  MatrixForm form;
};

// Tensors that share their input and are multiplied together, such as q, k and v. They are one
// matrix, unless their forms differ, as in GGUF files with mixed types (FormChooser::Matrices).
struct LinearSlot {
  std::vector<MatrixSlot> matrices;
  std::vector<const formats::StoredTensor*> biases;  // [rows] each; empty: no bias
  std::uint32_t n = 0;                               // rows of all matrices
  std::uint32_t k = 0;
};

// The weights of a norm, or another vector that is stored in f32.
struct VectorSlot {
  std::vector<const formats::StoredTensor*> parts;  // concatenated; empty: no such vector
  float offset = 0;  // added to every element, NormSpec::weight_offset
  float scale = 1;   // multiplies every element before `offset` is added, NormSpec::weight_scale
};

using LayerSlots = LayerTensors<VectorSlot, LinearSlot>;

// The tensor of a checkpoint for each weight of a spec. Must not outlive the checkpoint.
struct WeightSlots {
  const formats::StoredTensor* embedding = nullptr;  // [vocab, hidden]
  std::vector<LayerSlots> layers;
  // Per-layer inputs (PerLayerInputSpec); empty if the model has none. The first two tensors
  // concatenate the columns or rows of all layers.
  const formats::StoredTensor* input_embedding = nullptr;  // [vocab, layers * input]
  LinearSlot input_context;                                // [layers * input, hidden]
  VectorSlot input_norm;                                   // [input]
  VectorSlot final_norm;                                   // [hidden]
  LinearSlot head;  // the embedding if tied; empty without ModelSpec::has_head
  const formats::StoredTensor* labels = nullptr;  // [labels, hidden]; null: no labels
  std::int64_t parameter_count = 0;               // a tied matrix counts once
  DType stored_dtype = DType::kInvalid;           // dtype of most parameters; kInvalid: quantized
  // Form that most of the quantized layer weights have: "int4_g32"; empty if none is quantized.
  std::string quantized_format;
  std::vector<std::string> warnings;
  // Parts of stored tensors that slots point to, such as one expert of a stack.
  std::vector<std::shared_ptr<const formats::StoredTensor>> pieces;
};

// The device that weights are loaded to, and how they are converted.
struct WeightTarget {
  bool cuda = false;
  DType activation = DType::kF32;
  Quantization quantization = Quantization::kAuto;
  bool fp8_activations = false;  // quantize activations to e4m3 where weights are fp8
  bool dummy = false;            // weights are made up and unquantized
  bool multiplies_fp8 = false;   // the GPU multiplies e4m3 by e4m3; used for warnings
};

// Finds every tensor, checks shapes and types, rejects tensors that the model does not use, and
// chooses the form of every matrix. REQUIRES: CheckSupported(spec) is OK.
//
// Returns INVALID_ARGUMENT with the tensor's name if its shape is wrong, with both shapes and the
// keys of config.json, or if model.quantization does not support its number of inputs. Also returns
// INVALID_ARGUMENT if fp8_activations is set and no matrix is fp8. Returns UNIMPLEMENTED for a type
// that the device does not support, and for experts of one layer that a GPU would store in
// different forms.
absl::StatusOr<WeightSlots> FindWeights(const ModelSpec& spec, const TensorNames& names,
                                        const Checkpoint& checkpoint, const WeightTarget& target);

// Returns the number of floats that a norm or bias occupies. Each norm or bias starts at a multiple
// of 256 bytes.
constexpr std::int64_t PaddedVector(std::int64_t elements) {
  return (elements + 63) / 64 * 64;
}
// Returns the number of floats of all norms and biases together.
std::int64_t VectorFloats(const WeightSlots& slots);

// Returns the dtype of the embedding in memory. An unquantized embedding keeps its stored dtype.
// GGML blocks become f16, or f32 with Quantization::kNone. Other quantized weights become f32.
DType EmbeddingDType(const formats::StoredTensor& embedding, Quantization quantization);

// The kinds of quantized matrices that a model has, the head included.
struct QuantizedMatrices {
  bool integers = false;
  bool act_orders = false;  // integers with an act-order permutation
  bool fp8 = false;
};
QuantizedMatrices QuantizedMatricesOf(const WeightSlots& slots);

// Returns the bytes of the matrices of a slot. On a GPU they are part of their layer's allocation.
std::int64_t MatrixBytes(const LinearSlot& slot, const WeightTarget& target);
// Returns exactly the number of bytes that Weights::Load allocates for its result.
std::int64_t WeightBytes(const WeightSlots& slots, const WeightTarget& target);

// Packed matrices with the same input, and a bias for their concatenated outputs.
struct LinearWeights {
  std::vector<kernels::PackedLinear> matrices;  // [n, k] each; rarely more than one
  const float* bias = nullptr;                  // [outputs of all matrices]; null: no bias
};

// y = W x + bias + residual over all matrices. `params` are the parameters of kernels::Linear
// without weight and bias. REQUIRES: params.store is null, unless there is one matrix.
absl::Status ApplyLinear(const kernels::Backend& backend, const LinearWeights& weights,
                         kernels::LinearParams params);
// ApplyLinear for the rows of every group. `params` are the parameters of
// kernels::GroupedLinear without weights.
absl::Status ApplyGroups(const kernels::Backend& backend,
                         std::span<const kernels::LinearGroups> weights,
                         kernels::GroupedLinearParams params);

using MlaWeights = MlaTensors<const float*, LinearWeights>;
using RecurrentWeights = RecurrentTensors<const float*, LinearWeights>;

// On a GPU the matrices of one kind are equally spaced from expert to expert, and so are their
// biases. gate_up_groups[i] and down_groups[i] describe matrix i of every expert.
struct MoeWeights : MoeTensors<const float*, LinearWeights> {
  std::vector<kernels::LinearGroups> gate_up_groups;
  std::vector<kernels::LinearGroups> down_groups;
};

// Norm weights already include NormSpec::weight_scale and weight_offset. Vectors that the spec does
// not use are null.
using LayerWeights = LayerTensors<const float*, LinearWeights, MoeWeights>;

// Matrices that share an input, and their name inside the layer: "experts.7.gate_up".
template <typename Linear>
struct NamedLinear {
  std::string name;
  Linear* linear;
};

// Returns the matrices of a layer in the order in which they lie in memory; those that the layer
// does not have are empty. `Layer` is LayerSlots or LayerWeights, const or not.
template <typename Layer>
auto LinearsOf(Layer& layer) {
  using Linear = std::remove_reference_t<decltype((layer.qkv))>;
  std::vector<NamedLinear<Linear>> linears;
  // Several rows of the tensor table may describe the same member, which is listed once.
  ForEachRow(layer, [&](BlockKind, const auto& row, auto& block) {
    if (row.linear != nullptr) {
      Linear* const linear = &(block.*row.linear);
      if (!linears.empty() && linears.back().linear == linear) return;
      linears.push_back({std::string(row.info.label), linear});
    }
    if (row.linears == nullptr) return;
    const bool experts = row.info.kind == TensorKind::kExpertMatrices;
    auto& list = block.*row.linears;
    if (!list.empty() && linears.back().linear == &list.back()) return;
    for (std::size_t i = 0; i < list.size(); ++i) {
      linears.push_back(
          {absl::StrCat(experts ? "experts." : "heads.", i, ".", row.info.label), &list[i]});
    }
  });
  return linears;
}

// Returns the vectors of a layer in the order in which they lie in memory, biases excluded.
template <typename Layer>
auto VectorsOf(Layer& layer) {
  using Vector = std::remove_reference_t<decltype((layer.attn_in))>;
  std::vector<Vector*> vectors;
  ForEachRow(layer, [&](BlockKind, const auto& row, auto& block) {
    if (row.vector == nullptr) return;
    Vector* const vector = &(block.*row.vector);
    if (vectors.empty() || vectors.back() != vector) vectors.push_back(vector);
  });
  return vectors;
}

// All weights in the layout of the kernels and in the memory of the backend.
//
// Place:      made by LoadModel, read by the decoder.
// Invariants: every value is finite. On a GPU the matrices of a layer lie in one allocation, in the
//             order of LinearsOf. The embeddings, input_context and the output head have one
//             allocation each. All vectors share one allocation.
// Threads:    immutable after Load.
// Lifetime:   owns its memory; the checkpoint may be destroyed after Load.
class Weights {
 public:
  // Reads and packs with all threads, and logs its progress. Returns INVALID_ARGUMENT for an
  // element that is NaN or infinite (with the tensor, the element and its value) and for a scale
  // beyond f16 (with the tensor and the row). Returns RESOURCE_EXHAUSTED if memory cannot be
  // allocated. REQUIRES: the slots were found for the same target; on a GPU the backend has an
  // uploader.
  static absl::StatusOr<Weights> Load(const WeightSlots& slots, const kernels::Backend& backend,
                                      const WeightTarget& target);

  // Allocates the memory that Load would fill, all zero, for weights that an earlier process
  // packed. CPU only.
  static absl::StatusOr<Weights> Allocate(const WeightSlots& slots, Quantization quantization,
                                          const kernels::Backend& backend);

  // A piece of memory and its contents: "layers.3.down int4_g32 [2048, 8192]".
  struct Section {
    std::string label;
    std::span<std::byte> bytes;
  };
  // Returns all memory, in a fixed order. REQUIRES: made for the CPU.
  std::vector<Section> Sections() const;

  const void* embedding() const { return embedding_.data(); }  // [vocab, hidden]
  DType embedding_dtype() const { return embedding_dtype_; }
  // Per-layer inputs; null or empty without ModelSpec::layer_inputs.
  const void* input_embedding() const { return input_embedding_.data(); }
  DType input_embedding_dtype() const { return input_embedding_dtype_; }
  const LinearWeights& input_context() const { return input_context_; }
  const float* input_norm() const { return input_norm_; }
  std::span<const LayerWeights> layers() const { return layers_; }
  const float* final_norm() const { return final_norm_; }  // [hidden]
  const LinearWeights& head() const { return head_; }
  std::int64_t size_bytes() const;

 private:
  Weights() = default;

  DeviceBuffer embedding_;
  DType embedding_dtype_ = DType::kInvalid;
  DeviceBuffer input_embedding_;
  DType input_embedding_dtype_ = DType::kInvalid;
  LinearWeights input_context_;
  const float* input_norm_ = nullptr;
  DeviceBuffer vectors_;  // norms and biases
  // GPU: the allocations of input_context if there is one, of each layer, and of the head.
  std::vector<DeviceBuffer> matrices_;
  std::vector<LayerWeights> layers_;
  const float* final_norm_ = nullptr;
  LinearWeights head_;
};

}  // namespace quire::models
