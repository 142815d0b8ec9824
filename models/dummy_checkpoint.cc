#include "models/dummy_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/status.h"

namespace quire::models {
namespace {

// Tensors start at one of these many elements of the block.
constexpr std::uint64_t kOffsets = std::uint64_t{1} << 16;
constexpr float kLargest = 0.035f;

struct Wanted {
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_norm = false;
};

std::vector<Wanted> WantedTensors(const ModelSpec& spec, const TensorNames& names) {
  std::vector<Wanted> wanted;
  const std::int64_t hidden = spec.hidden;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                          bool bias) {
    wanted.push_back({absl::StrCat(name, ".weight"), {rows, columns}});
    if (bias) wanted.push_back({absl::StrCat(name, ".bias"), {rows}});
  };
  const auto norm = [&](const std::string& name) {
    wanted.push_back({absl::StrCat(name, ".weight"), {hidden}, true});
  };
  matrix(std::string(names.embedding), spec.vocab_size, hidden, false);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const std::string prefix = absl::StrCat(names.layer_prefix, i, ".");
    const std::int64_t q = std::int64_t{layer.heads.num_heads} * layer.heads.head_size;
    const std::int64_t kv = std::int64_t{layer.heads.num_kv_heads} * layer.heads.head_size;
    const std::int64_t inner = layer.dense.intermediate;
    norm(absl::StrCat(prefix, names.attn_in));
    matrix(absl::StrCat(prefix, names.q), q, hidden, layer.heads.q_bias);
    matrix(absl::StrCat(prefix, names.k), kv, hidden, layer.heads.k_bias);
    matrix(absl::StrCat(prefix, names.v), kv, hidden, layer.heads.v_bias);
    matrix(absl::StrCat(prefix, names.o), hidden, q, layer.heads.o_bias);
    norm(absl::StrCat(prefix, names.mlp_in));
    matrix(absl::StrCat(prefix, names.gate), inner, hidden, layer.dense.gate_bias);
    matrix(absl::StrCat(prefix, names.up), inner, hidden, layer.dense.up_bias);
    matrix(absl::StrCat(prefix, names.down), hidden, inner, layer.dense.down_bias);
  }
  norm(std::string(names.final_norm));
  if (!spec.tie_embeddings) matrix(std::string(names.head), spec.vocab_size, hidden, false);
  return wanted;
}

// FNV-1a.
std::uint64_t NameHash(absl::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The finaliser of SplitMix64, as a value in +-kLargest.
float ValueAt(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return (static_cast<float>(z >> 40) / static_cast<float>(1 << 23) - 1.0f) * kLargest;
}

template <typename T, typename FromFloat>
void FillWith(std::byte* block, std::int64_t ones, std::int64_t values, FromFloat&& from_float) {
  T* const elements = reinterpret_cast<T*>(block);
  std::fill_n(elements, ones, from_float(1.0f));
  for (std::int64_t i = 0; i < values; ++i) {
    elements[ones + i] = from_float(ValueAt(static_cast<std::uint64_t>(i)));
  }
}

// `ones` ones, then `values` values.
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
  std::vector<StoredTensor> tensors;
  std::vector<bool> is_norm;
  std::int64_t largest = 0;
  for (Wanted& wanted : WantedTensors(spec, names)) {
    StoredTensor tensor;
    tensor.name = std::move(wanted.name);
    tensor.type = dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
    tensor.dtype = dtype;
    tensor.shape = std::move(wanted.shape);
    tensor.file = "dummy weights";
    largest = std::max(largest, tensor.num_elements());
    tensors.push_back(std::move(tensor));
    is_norm.push_back(wanted.is_norm);
  }
  const std::int64_t ones = spec.hidden;
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
