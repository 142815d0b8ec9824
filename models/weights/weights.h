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
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "models/weights/quantization.h"

namespace quire::models {

// One matrix as it will lie in memory: the rows of its parts one below the other.
struct MatrixSlot {
  std::vector<const formats::StoredTensor*> parts;  // [rows, k] each
  std::uint32_t n = 0;                              // rows of all parts
  std::uint32_t k = 0;
  MatrixForm form;
};

// What of a layer shares its input and is computed together, such as q, k and v. One matrix, unless
// the parts are held in different forms, as mixtures of block types in GGUF files are: then one for
// each run of parts of one form.
struct LinearSlot {
  std::vector<MatrixSlot> matrices;
  std::vector<const formats::StoredTensor*> biases;  // [rows] each; empty: no bias
  std::uint32_t n = 0;                               // rows of all matrices
  std::uint32_t k = 0;
};

// Weights of a norm, or another vector that is held in f32.
struct VectorSlot {
  const formats::StoredTensor* tensor = nullptr;  // null: the spec has none
  float offset = 0;                               // added to every element, NormSpec::weight_offset
};

// A mixture of experts. Empty where the layer is dense.
struct MoeSlots {
  LinearSlot router;                // [experts, hidden], never converted
  VectorSlot choice_bias;           // [experts]
  std::vector<LinearSlot> gate_up;  // of each expert: gate, up
  std::vector<LinearSlot> down;     // of each expert
  LinearSlot shared_gate_up;
  LinearSlot shared_down;
  LinearSlot shared_gate;  // [1, hidden], never converted
};

// Multi-head latent attention. Empty where a layer has heads.
struct MlaSlots {
  LinearSlot q_a;                       // [q rank, hidden], none without a rank
  VectorSlot q_a_norm;                  // [q rank]
  LinearSlot q;                         // [heads * (nope + rope), q rank or hidden]
  LinearSlot kv_a;                      // [rank + rope, hidden]
  VectorSlot kv_a_norm;                 // [rank]
  std::vector<LinearSlot> to_latent;    // [rank, nope] of each head
  std::vector<LinearSlot> from_latent;  // [v, rank] of each head
};

struct LayerSlots {
  VectorSlot attn_in;  // [hidden]
  LinearSlot qkv;      // q, k, v, or one fused matrix
  VectorSlot q_norm;   // [head size], or of all heads
  VectorSlot k_norm;   // [head size], or of all KV heads
  VectorSlot sinks;    // [heads]
  MlaSlots mla;
  LinearSlot o;
  VectorSlot attn_out;  // [hidden]
  VectorSlot mlp_in;    // [hidden]
  LinearSlot gate_up;   // gate, up, or one fused matrix
  LinearSlot down;
  MoeSlots moe;
  VectorSlot mlp_out;  // [hidden]
};

// Where each weight of a spec lies in a checkpoint. Valid as long as the checkpoint.
struct WeightSlots {
  const formats::StoredTensor* embedding = nullptr;  // [vocab, hidden]
  std::vector<LayerSlots> layers;
  VectorSlot final_norm;  // [hidden]
  LinearSlot head;        // the embedding when tied; empty without ModelSpec::has_head
  const formats::StoredTensor* labels = nullptr;  // [labels, hidden], where there are some
  std::int64_t parameter_count = 0;               // a tied matrix counts once
  DType stored_dtype = DType::kInvalid;           // of most parameters; kInvalid: blocks
  std::string coded_format;  // of most weights of layers: "int4_g32"; empty: none
  std::vector<std::string> warnings;
  // Parts of stored tensors that slots point to, such as one expert of a stack.
  std::vector<std::shared_ptr<const formats::StoredTensor>> pieces;
};

// Where weights go, the CPU or a GPU whose activations have a type of their own, and what they
// become on the way.
struct WeightTarget {
  bool cuda = false;
  DType activation = DType::kF32;
  Quantization quantization = Quantization::kAuto;
  bool fp8_activations = false;  // rows that meet fp8 weights are rounded to e4m3
  bool dummy = false;            // weights are made up, all plain
  bool multiplies_fp8 = false;   // the GPU has products of e4m3 by e4m3, for warnings
};

// Finds every tensor, checks shapes and types, refuses tensors that the model has no place for, and
// chooses the form of every matrix. Returns INVALID_ARGUMENT that names the tensor, both shapes and
// the keys behind them, or the tensor, its inputs and what model.quantization needs; UNIMPLEMENTED
// for a type that is not read, or not by GPUs, and for experts of a layer that a GPU would hold in
// different forms; INVALID_ARGUMENT where activations are to be fp8 and no matrix is. REQUIRES:
// CheckBuilt(spec) is OK.
absl::StatusOr<WeightSlots> FindWeights(const ModelSpec& spec, const TensorNames& names,
                                        const Checkpoint& checkpoint, const WeightTarget& target);

// Floats that a norm or bias takes: each starts at a multiple of 256 bytes.
constexpr std::int64_t PaddedVector(std::int64_t elements) {
  return (elements + 63) / 64 * 64;
}
// Of all norms and biases.
std::int64_t VectorFloats(const WeightSlots& slots);

// Type of the rows of the embedding in memory: as stored; of blocks f16, and f32 for kNone.
DType EmbeddingDType(const formats::StoredTensor& embedding, Quantization quantization);

// Which weights held as codes a model has, the head included.
struct CodedMatrices {
  bool integers = false;
  bool orders = false;  // integers whose inputs have an order of their own
  bool fp8 = false;
};

// Those that FindWeights chose.
CodedMatrices CodedMatricesOf(const WeightSlots& slots);

// What the matrices of a slot take in memory; on a GPU of the allocation that they share with those
// of their layer.
std::int64_t MatrixBytes(const LinearSlot& slot, const WeightTarget& target);
// Bytes that Weights::Load will hold, to the byte what it allocates.
std::int64_t WeightBytes(const WeightSlots& slots, const WeightTarget& target);

// Packed matrices that share their input, with outputs one behind the other, and their bias.
struct LinearWeights {
  std::vector<kernels::PackedLinear> matrices;  // [n, k] each; rarely more than one
  const float* bias = nullptr;                  // of all outputs, or null
};

// y = W x + bias + residual over all matrices; params as of kernels::Linear, whose weight and bias
// are filled in here. REQUIRES: params.store is null, unless there is one matrix.
absl::Status ApplyLinear(const kernels::Backend& backend, const LinearWeights& weights,
                         kernels::LinearParams params);
// The same for the rows of every group; params as of kernels::GroupedLinear, whose weights are
// filled in here.
absl::Status ApplyGroups(const kernels::Backend& backend,
                         std::span<const kernels::LinearGroups> weights,
                         kernels::GroupedLinearParams params);

// A mixture of experts; empty where the layer is dense. On a GPU the matrices of one kind lie at
// equal distances from expert to expert, and so do their biases.
struct MoeWeights {
  LinearWeights router;                // [experts, hidden]
  const float* choice_bias = nullptr;  // [experts]
  std::vector<LinearWeights> gate_up;  // [2 * intermediate, hidden] of each expert
  std::vector<LinearWeights> down;     // [hidden, intermediate] of each expert
  // On a GPU the two as groups: of the first matrix of all experts, of the second, ...
  std::vector<kernels::LinearGroups> gate_up_groups;
  std::vector<kernels::LinearGroups> down_groups;
  LinearWeights shared_gate_up;  // [2 * shared intermediate, hidden]
  LinearWeights shared_down;     // [hidden, shared intermediate]
  LinearWeights shared_gate;     // [1, hidden]
};

// Multi-head latent attention; empty where a layer has heads.
struct MlaWeights {
  LinearWeights q_a;                       // [q rank, hidden]
  const float* q_a_norm = nullptr;         // [q rank]
  LinearWeights q;                         // [heads * (nope + rope), q rank or hidden]
  LinearWeights kv_a;                      // [rank + rope, hidden]
  const float* kv_a_norm = nullptr;        // [rank]
  std::vector<LinearWeights> to_latent;    // [rank, nope] of each head
  std::vector<LinearWeights> from_latent;  // [v, rank] of each head
};

// Weights of norms hold NormSpec::weight_offset already: kernels multiply by them as they are.
// Vectors that the spec has no use for are null.
struct LayerWeights {
  const float* attn_in = nullptr;  // [hidden]
  LinearWeights qkv;               // [(heads + 2 kv_heads) * d, hidden]
  const float* q_norm = nullptr;   // [d], or [heads * d] for QkNormScope::kWhole
  const float* k_norm = nullptr;   // [d], or [kv_heads * d]
  const float* sinks = nullptr;    // [heads]
  MlaWeights mla;
  LinearWeights o;                  // [hidden, heads * d]
  const float* attn_out = nullptr;  // [hidden]
  const float* mlp_in = nullptr;    // [hidden]
  LinearWeights gate_up;            // [2 * intermediate, hidden]
  LinearWeights down;               // [hidden, intermediate]
  MoeWeights moe;
  const float* mlp_out = nullptr;  // [hidden]
};

// What shares an input, and its name inside the layer: "experts.7.gate_up".
template <typename Linear>
struct NamedLinear {
  std::string name;
  Linear* linear;
};

// Of a layer, in the order in which they lie in memory; those that it does not have are empty.
// `Layer` is LayerSlots or LayerWeights, const or not.
template <typename Layer>
auto LinearsOf(Layer& layer) {
  using Linear = std::remove_reference_t<decltype((layer.qkv))>;
  std::vector<NamedLinear<Linear>> linears = {
      {"qkv", &layer.qkv},           {"o", &layer.o},
      {"gate_up", &layer.gate_up},   {"down", &layer.down},
      {"router", &layer.moe.router}, {"q_a", &layer.mla.q_a},
      {"q", &layer.mla.q},           {"kv_a", &layer.mla.kv_a}};
  for (std::size_t h = 0; h < layer.mla.to_latent.size(); ++h) {
    linears.push_back({absl::StrCat("heads.", h, ".to_latent"), &layer.mla.to_latent[h]});
    linears.push_back({absl::StrCat("heads.", h, ".from_latent"), &layer.mla.from_latent[h]});
  }
  for (std::size_t e = 0; e < layer.moe.gate_up.size(); ++e) {
    linears.push_back({absl::StrCat("experts.", e, ".gate_up"), &layer.moe.gate_up[e]});
    linears.push_back({absl::StrCat("experts.", e, ".down"), &layer.moe.down[e]});
  }
  linears.push_back({"shared_gate_up", &layer.moe.shared_gate_up});
  linears.push_back({"shared_down", &layer.moe.shared_down});
  linears.push_back({"shared_gate", &layer.moe.shared_gate});
  return linears;
}

// All weights in the layout of the kernels and in the memory of the backend.
//
// Place:      made by LoadModel, read by Decoder.
// Invariants: every value is finite. On a GPU the matrices of a layer, experts and heads included,
//             lie in one allocation, in the order of LinearsOf; those of the head, the embedding
//             and all vectors in one more each.
// Threads:    immutable after Load.
// Lifetime:   owns its memory; the checkpoint may go.
class Weights {
 public:
  // Reads and packs with all threads, and logs how far it is. Returns INVALID_ARGUMENT that names
  // the tensor, the element and its value when one is NaN or infinite, or the row when a scale is
  // beyond f16; RESOURCE_EXHAUSTED without memory. The slots were found for the same target. On a
  // GPU the backend has an uploader.
  static absl::StatusOr<Weights> Load(const WeightSlots& slots, const kernels::Backend& backend,
                                      const WeightTarget& target);

  // The memory that Load would fill, all zero, for what an earlier process packed. CPU only.
  static absl::StatusOr<Weights> Allocate(const WeightSlots& slots, Quantization quantization);

  // A piece of memory and what lies in it: "layers.3.down int4_g32 [2048, 8192]".
  struct Section {
    std::string label;
    std::span<std::byte> bytes;
  };
  // All memory, in a fixed order. REQUIRES: made for the CPU.
  std::vector<Section> Sections() const;

  const void* embedding() const { return embedding_.data(); }  // [vocab, hidden]
  DType embedding_dtype() const { return embedding_dtype_; }
  std::span<const LayerWeights> layers() const { return layers_; }
  const float* final_norm() const { return final_norm_; }  // [hidden]
  const LinearWeights& head() const { return head_; }
  std::int64_t size_bytes() const;

 private:
  Weights() = default;

  DeviceBuffer embedding_;
  DType embedding_dtype_ = DType::kInvalid;
  DeviceBuffer vectors_;                // norms and biases
  std::vector<DeviceBuffer> matrices_;  // on a GPU: what each layer and then the head lies in
  std::vector<LayerWeights> layers_;
  const float* final_norm_ = nullptr;
  LinearWeights head_;
};

}  // namespace quire::models
