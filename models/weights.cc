#include "models/weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

// Elements of one unit of the search for values that are not finite.
constexpr std::int64_t kScanElements = std::int64_t{1} << 16;

// Element i of a stored tensor; the bytes need not be aligned.
float Element(const StoredTensor& tensor, std::int64_t i) {
  const std::byte* at = tensor.bytes.data() + i * DTypeSize(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return tensor.dtype == DType::kBF16 ? BF16{bits}.ToFloat() : F16{bits}.ToFloat();
}

// True when one of `count` values has an exponent of all ones: NaN or an infinity.
template <typename Bits, Bits kExponent>
bool AnyNotFinite(const std::byte* values, std::int64_t count) {
  Bits found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, values + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    found = static_cast<Bits>(found | ((bits & kExponent) == kExponent ? 1 : 0));
  }
  return found != 0;
}

bool AnyNotFinite(const StoredTensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::byte* values = tensor.bytes.data() + begin * DTypeSize(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kBF16:
      return AnyNotFinite<std::uint16_t, 0x7f80>(values, end - begin);
    case DType::kF16:
      return AnyNotFinite<std::uint16_t, 0x7c00>(values, end - begin);
    default:
      return AnyNotFinite<std::uint32_t, 0x7f800000>(values, end - begin);
  }
}

absl::Status CheckFinite(const StoredTensor& tensor, const kernels::Backend& backend) {
  const std::int64_t elements = tensor.num_elements();
  const std::int64_t units = (elements + kScanElements - 1) / kScanElements;
  std::atomic<std::int64_t> first_bad{units};
  backend.ParallelFor(units, static_cast<double>(kScanElements) / 4,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t unit = begin; unit < end; ++unit) {
                          const std::int64_t last = std::min(elements, (unit + 1) * kScanElements);
                          if (!AnyNotFinite(tensor, unit * kScanElements, last)) continue;
                          std::int64_t seen = first_bad.load();
                          while (unit < seen && !first_bad.compare_exchange_weak(seen, unit)) {
                          }
                          return;
                        }
                      });
  for (std::int64_t i = first_bad.load() * kScanElements; i < elements; ++i) {
    const float value = Element(tensor, i);
    if (std::isfinite(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name,
                                                   ": element ", i, " of ", elements, " is ", value,
                                                   ", weights must be finite"));
  }
  return absl::OkStatus();
}

void AppendWidened(const StoredTensor& tensor, std::vector<float>* values) {
  const std::int64_t elements = tensor.num_elements();
  values->reserve(values->size() + static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i) values->push_back(Element(tensor, i));
}

absl::StatusOr<std::vector<float>> LoadVector(const StoredTensor& tensor,
                                              const kernels::Backend& backend) {
  QUIRE_RETURN_IF_ERROR(CheckFinite(tensor, backend));
  std::vector<float> values;
  AppendWidened(tensor, &values);
  return values;
}

absl::StatusOr<LinearWeights> LoadLinear(const LinearSlot& slot, const kernels::Backend& backend) {
  std::vector<kernels::WeightRows> rows;
  std::vector<std::vector<float>> widened(slot.parts.size());
  for (std::size_t i = 0; i < slot.parts.size(); ++i) {
    const StoredTensor& part = *slot.parts[i];
    QUIRE_RETURN_IF_ERROR(CheckFinite(part, backend));
    const void* data = part.bytes.data();
    if (part.dtype != slot.dtype) {
      AppendWidened(part, &widened[i]);
      data = widened[i].data();
    }
    rows.push_back({data, static_cast<std::uint32_t>(part.shape[0])});
  }
  LinearWeights weights;
  QUIRE_ASSIGN_OR_RETURN(weights.packed,
                         kernels::PackLinearWeights(backend, rows, slot.dtype, slot.k));
  for (const StoredTensor* bias : slot.biases) {
    QUIRE_RETURN_IF_ERROR(CheckFinite(*bias, backend));
    AppendWidened(*bias, &weights.bias);
  }
  return weights;
}

absl::StatusOr<LayerWeights> LoadLayer(const LayerSlots& slots, const kernels::Backend& backend) {
  LayerWeights weights;
  QUIRE_ASSIGN_OR_RETURN(weights.attn_in, LoadVector(*slots.attn_in, backend));
  QUIRE_ASSIGN_OR_RETURN(weights.qkv, LoadLinear(slots.qkv, backend));
  QUIRE_ASSIGN_OR_RETURN(weights.o, LoadLinear(slots.o, backend));
  QUIRE_ASSIGN_OR_RETURN(weights.mlp_in, LoadVector(*slots.mlp_in, backend));
  QUIRE_ASSIGN_OR_RETURN(weights.gate_up, LoadLinear(slots.gate_up, backend));
  QUIRE_ASSIGN_OR_RETURN(weights.down, LoadLinear(slots.down, backend));
  return weights;
}

std::int64_t VectorBytes(const std::vector<float>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(float));
}

std::int64_t LinearBytes(const LinearWeights& weights) {
  return weights.packed.size_bytes() + VectorBytes(weights.bias);
}

}  // namespace

absl::StatusOr<Weights> Weights::Load(const WeightSlots& slots, const kernels::Backend& backend) {
  Weights weights;
  const StoredTensor& embedding = *slots.embedding;
  QUIRE_RETURN_IF_ERROR(CheckFinite(embedding, backend));
  QUIRE_ASSIGN_OR_RETURN(
      weights.embedding_,
      DeviceBuffer::Allocate(MemoryKind::kHost, static_cast<std::int64_t>(embedding.bytes.size())));
  std::memcpy(weights.embedding_.data(), embedding.bytes.data(), embedding.bytes.size());
  weights.embedding_dtype_ = embedding.dtype;
  weights.layers_.reserve(slots.layers.size());
  for (const LayerSlots& layer : slots.layers) {
    QUIRE_ASSIGN_OR_RETURN(LayerWeights loaded, LoadLayer(layer, backend));
    weights.layers_.push_back(std::move(loaded));
  }
  QUIRE_ASSIGN_OR_RETURN(weights.final_norm_, LoadVector(*slots.final_norm, backend));
  QUIRE_ASSIGN_OR_RETURN(weights.head_, LoadLinear(slots.head, backend));
  return weights;
}

std::int64_t Weights::size_bytes() const {
  std::int64_t bytes = embedding_.size_bytes() + VectorBytes(final_norm_) + LinearBytes(head_);
  for (const LayerWeights& layer : layers_) {
    bytes += VectorBytes(layer.attn_in) + LinearBytes(layer.qkv) + LinearBytes(layer.o) +
             VectorBytes(layer.mlp_in) + LinearBytes(layer.gate_up) + LinearBytes(layer.down);
  }
  return bytes;
}

}  // namespace quire::models
