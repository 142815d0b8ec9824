#include "models/weights/dummy_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/split_mix.h"
#include "base/status.h"
#include "models/config/tensor_table.h"

namespace quire::models {
namespace {

// Number of different offsets in the block at which tensors start.
constexpr std::uint64_t kOffsets = std::uint64_t{1} << 16;
constexpr float kLargest = 0.035f;

struct Wanted {
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_norm = false;
};

// Collects the tensors of one model, under the names that FindWeights looks for.
class WantedList {
 public:
  WantedList(const ModelSpec& spec, const TensorNames& names) : spec_(spec), names_(names) {}

  std::vector<Wanted> Take() {
    Add(absl::StrCat(names_.embedding, ".weight"), {spec_.vocab_size, spec_.hidden});
    AddLayerInputs();
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      layer_ = &spec_.layers[i];
      ForEachTensor(*layer_, [&](BlockKind block, const TensorInfo& info) {
        AddTensor(info, BlockPrefix(names_, block, i));
      });
    }
    if (spec_.final_norm.kind != NormKind::kNone) {
      Add(absl::StrCat(names_.final_norm, ".weight"), {spec_.hidden}, /*is_norm=*/true);
    }
    if (spec_.num_labels > 0) Add("score.weight", {spec_.num_labels, spec_.hidden});
    if (spec_.has_head && !spec_.tie_embeddings) {
      Add(absl::StrCat(names_.head, ".weight"), {spec_.vocab_size, spec_.hidden});
    }
    return std::move(wanted_);
  }

 private:
  // Several rows of the tensor table may be parts of one tensor, which is added only once.
  void Add(std::string name, std::vector<std::int64_t> shape, bool is_norm = false) {
    if (!added_.insert(name).second) return;
    wanted_.push_back({std::move(name), std::move(shape), is_norm});
  }

  void AddLayerInputs() {
    const PerLayerInputSpec& inputs = spec_.layer_inputs;
    if (inputs.size == 0) return;
    const std::int64_t all =
        std::int64_t{inputs.size} * static_cast<std::int64_t>(spec_.layers.size());
    Add(absl::StrCat(names_.input_embedding, ".weight"), {inputs.vocab, all});
    Add(absl::StrCat(names_.input_context, ".weight"), {all, spec_.hidden});
    if (inputs.norm.kind == NormKind::kNone) return;
    Add(absl::StrCat(names_.input_norm, ".weight"), {inputs.size}, /*is_norm=*/true);
  }

  std::int64_t SizeOf(Dim dim) const { return ExtentOf(dim, spec_.hidden, *layer_).size; }

  void AddTensor(const TensorInfo& info, const std::string& prefix) {
    for (const PartInfo& part : info.PartsIn(names_)) {
      if (part.pick != nullptr && part.pick(*layer_).empty()) continue;
      const bool has_bias = part.has_bias != nullptr && part.has_bias(*layer_);
      const std::string name = PartName(names_, info, part, prefix);
      switch (info.kind) {
        case TensorKind::kNorm:
          Add(absl::StrCat(name, ".weight"), {SizeOf(part.rows)}, /*is_norm=*/true);
          break;
        case TensorKind::kVector:
          Add(name, info.columns == Dim::kNone
                        ? std::vector<std::int64_t>{SizeOf(part.rows)}
                        : std::vector<std::int64_t>{SizeOf(part.rows), SizeOf(info.columns)});
          break;
        case TensorKind::kExpertMatrices:
          AddExperts(info, part, has_bias, prefix);
          break;
        case TensorKind::kHeadMatrices:
          AddHeads(info, part, prefix);
          break;
        default:
          AddMatrix(name, SizeOf(part.rows), SizeOf(info.columns), has_bias);
      }
    }
  }

  void AddMatrix(const std::string& name, std::int64_t rows, std::int64_t columns, bool has_bias) {
    Add(absl::StrCat(name, ".weight"), {rows, columns});
    if (has_bias) Add(absl::StrCat(name, ".bias"), {rows});
  }

  void AddHeads(const TensorInfo& info, const PartInfo& part, const std::string& prefix) {
    const absl::string_view stack = names_.*part.stack_name;
    if (stack.empty()) {
      return AddMatrix(PartName(names_, info, part, prefix), SizeOf(part.rows),
                       SizeOf(info.columns), /*has_bias=*/false);
    }
    Add(absl::StrCat(prefix, stack, ".weight"),
        {layer_->mla.num_heads, SizeOf(info.outputs()), SizeOf(info.inputs())});
  }

  void AddExperts(const TensorInfo& info, const PartInfo& part, bool has_bias,
                  const std::string& prefix) {
    const std::int64_t experts = layer_->moe.num_experts;
    const std::int64_t rows = SizeOf(part.rows), columns = SizeOf(info.columns);
    switch (ExpertStorageOf(names_)) {
      case ExpertStorage::kPerExpert:
        for (std::int64_t e = 0; e < experts; ++e) {
          AddMatrix(absl::StrCat(prefix, "experts.", e, ".", names_.*part.name), rows, columns,
                    has_bias);
        }
        break;
      case ExpertStorage::kStacks: {
        const std::string name = absl::StrCat(prefix, names_.*part.stack_name);
        Add(absl::StrCat(name, ".weight"), {experts, rows, columns});
        if (has_bias) Add(absl::StrCat(name, ".bias"), {experts, rows});
        break;
      }
      case ExpertStorage::kTransposedStacks:
      case ExpertStorage::kRowStacks: {
        const std::string name = absl::StrCat(prefix, "experts.", names_.*part.name);
        Add(name, ExpertStorageOf(names_) == ExpertStorage::kRowStacks
                      ? std::vector<std::int64_t>{experts, rows, columns}
                      : std::vector<std::int64_t>{experts, columns, rows});
        if (has_bias) Add(absl::StrCat(name, "_bias"), {experts, rows});
        break;
      }
    }
  }

  const ModelSpec& spec_;
  const TensorNames& names_;
  const LayerSpec* layer_ = nullptr;
  std::vector<Wanted> wanted_;
  absl::flat_hash_set<std::string> added_;
};

// Computes the FNV-1a hash.
std::uint64_t NameHash(absl::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Returns a value in +-kLargest.
float ValueAt(std::uint64_t i) {
  const std::uint64_t bits = SplitMix(i * kSplitMixStep);
  return (static_cast<float>(bits >> 40) / static_cast<float>(1 << 23) - 1.0f) * kLargest;
}

template <typename T, typename FromFloat>
void FillWith(std::byte* block, std::int64_t ones, std::int64_t values, FromFloat&& from_float) {
  T* const elements = reinterpret_cast<T*>(block);
  std::fill_n(elements, ones, from_float(1.0f));
  for (std::int64_t i = 0; i < values; ++i) {
    elements[ones + i] = from_float(ValueAt(static_cast<std::uint64_t>(i)));
  }
}

// Writes `ones` ones, then `values` values.
void Fill(std::byte* block, DType dtype, std::int64_t ones, std::int64_t values) {
  if (dtype == DType::kF32) {
    FillWith<float>(block, ones, values, [](float x) { return x; });
  } else if (dtype == DType::kF16) {
    FillWith<F16>(block, ones, values, [](float x) { return F16::FromFloat(x); });
  } else {
    FillWith<BF16>(block, ones, values, [](float x) { return BF16::FromFloat(x); });
  }
}

}  // namespace

absl::StatusOr<Checkpoint> DummyCheckpoint(const ModelConfig& config, const ModelSpec& spec,
                                           const TensorNames& names, bool with_values) {
  const bool known = config.dtype == DType::kF32 || config.dtype == DType::kF16;
  const DType dtype = known ? config.dtype : DType::kBF16;
  const std::int64_t element = DTypeSize(dtype);
  std::vector<formats::StoredTensor> tensors;
  std::vector<bool> is_norm;
  std::int64_t largest = 0;
  std::int64_t largest_norm = 0;
  for (Wanted& wanted : WantedList(spec, names).Take()) {
    formats::StoredTensor tensor;
    tensor.name = std::move(wanted.name);
    tensor.type = dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
    tensor.dtype = dtype;
    tensor.shape = std::move(wanted.shape);
    tensor.file = "dummy weights";
    std::int64_t& most = wanted.is_norm ? largest_norm : largest;
    most = std::max(most, tensor.num_elements());
    tensors.push_back(std::move(tensor));
    is_norm.push_back(wanted.is_norm);
  }
  const std::int64_t ones = largest_norm;
  const std::int64_t values = largest + static_cast<std::int64_t>(kOffsets);
  auto memory = std::make_shared<DeviceBuffer>();
  QUIRE_ASSIGN_OR_RETURN(*memory,
                         DeviceBuffer::Allocate(MemoryKind::kHost, (ones + values) * element));
  std::byte* const block = static_cast<std::byte*>(memory->data());
  if (with_values) Fill(block, dtype, ones, values);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t first =
        is_norm[i] ? 0 : ones + static_cast<std::int64_t>(NameHash(tensors[i].name) % kOffsets);
    tensors[i].bytes = {block + first * element,
                        static_cast<std::size_t>(tensors[i].num_elements() * element)};
  }
  return Checkpoint::FromTensors(std::move(tensors), std::move(memory));
}

}  // namespace quire::models
