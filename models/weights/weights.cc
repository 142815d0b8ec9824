#include "models/weights/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/tensors/quantized_tensor.h"
#include "kernels/cuda/uploader.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/linear/weight_memory.h"
#include "models/weights/stored_rows.h"

namespace quire::models {
namespace {

// Logs the progress of loading about once a second. Add is thread-safe. On a GPU nothing is logged,
// since the uploader logs its progress.
class Progress {
 public:
  Progress(const WeightSlots& slots, bool is_cpu)
      : is_cpu_(is_cpu),
        start_(MonotonicNow()),
        next_log_(absl::ToUnixNanos(start_ + absl::Nanoseconds(kInterval))) {
    ForEachStored(slots, [&](const formats::StoredTensor& tensor) {
      total_ += static_cast<std::int64_t>(tensor.bytes.size());
    });
  }

  void Add(std::int64_t stored_bytes) {
    const std::int64_t done = done_.fetch_add(stored_bytes) + stored_bytes;
    const std::int64_t now = absl::ToUnixNanos(MonotonicNow());
    std::int64_t next = next_log_.load();
    if (now >= next && next_log_.compare_exchange_strong(next, now + kInterval)) {
      LogProgress("packing weights", done);
    }
  }

  void Finish() { LogProgress("weights packed", done_.load()); }

 private:
  static constexpr std::int64_t kInterval = 1'000'000'000;

  template <typename Fn>
  static void ForEachStored(const WeightSlots& slots, Fn&& fn) {
    const auto linear = [&](const LinearSlot& slot) {
      for (const MatrixSlot& matrix : slot.matrices) {
        for (const formats::StoredTensor* part : matrix.parts) fn(*part);
      }
    };
    fn(*slots.embedding);
    if (slots.input_embedding != nullptr) fn(*slots.input_embedding);
    linear(slots.input_context);
    for (const LayerSlots& layer : slots.layers) {
      for (const auto& [name, slot] : LinearsOf(layer)) linear(*slot);
    }
    linear(slots.head);
  }

  void LogProgress(absl::string_view message, std::int64_t done) const {
    if (!is_cpu_) return;
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - start_);
    log::Info("model", message,
              {{"bytes", done},
               {"total_bytes", total_},
               {"seconds", seconds},
               {"gb_per_second", seconds > 0 ? static_cast<double>(done) / seconds / 1e9 : 0.0}});
  }

  const bool is_cpu_;
  const absl::Time start_;
  std::int64_t total_ = 0;
  std::atomic<std::int64_t> done_{0};
  std::atomic<std::int64_t> next_log_;
};

// Allocates memory of the backend and copies the bytes at `from` into it.
absl::StatusOr<DeviceBuffer> CopyToBackend(const void* from, std::int64_t bytes,
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

// A slot and the weights that are packed from it.
using LinearPair = std::pair<const LinearSlot*, LinearWeights*>;

// Returns the pairs of a layer. Resizes the layer's lists of experts and heads to the lengths of
// the lists of `slots`.
std::vector<LinearPair> MakePairs(const LayerSlots& slots, LayerWeights* layer) {
  std::vector<std::size_t> sizes;
  ForEachRow(slots, [&](BlockKind, const auto& row, const auto& block) {
    if (row.linears != nullptr) sizes.push_back((block.*row.linears).size());
  });
  auto size = sizes.begin();
  ForEachRow(*layer, [&](BlockKind, const auto& row, auto& block) {
    if (row.linears != nullptr) (block.*row.linears).resize(*size++);
  });
  const auto from = LinearsOf(slots);
  const auto to = LinearsOf(*layer);
  std::vector<LinearPair> pairs;
  pairs.reserve(from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    pairs.push_back(LinearPair{from[i].linear, to[i].linear});
  return pairs;
}

// A vector in memory: the tensors that it concatenates, the offset and scale of VectorSlot, and the
// pointer to set.
struct VectorPlace {
  std::span<const formats::StoredTensor* const> parts;
  float offset;
  float scale;
  const float** where;
};

// The vectors of the model outside its layers.
struct ModelVectors {
  const float** input_norm;
  const float** final_norm;
  LinearWeights* head;
};

// Returns all vectors in the order in which they lie in memory.
std::vector<VectorPlace> VectorPlaces(const WeightSlots& slots, std::span<LayerWeights> layers,
                                      const ModelVectors& model) {
  std::vector<VectorPlace> places;
  const auto bias = [&](const LinearSlot& slot, LinearWeights* weights) {
    if (!slot.biases.empty()) places.push_back({slot.biases, 0, 1, &weights->bias});
  };
  const auto vector = [&](const VectorSlot& slot, const float** where) {
    if (!slot.parts.empty()) places.push_back({slot.parts, slot.offset, slot.scale, where});
  };
  for (std::size_t i = 0; i < slots.layers.size(); ++i) {
    const LayerSlots& slot = slots.layers[i];
    LayerWeights& layer = layers[i];
    const auto from = VectorsOf(slot);
    const auto to = VectorsOf(layer);
    for (std::size_t v = 0; v < from.size(); ++v) vector(*from[v], to[v]);
    for (const auto& [slot_of, weights] : MakePairs(slot, &layer)) bias(*slot_of, weights);
  }
  vector(slots.input_norm, model.input_norm);
  vector(slots.final_norm, model.final_norm);
  bias(slots.head, model.head);
  return places;
}

std::int64_t Elements(const VectorPlace& place) {
  std::int64_t elements = 0;
  for (const formats::StoredTensor* part : place.parts) elements += part->num_elements();
  return elements;
}

void SetPointers(const void* memory, std::span<const VectorPlace> places) {
  const auto* at = static_cast<const float*>(memory);
  for (const VectorPlace& place : places) {
    *place.where = at;
    at += PaddedVector(Elements(place));
  }
}

absl::StatusOr<std::vector<float>> ReadVectors(std::span<const VectorPlace> places,
                                               std::int64_t floats,
                                               const kernels::Backend& backend) {
  std::vector<float> values(static_cast<std::size_t>(floats));
  std::size_t at = 0;
  for (const VectorPlace& place : places) {
    std::size_t part_at = at;
    for (const formats::StoredTensor* part : place.parts) {
      QUIRE_RETURN_IF_ERROR(CheckFinite(*part, backend));
      const auto elements = static_cast<std::size_t>(part->num_elements());
      WidenRow(*part, 0, {values.data() + part_at, elements});
      for (std::size_t i = 0; i < elements && (place.scale != 1 || place.offset != 0); ++i) {
        values[part_at + i] = values[part_at + i] * place.scale + place.offset;
      }
      part_at += elements;
    }
    at += static_cast<std::size_t>(PaddedVector(Elements(place)));
  }
  return values;
}

// Returns the act-order permutation of a matrix, or an empty span.
std::span<const std::uint32_t> OrderOf(const MatrixSlot& slot) {
  if (!slot.form.has_act_order) return {};
  return slot.parts.front()->quantized->act_order();
}

// Packs the matrices of a model.
class Packer {
 public:
  Packer(const kernels::Backend& backend, const WeightTarget& target, Progress* progress)
      : backend_(backend), target_(target), progress_(progress) {}

  // Packs the matrices. Returns their common allocation on a GPU, and an empty buffer on the CPU.
  absl::StatusOr<DeviceBuffer> Load(std::span<const LinearPair> linears) {
    if (!target_.cuda) {
      for (const auto& [slot, weights] : linears) {
        QUIRE_RETURN_IF_ERROR(LoadOne(*slot, /*memory=*/nullptr, weights));
      }
      return DeviceBuffer();
    }
    std::int64_t bytes = 0;
    for (const auto& [slot, weights] : linears) bytes += MatrixBytes(*slot, target_);
    QUIRE_ASSIGN_OR_RETURN(kernels::WeightMemory memory, kernels::WeightMemory::Allocate(bytes));
    for (const auto& [slot, weights] : linears) {
      QUIRE_RETURN_IF_ERROR(LoadOne(*slot, &memory, weights));
    }
    QUIRE_CHECK(memory.left_bytes() == 0);
    return memory.block();
  }

  // Loads the embedding as stored, or converted to `dtype` if it is quantized.
  absl::StatusOr<DeviceBuffer> LoadEmbedding(const formats::StoredTensor& tensor, DType dtype) {
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer rows, ReadEmbedding(tensor, dtype));
    Forget(tensor);
    return rows;
  }

 private:
  absl::Status LoadOne(const LinearSlot& slot, kernels::WeightMemory* memory,
                       LinearWeights* weights) {
    for (const MatrixSlot& matrix : slot.matrices) {
      for (const formats::StoredTensor* part : matrix.parts) {
        QUIRE_RETURN_IF_ERROR(CheckFinite(*part, backend_));
      }
      QUIRE_ASSIGN_OR_RETURN(kernels::PackedLinear packed, matrix.form.is_plain()
                                                               ? PackPlain(matrix, memory)
                                                           : matrix.form.is_fp8() && !target_.cuda
                                                               ? PackFp8(matrix)
                                                               : PackQuantized(matrix, memory));
      weights->matrices.push_back(std::move(packed));
      for (const formats::StoredTensor* part : matrix.parts) Forget(*part);
    }
    return absl::OkStatus();
  }

  // Releases the tensor's pages of the mapped file, after the weights were packed.
  static void Forget(const formats::StoredTensor& tensor) {
    if (!tensor.is_mapped) return;
    MappedFile::Forget(tensor.bytes);
    // If the tensor is only a part of the stored tensor, the other parts still need the scales.
    if (tensor.quantized == nullptr || tensor.bytes.size() != tensor.quantized->codes_bytes()) {
      return;
    }
    for (const formats::StoredTensor* source : tensor.quantized->Sources()) {
      MappedFile::Forget(source->bytes);
    }
  }

  absl::StatusOr<DeviceBuffer> ReadEmbedding(const formats::StoredTensor& tensor, DType dtype) {
    QUIRE_RETURN_IF_ERROR(CheckFinite(tensor, backend_));
    progress_->Add(static_cast<std::int64_t>(tensor.bytes.size()));
    if (!tensor.is_quantized()) {
      return CopyToBackend(tensor.bytes.data(), static_cast<std::int64_t>(tensor.bytes.size()),
                           backend_);
    }
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t row_bytes = tensor.shape[1] * DTypeSize(dtype);
    const bool cuda = backend_.cuda() != nullptr;
    QUIRE_ASSIGN_OR_RETURN(
        DeviceBuffer buffer,
        DeviceBuffer::Allocate(cuda ? MemoryKind::kDevice : MemoryKind::kHost, rows * row_bytes));
    if (!cuda) {
      QUIRE_RETURN_IF_ERROR(ConvertRows(tensor, dtype, 0, rows, backend_, buffer.data()));
      return buffer;
    }
    const std::int64_t chunk_rows = std::clamp<std::int64_t>(kStagingBytes / row_bytes, 1, rows);
    QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer staging,
                           DeviceBuffer::Allocate(MemoryKind::kHost, chunk_rows * row_bytes));
    for (std::int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const std::int64_t end = std::min(rows, begin + chunk_rows);
      QUIRE_RETURN_IF_ERROR(ConvertRows(tensor, dtype, begin, end, backend_, staging.data()));
      QUIRE_RETURN_IF_ERROR(
          backend_.uploader()->Copy(static_cast<std::byte*>(buffer.data()) + begin * row_bytes,
                                    staging.data(), (end - begin) * row_bytes));
    }
    return buffer;
  }

  // Size of the staging buffer for dequantized rows.
  static constexpr std::int64_t kStagingBytes = std::int64_t{8} << 20;

  // On the CPU the only temporary memory is the rows of one panel per thread. For a GPU, a tensor
  // is converted as a whole before the upload if its dtype or layout has to change.
  absl::StatusOr<kernels::PackedLinear> PackPlain(const MatrixSlot& slot,
                                                  kernels::WeightMemory* memory) {
    const auto is_as_stored = [&](const formats::StoredTensor* part) {
      return part->dtype == slot.form.dtype && part->has_rows_in_order();
    };
    if (backend_.cuda() == nullptr && !std::ranges::all_of(slot.parts, is_as_stored)) {
      return WidenAndPack(slot);
    }
    std::vector<kernels::WeightRows> rows;
    std::vector<DeviceBuffer> laid_out;
    for (const formats::StoredTensor* part : slot.parts) {
      const void* data = part->bytes.data();
      if (!is_as_stored(part)) {
        QUIRE_ASSIGN_OR_RETURN(DeviceBuffer plain, PlainRows(*part, slot.form.dtype, slot.k));
        data = plain.data();
        laid_out.push_back(std::move(plain));
      }
      rows.push_back({data, static_cast<std::uint32_t>(part->shape[0])});
      progress_->Add(static_cast<std::int64_t>(part->bytes.size()));
    }
    return kernels::PackLinearWeights(backend_, rows, slot.form.dtype, slot.k,
                                      {.activations = target_.activation, .memory = memory});
  }

  // Returns all rows of a tensor, converted to `dtype`, in host memory.
  absl::StatusOr<DeviceBuffer> PlainRows(const formats::StoredTensor& tensor, DType dtype,
                                         std::uint32_t k) {
    const std::int64_t row_bytes = std::int64_t{k} * DTypeSize(dtype);
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer rows,
                           DeviceBuffer::Allocate(MemoryKind::kHost, tensor.shape[0] * row_bytes));
    auto* const to = static_cast<std::byte*>(rows.data());
    backend_.ParallelFor(tensor.shape[0], static_cast<double>(k) / 2,
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t row = begin; row < end; ++row) {
                             ReadPlainRow(tensor, dtype, row, to + row * row_bytes);
                           }
                         });
    return rows;
  }

  absl::StatusOr<kernels::PackedLinear> WidenAndPack(const MatrixSlot& slot) {
    return kernels::PackPlainRows(
        backend_, slot.form.dtype, slot.n, slot.k, [&](std::uint32_t row, std::byte* out) {
          const auto [part, part_row] = Locate(slot, row);
          ReadPlainRow(*part, slot.form.dtype, part_row, out);
          progress_->Add(static_cast<std::int64_t>(part->bytes.size()) / part->shape[0]);
        });
  }

  absl::StatusOr<kernels::PackedLinear> PackFp8(const MatrixSlot& slot) {
    return kernels::PackFp8Rows(
        backend_, slot.form.Fp8ShapeOf(slot.n, slot.k),
        [&](std::uint32_t row, const quire::Fp8Row& out) {
          const auto [part, part_row] = Locate(slot, row);
          ReadFp8Row(*part, part_row, out);
          progress_->Add(static_cast<std::int64_t>(part->bytes.size()) / part->shape[0]);
        });
  }

  absl::StatusOr<kernels::PackedLinear> PackQuantized(const MatrixSlot& slot,
                                                      kernels::WeightMemory* memory) {
    const QuantizedShape shape = slot.form.ShapeOf(slot.n, slot.k);
    // Lowest row with a scale or minimum beyond f16.
    std::atomic<std::uint32_t> first_bad{slot.n};
    absl::StatusOr<kernels::PackedLinear> packed = kernels::PackQuantizedRows(
        backend_, shape,
        [&](std::uint32_t row, const QuantizedRow& out) {
          const auto [part, part_row] = Locate(slot, row);
          ReadQuantizedRow(*part, slot.form, part_row, out);
          if (slot.form.is_integer() && !shape.scale_per_feature() && !FitsF16(out)) {
            std::uint32_t seen = first_bad.load();
            while (row < seen && !first_bad.compare_exchange_weak(seen, row)) {
            }
          }
          progress_->Add(static_cast<std::int64_t>(part->bytes.size()) / part->shape[0]);
        },
        OrderOf(slot), memory);
    if (first_bad.load() == slot.n) return packed;
    const auto [part, part_row] = Locate(slot, first_bad.load());
    return absl::InvalidArgumentError(absl::StrCat(
        part->file, ": tensor ", part->name, ": row ", part_row, " of ", part->shape[0], " has ",
        FormName(slot.form), " scales beyond f16; set model.quantization to \"none\""));
  }

  static std::pair<const formats::StoredTensor*, std::int64_t> Locate(const MatrixSlot& slot,
                                                                      std::uint32_t row) {
    std::int64_t left = row;
    std::size_t i = 0;
    for (; left >= slot.parts[i]->shape[0]; ++i) left -= slot.parts[i]->shape[0];
    return {slot.parts[i], left};
  }

  static bool FitsF16(const QuantizedRow& row) {
    constexpr float kBeyond = 65520;  // rounds to infinity
    for (const float scale : row.scales) {
      if (!(std::fabs(scale) < kBeyond)) return false;
    }
    for (const float min : row.mins) {
      if (!(std::fabs(min) < kBeyond)) return false;
    }
    return true;
  }

  const kernels::Backend& backend_;
  const WeightTarget target_;
  Progress* const progress_;
};

absl::Status AllocateMatrices(const LinearSlot& slot, const kernels::Backend& backend,
                              LinearWeights* weights) {
  for (const MatrixSlot& matrix : slot.matrices) {
    absl::StatusOr<kernels::PackedLinear> packed =
        matrix.form.is_plain()
            ? kernels::AllocatePackedLinear(backend, matrix.form.dtype, matrix.n, matrix.k)
        : matrix.form.is_fp8()
            ? kernels::AllocateFp8Linear(matrix.form.Fp8ShapeOf(matrix.n, matrix.k))
            : kernels::AllocateQuantizedLinear(matrix.form.ShapeOf(matrix.n, matrix.k),
                                               OrderOf(matrix));
    if (!packed.ok()) return packed.status();
    weights->matrices.push_back(*std::move(packed));
  }
  return absl::OkStatus();
}

// Returns the matrices of all experts as groups. REQUIRES: corresponding matrices of the experts
// have equal formats and shapes, and are at equal distances in memory.
std::vector<kernels::LinearGroups> GroupsOf(const std::vector<LinearWeights>& experts) {
  std::vector<kernels::LinearGroups> groups;
  if (experts.empty()) return groups;
  const LinearWeights& first = experts[0];
  const float* bias = first.bias;
  for (std::size_t i = 0; i < first.matrices.size(); ++i) {
    std::optional<kernels::LinearGroups> found = kernels::LinearGroupsOf(
        static_cast<std::uint32_t>(experts.size()),
        [&experts, i](std::uint32_t expert) -> const kernels::PackedLinear& {
          return experts[expert].matrices[i];
        });
    QUIRE_CHECK(found.has_value());
    if (bias != nullptr) {
      found->bias = bias;
      found->bias_distance = experts.size() == 1 ? 0 : experts[1].bias - first.bias;
      bias += first.matrices[i].n();
    }
    groups.push_back(*found);
  }
  for (std::size_t expert = 0; expert < experts.size(); ++expert) {
    QUIRE_CHECK(experts[expert].matrices.size() == groups.size());
    QUIRE_CHECK(first.bias == nullptr ||
                experts[expert].bias - first.bias ==
                    static_cast<std::int64_t>(expert) * groups[0].bias_distance);
  }
  return groups;
}

}  // namespace

absl::Status ApplyLinear(const kernels::Backend& backend, const LinearWeights& weights,
                         kernels::LinearParams params) {
  params.bias = weights.bias;
  for (const kernels::PackedLinear& matrix : weights.matrices) {
    params.weight = &matrix;
    QUIRE_RETURN_IF_ERROR(kernels::Linear(backend, params));
    params.y = params.y + matrix.n();
    if (params.bias != nullptr) params.bias += matrix.n();
    if (params.residual != nullptr) params.residual += matrix.n();
  }
  return absl::OkStatus();
}

absl::Status ApplyGroups(const kernels::Backend& backend,
                         std::span<const kernels::LinearGroups> weights,
                         kernels::GroupedLinearParams params) {
  for (const kernels::LinearGroups& groups : weights) {
    params.weights = groups;
    QUIRE_RETURN_IF_ERROR(kernels::GroupedLinear(backend, params));
    params.y = params.y + groups.first->n();
  }
  return absl::OkStatus();
}

absl::StatusOr<Weights> Weights::Load(const WeightSlots& slots, const kernels::Backend& backend,
                                      const WeightTarget& target) {
  Weights weights;
  Progress progress(slots, backend.cuda() == nullptr);
  QUIRE_CHECK(target.cuda == (backend.cuda() != nullptr));
  Packer packer(backend, target, &progress);
  weights.embedding_dtype_ = EmbeddingDType(*slots.embedding, target.quantization);
  QUIRE_ASSIGN_OR_RETURN(weights.embedding_,
                         packer.LoadEmbedding(*slots.embedding, weights.embedding_dtype_));
  if (slots.input_embedding != nullptr) {
    weights.input_embedding_dtype_ = EmbeddingDType(*slots.input_embedding, target.quantization);
    QUIRE_ASSIGN_OR_RETURN(
        weights.input_embedding_,
        packer.LoadEmbedding(*slots.input_embedding, weights.input_embedding_dtype_));
  }
  if (!slots.input_context.matrices.empty()) {
    const LinearPair context{&slots.input_context, &weights.input_context_};
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer block, packer.Load({&context, 1}));
    weights.matrices_.push_back(std::move(block));
  }
  // Resized once, since MakePairs and VectorPlaces point to elements.
  weights.layers_.resize(slots.layers.size());
  for (std::size_t i = 0; i < slots.layers.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer block,
                           packer.Load(MakePairs(slots.layers[i], &weights.layers_[i])));
    weights.matrices_.push_back(std::move(block));
  }
  const LinearPair head{&slots.head, &weights.head_};
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer block, packer.Load({&head, 1}));
  weights.matrices_.push_back(std::move(block));
  const std::vector<VectorPlace> vectors = VectorPlaces(
      slots, weights.layers_, {&weights.input_norm_, &weights.final_norm_, &weights.head_});
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> values,
                         ReadVectors(vectors, VectorFloats(slots), backend));
  QUIRE_ASSIGN_OR_RETURN(
      weights.vectors_,
      CopyToBackend(values.data(), static_cast<std::int64_t>(values.size() * sizeof(float)),
                    backend));
  SetPointers(weights.vectors_.data(), vectors);
  for (LayerWeights& layer : weights.layers_) {
    if (!target.cuda) break;
    layer.moe.gate_up_groups = GroupsOf(layer.moe.gate_up);
    layer.moe.down_groups = GroupsOf(layer.moe.down);
  }
  progress.Finish();
  return weights;
}

absl::StatusOr<Weights> Weights::Allocate(const WeightSlots& slots, Quantization quantization,
                                          const kernels::Backend& backend) {
  Weights weights;
  weights.embedding_dtype_ = EmbeddingDType(*slots.embedding, quantization);
  QUIRE_ASSIGN_OR_RETURN(
      weights.embedding_,
      DeviceBuffer::Allocate(MemoryKind::kHost, slots.embedding->num_elements() *
                                                    DTypeSize(weights.embedding_dtype_)));
  if (slots.input_embedding != nullptr) {
    weights.input_embedding_dtype_ = EmbeddingDType(*slots.input_embedding, quantization);
    QUIRE_ASSIGN_OR_RETURN(
        weights.input_embedding_,
        DeviceBuffer::Allocate(MemoryKind::kHost, slots.input_embedding->num_elements() *
                                                      DTypeSize(weights.input_embedding_dtype_)));
  }
  QUIRE_RETURN_IF_ERROR(AllocateMatrices(slots.input_context, backend, &weights.input_context_));
  weights.layers_.resize(slots.layers.size());
  for (std::size_t i = 0; i < slots.layers.size(); ++i) {
    for (const auto& [slot, linear] : MakePairs(slots.layers[i], &weights.layers_[i])) {
      QUIRE_RETURN_IF_ERROR(AllocateMatrices(*slot, backend, linear));
    }
  }
  QUIRE_RETURN_IF_ERROR(AllocateMatrices(slots.head, backend, &weights.head_));
  QUIRE_ASSIGN_OR_RETURN(
      weights.vectors_,
      DeviceBuffer::Allocate(MemoryKind::kHost,
                             VectorFloats(slots) * static_cast<std::int64_t>(sizeof(float))));
  SetPointers(weights.vectors_.data(),
              VectorPlaces(slots, weights.layers_,
                           {&weights.input_norm_, &weights.final_norm_, &weights.head_}));
  return weights;
}

std::vector<Weights::Section> Weights::Sections() const {
  std::vector<Section> sections = {
      {absl::StrCat("embedding ", DTypeName(embedding_dtype_)), embedding_.bytes()},
      {"vectors f32", vectors_.bytes()}};
  const auto add = [&](const LinearWeights& linear, absl::string_view name) {
    for (const kernels::PackedLinear& matrix : linear.matrices) {
      const MatrixForm form{.format = matrix.format(),
                            .dtype = matrix.dtype(),
                            .group = matrix.group() == matrix.k() ? 0 : matrix.group(),
                            .has_min = matrix.has_min(),
                            .has_zero_points = matrix.has_zero_points(),
                            .has_act_order = matrix.act_order() != nullptr};
      const std::string what =
          absl::StrCat(name, " ", FormName(form), matrix.has_ordered_pairs() ? " ordered" : "",
                       " [", matrix.n(), ", ", matrix.k(), "]");
      sections.push_back({what, matrix.element_memory()});
      if (!matrix.scale_memory().empty()) {
        sections.push_back({absl::StrCat(what, " scales"), matrix.scale_memory()});
      }
    }
  };
  if (!input_embedding_.bytes().empty()) {
    sections.push_back({absl::StrCat("input_embedding ", DTypeName(input_embedding_dtype_)),
                        input_embedding_.bytes()});
  }
  add(input_context_, "input_context");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const auto& [name, linear] : LinearsOf(layers_[i])) {
      add(*linear, absl::StrCat("layers.", i, ".", name));
    }
  }
  add(head_, "head");
  return sections;
}

std::int64_t Weights::size_bytes() const {
  std::int64_t bytes =
      embedding_.size_bytes() + input_embedding_.size_bytes() + vectors_.size_bytes();
  for (const DeviceBuffer& block : matrices_) bytes += block.size_bytes();
  if (embedding_.kind() == MemoryKind::kDevice) return bytes;
  const auto add = [&](const LinearWeights& linear) {
    for (const kernels::PackedLinear& matrix : linear.matrices) bytes += matrix.size_bytes();
  };
  for (const LayerWeights& layer : layers_) {
    for (const auto& [name, linear] : LinearsOf(layer)) add(*linear);
  }
  add(input_context_);
  add(head_);
  return bytes;
}

}  // namespace quire::models
