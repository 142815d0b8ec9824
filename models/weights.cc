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
#include "kernels/cuda/uploader.h"

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

// Memory of the backend with the bytes at `from` in it.
absl::StatusOr<DeviceBuffer> Place(const void* from, std::int64_t bytes,
                                   const kernels::Backend& backend) {
  const bool cuda = backend.cuda() != nullptr;
  QUIRE_ASSIGN_OR_RETURN(
      DeviceBuffer buffer,
      DeviceBuffer::Allocate(cuda ? MemoryKind::kDevice : MemoryKind::kHost, bytes));
  if (cuda) {
    QUIRE_RETURN_IF_ERROR(backend.uploader()->Copy(buffer.data(), from, bytes));
  } else {
    std::memcpy(buffer.data(), from, static_cast<std::size_t>(bytes));
  }
  return buffer;
}

// Loads matrices at once, and collects norms and biases, which are small, to be placed together.
class Loader {
 public:
  Loader(const kernels::Backend& backend, DType activation, std::int64_t vector_floats)
      : backend_(backend), activation_(activation) {
    vectors_.reserve(static_cast<std::size_t>(vector_floats));
  }

  // The offset of a vector in the collection, which Resolve turns into a pointer.
  absl::Status AddVector(std::span<const StoredTensor* const> parts, const float** where) {
    offsets_.push_back({where, vectors_.size()});
    std::int64_t elements = 0;
    for (const StoredTensor* part : parts) {
      QUIRE_RETURN_IF_ERROR(CheckFinite(*part, backend_));
      AppendWidened(*part, &vectors_);
      elements += part->num_elements();
    }
    vectors_.resize(vectors_.size() + static_cast<std::size_t>(PaddedVector(elements) - elements));
    return absl::OkStatus();
  }

  absl::Status LoadLinear(const LinearSlot& slot, LinearWeights* weights) {
    std::vector<kernels::WeightRows> rows;
    std::vector<std::vector<float>> widened(slot.parts.size());
    for (std::size_t i = 0; i < slot.parts.size(); ++i) {
      const StoredTensor& part = *slot.parts[i];
      QUIRE_RETURN_IF_ERROR(CheckFinite(part, backend_));
      const void* data = part.bytes.data();
      if (part.dtype != slot.dtype) {
        AppendWidened(part, &widened[i]);
        data = widened[i].data();
      }
      rows.push_back({data, static_cast<std::uint32_t>(part.shape[0])});
    }
    QUIRE_ASSIGN_OR_RETURN(weights->packed, kernels::PackLinearWeights(backend_, rows, slot.dtype,
                                                                       slot.k, activation_));
    if (slot.biases.empty()) return absl::OkStatus();
    return AddVector(slot.biases, &weights->bias);
  }

  absl::Status LoadLayer(const LayerSlots& slots, LayerWeights* weights) {
    QUIRE_RETURN_IF_ERROR(AddVector({&slots.attn_in, 1}, &weights->attn_in));
    QUIRE_RETURN_IF_ERROR(LoadLinear(slots.qkv, &weights->qkv));
    QUIRE_RETURN_IF_ERROR(LoadLinear(slots.o, &weights->o));
    QUIRE_RETURN_IF_ERROR(AddVector({&slots.mlp_in, 1}, &weights->mlp_in));
    QUIRE_RETURN_IF_ERROR(LoadLinear(slots.gate_up, &weights->gate_up));
    return LoadLinear(slots.down, &weights->down);
  }

  // All vectors in one allocation.
  absl::StatusOr<DeviceBuffer> PlaceVectors() {
    QUIRE_ASSIGN_OR_RETURN(
        DeviceBuffer buffer,
        Place(vectors_.data(), static_cast<std::int64_t>(vectors_.size() * sizeof(float)),
              backend_));
    for (const Offset& offset : offsets_) {
      *offset.where = static_cast<const float*>(buffer.data()) + offset.floats;
    }
    return buffer;
  }

 private:
  struct Offset {
    const float** where;
    std::size_t floats;
  };

  const kernels::Backend& backend_;
  const DType activation_;
  std::vector<float> vectors_;
  std::vector<Offset> offsets_;
};

}  // namespace

absl::StatusOr<Weights> Weights::Load(const WeightSlots& slots, const kernels::Backend& backend,
                                      DType activation) {
  Weights weights;
  const StoredTensor& embedding = *slots.embedding;
  QUIRE_RETURN_IF_ERROR(CheckFinite(embedding, backend));
  QUIRE_ASSIGN_OR_RETURN(
      weights.embedding_,
      Place(embedding.bytes.data(), static_cast<std::int64_t>(embedding.bytes.size()), backend));
  weights.embedding_dtype_ = embedding.dtype;
  Loader loader(backend, activation, VectorFloats(slots));
  // Sized once: the loader keeps addresses of its members.
  weights.layers_.resize(slots.layers.size());
  for (std::size_t i = 0; i < slots.layers.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(loader.LoadLayer(slots.layers[i], &weights.layers_[i]));
  }
  QUIRE_RETURN_IF_ERROR(loader.AddVector({&slots.final_norm, 1}, &weights.final_norm_));
  QUIRE_RETURN_IF_ERROR(loader.LoadLinear(slots.head, &weights.head_));
  QUIRE_ASSIGN_OR_RETURN(weights.vectors_, loader.PlaceVectors());
  return weights;
}

std::int64_t Weights::size_bytes() const {
  std::int64_t bytes = embedding_.size_bytes() + vectors_.size_bytes() + head_.packed.size_bytes();
  for (const LayerWeights& layer : layers_) {
    for (const LinearWeights* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      bytes += linear->packed.size_bytes();
    }
  }
  return bytes;
}

}  // namespace quire::models
