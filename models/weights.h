#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "kernels/backend.h"
#include "kernels/linear.h"
#include "models/checkpoint/checkpoint.h"
#include "models/families/registry.h"
#include "models/layer_spec.h"
#include "models/quantization.h"

namespace quire::models {

// One matrix as it will lie in memory: the rows of its parts one below the other.
struct MatrixSlot {
  std::vector<const StoredTensor*> parts;  // [rows, k] each
  std::uint32_t n = 0;                     // rows of all parts
  std::uint32_t k = 0;
  MatrixForm form;
};

// What of a layer shares its input and is computed together, such as q, k and v. One matrix, unless
// the parts are held in different forms, as mixtures of block types in GGUF files are: then one for
// each run of parts of one form.
struct LinearSlot {
  std::vector<MatrixSlot> matrices;
  std::vector<const StoredTensor*> biases;  // [rows] each; empty: no bias
  std::uint32_t n = 0;                      // rows of all matrices
  std::uint32_t k = 0;
};

struct LayerSlots {
  const StoredTensor* attn_in = nullptr;  // [hidden]
  LinearSlot qkv;                         // q, k, v
  LinearSlot o;
  const StoredTensor* mlp_in = nullptr;  // [hidden]
  LinearSlot gate_up;                    // gate, up
  LinearSlot down;
};

// Where each weight of a spec lies in a checkpoint. Valid as long as the checkpoint.
struct WeightSlots {
  const StoredTensor* embedding = nullptr;  // [vocab, hidden]
  std::vector<LayerSlots> layers;
  const StoredTensor* final_norm = nullptr;  // [hidden]
  LinearSlot head;                           // the embedding when tied
  std::int64_t parameter_count = 0;          // a tied matrix counts once
  DType stored_dtype = DType::kInvalid;      // of most parameters; kInvalid: blocks
  std::string integer_format;                // of most weights of layers: "int4_g32"; empty: none
  std::vector<std::string> warnings;
};

// Where weights go, the CPU or a GPU whose activations have a type of their own, and what they
// become on the way.
struct WeightTarget {
  bool cuda = false;
  DType activation = DType::kF32;
  Quantization quantization = Quantization::kAuto;
};

// Finds every tensor, checks shapes and types, refuses tensors that the model has no place for, and
// chooses the form of every matrix. Returns INVALID_ARGUMENT that names the tensor, both shapes and
// the keys behind them, or the tensor, its inputs and what model.quantization needs; UNIMPLEMENTED
// for a type that is not read, or as CheckQuantization. REQUIRES: CheckBuilt(spec) is OK.
absl::StatusOr<WeightSlots> FindWeights(const ModelSpec& spec, const TensorNames& names,
                                        const Checkpoint& checkpoint, const WeightTarget& target);

// Floats that a norm or bias takes: each starts at a multiple of 256 bytes.
constexpr std::int64_t PaddedVector(std::int64_t elements) {
  return (elements + 63) / 64 * 64;
}
// Of all norms and biases.
std::int64_t VectorFloats(const WeightSlots& slots);

// Type of the rows of the embedding in memory: as stored; of blocks f16, and f32 for kNone.
DType EmbeddingDType(const StoredTensor& embedding, Quantization quantization);

// Whether any matrix will be held as integers, the head's included.
bool HasIntegers(const WeightSlots& slots);

// Bytes that Weights::Load will hold.
std::int64_t WeightBytes(const WeightSlots& slots, const WeightTarget& target);

// Packed matrices that share their input, with outputs one behind the other, and their bias.
struct LinearWeights {
  std::vector<kernels::PackedLinear> matrices;  // [n, k] each; rarely more than one
  const float* bias = nullptr;                  // of all outputs, or null
};

// y = W x + bias + residual over all matrices; params as of kernels::Linear, whose weight and bias
// are filled in here.
absl::Status ApplyLinear(const kernels::Backend& backend, const LinearWeights& weights,
                         kernels::LinearParams params);

struct LayerWeights {
  const float* attn_in = nullptr;  // [hidden]
  LinearWeights qkv;               // [(heads + 2 kv_heads) * d, hidden]
  LinearWeights o;                 // [hidden, heads * d]
  const float* mlp_in = nullptr;   // [hidden]
  LinearWeights gate_up;           // [2 * intermediate, hidden]
  LinearWeights down;              // [hidden, intermediate]
};

// All weights in the layout of the kernels and in the memory of the backend.
//
// Place:      made by LoadModel, read by Decoder.
// Invariants: every value is finite.
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
  DeviceBuffer vectors_;  // norms and biases
  std::vector<LayerWeights> layers_;
  const float* final_norm_ = nullptr;
  LinearWeights head_;
};

}  // namespace quire::models
