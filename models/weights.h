#pragma once

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

namespace quire::models {

// One matrix of a checkpoint's layer, or several that share their input and are computed as one:
// the rows of the parts lie one below the other.
struct LinearSlot {
  std::vector<const StoredTensor*> parts;   // [rows, k] each
  std::vector<const StoredTensor*> biases;  // [rows] each; empty: no bias
  std::uint32_t n = 0;                      // rows of all parts
  std::uint32_t k = 0;
  DType dtype = DType::kInvalid;  // of the packed form: that of the parts, f32 when they differ
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
  DType stored_dtype = DType::kInvalid;      // of most parameters
  std::vector<std::string> warnings;
};

// Finds every tensor, checks shapes and types, and refuses tensors that the model has no place for.
// Returns INVALID_ARGUMENT that names the tensor, both shapes and the keys behind them. REQUIRES:
// CheckBuilt(spec) is OK.
absl::StatusOr<WeightSlots> FindWeights(const ModelSpec& spec, const TensorNames& names,
                                        const Checkpoint& checkpoint);

// Where weights go: the CPU, or a GPU whose activations have a type of their own.
struct WeightTarget {
  bool cuda = false;
  DType activation = DType::kF32;
};

// Floats that a norm or bias takes: each starts at a multiple of 256 bytes.
constexpr std::int64_t PaddedVector(std::int64_t elements) {
  return (elements + 63) / 64 * 64;
}
// Of all norms and biases.
std::int64_t VectorFloats(const WeightSlots& slots);

// Bytes that Weights::Load will hold.
std::int64_t WeightBytes(const WeightSlots& slots, const WeightTarget& target);

// A packed matrix and its bias.
struct LinearWeights {
  kernels::PackedLinear packed;  // [n, k]
  const float* bias = nullptr;   // [n], or null
};

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
  // Returns INVALID_ARGUMENT that names the tensor, the element and its value when one is NaN or
  // infinite; RESOURCE_EXHAUSTED without memory.
  // `activation` is what the matrices will be multiplied with; the CPU has f32 only. On a GPU the
  // backend has an uploader.
  static absl::StatusOr<Weights> Load(const WeightSlots& slots, const kernels::Backend& backend,
                                      DType activation = DType::kF32);

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
