#include "models/weights/dummy_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/split_mix.h"
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

// Collects the tensors of one model by the names that FindWeights looks for.
class WantedList {
 public:
  WantedList(const ModelSpec& spec, const TensorNames& names) : spec_(spec), names_(names) {}

  std::vector<Wanted> Take() {
    Matrix(names_.embedding, spec_.vocab_size, spec_.hidden, false);
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      prefix_ = absl::StrCat(names_.layer_prefix, i, ".");
      if (spec_.layers[i].attention == AttentionKind::kMla) {
        Latent(spec_.layers[i]);
      } else {
        Attention(spec_.layers[i]);
      }
      Mlp(spec_.layers[i]);
    }
    prefix_.clear();
    Norm(names_.final_norm, spec_.final_norm, spec_.hidden);
    if (spec_.num_labels > 0) Matrix("score", spec_.num_labels, spec_.hidden, false);
    if (spec_.has_head && !spec_.tie_embeddings)
      Matrix(names_.head, spec_.vocab_size, spec_.hidden, false);
    return std::move(wanted_);
  }

 private:
  void Matrix(absl::string_view name, std::int64_t rows, std::int64_t columns, bool bias) {
    wanted_.push_back({absl::StrCat(prefix_, name, ".weight"), {rows, columns}});
    if (bias) wanted_.push_back({absl::StrCat(prefix_, name, ".bias"), {rows}});
  }
  void Norm(absl::string_view name, const NormSpec& norm, std::int64_t elements) {
    if (norm.kind == NormKind::kNone) return;
    wanted_.push_back({absl::StrCat(prefix_, name, ".weight"), {elements}, true});
  }

  void Latent(const LayerSpec& layer) {
    const MlaSpec& mla = layer.mla;
    const std::int64_t heads = mla.num_heads;
    const std::int64_t queries = heads * (mla.nope_size + mla.rope_size);
    const std::int64_t rank = mla.kv_lora_rank;
    NormSpec norm;
    norm.kind = NormKind::kRms;
    Norm(names_.attn_in, layer.attn_in, spec_.hidden);
    if (mla.q_lora_rank == 0) {
      Matrix(names_.q, queries, spec_.hidden, false);
    } else {
      Matrix(names_.q_a, mla.q_lora_rank, spec_.hidden, mla.qa_bias);
      Norm(names_.q_a_norm, norm, mla.q_lora_rank);
      Matrix(names_.q_b, queries, mla.q_lora_rank, false);
    }
    Matrix(names_.kv_a, rank + mla.rope_size, spec_.hidden, mla.kva_bias);
    Norm(names_.kv_a_norm, norm, rank);
    Matrix(names_.kv_b, heads * (mla.nope_size + mla.v_size), rank, false);
    Matrix(names_.o, spec_.hidden, heads * mla.v_size, mla.o_bias);
    Norm(names_.attn_out, layer.attn_out, spec_.hidden);
  }

  void Attention(const LayerSpec& layer) {
    const AttentionSpec& heads = layer.heads;
    const std::int64_t size = heads.head_size;
    const std::int64_t q = heads.num_heads * size;
    const std::int64_t kv = heads.num_kv_heads * size;
    Norm(names_.attn_in, layer.attn_in, spec_.hidden);
    if (names_.qkv.empty()) {
      Matrix(names_.q, q, spec_.hidden, heads.q_bias);
      Matrix(names_.k, kv, spec_.hidden, heads.k_bias);
      Matrix(names_.v, kv, spec_.hidden, heads.v_bias);
    } else {
      Matrix(names_.qkv, q + 2 * kv, spec_.hidden, heads.q_bias);
    }
    const bool whole = heads.qk_norm_scope == QkNormScope::kWhole;
    Norm(names_.q_norm, heads.qk_norm, whole ? q : size);
    Norm(names_.k_norm, heads.qk_norm, whole ? kv : size);
    if (heads.has_sinks) {
      wanted_.push_back({absl::StrCat(prefix_, names_.sinks), {std::int64_t{heads.num_heads}}});
    }
    Matrix(names_.o, spec_.hidden, q, heads.o_bias);
    Norm(names_.attn_out, layer.attn_out, spec_.hidden);
  }

  void Mlp(const LayerSpec& layer) {
    Norm(names_.mlp_in, layer.mlp_in, spec_.hidden);
    if (layer.mlp == MlpKind::kMoe) {
      Moe(layer.moe);
    } else {
      Dense(layer.dense);
    }
    Norm(names_.mlp_out, layer.mlp_out, spec_.hidden);
  }

  void Dense(const MlpSpec& mlp) {
    const std::int64_t inner = mlp.intermediate;
    if (names_.gate_up.empty()) {
      Matrix(names_.gate, inner, spec_.hidden, mlp.gate_bias);
      Matrix(names_.up, inner, spec_.hidden, mlp.up_bias);
    } else {
      Matrix(names_.gate_up, 2 * inner, spec_.hidden, mlp.gate_bias);
    }
    Matrix(names_.down, spec_.hidden, inner, mlp.down_bias);
  }

  void Moe(const MoeSpec& moe) {
    const std::string root = names_.moe.empty() ? "" : absl::StrCat(names_.moe, ".");
    Matrix(absl::StrCat(root, names_.router), moe.num_experts, spec_.hidden, moe.router_bias);
    if (moe.choice_bias) {
      wanted_.push_back(
          {absl::StrCat(prefix_, root, names_.choice_bias), {std::int64_t{moe.num_experts}}});
    }
    if (!names_.split_gate.empty()) {
      SplitExperts(root, moe);
    } else if (!names_.stacked_gate_up.empty()) {
      StackedExperts(absl::StrCat(root, "experts."), moe);
    } else {
      for (std::uint32_t e = 0; e < moe.num_experts; ++e) {
        Expert(absl::StrCat(root, "experts.", e, "."), moe.expert);
      }
    }
    if (!moe.shared) return;
    Expert(absl::StrCat(root, names_.shared, "."), *moe.shared);
    if (moe.shared_gate) Matrix(absl::StrCat(root, names_.shared_gate), 1, spec_.hidden, false);
  }

  void SplitExperts(const std::string& root, const MoeSpec& moe) {
    const std::int64_t experts = moe.num_experts, inner = moe.expert.intermediate;
    const std::int64_t hidden = spec_.hidden;
    const struct {
      absl::string_view name;
      std::int64_t rows, columns;
      bool has_bias;
    } stacks[] = {{names_.split_gate, inner, hidden, moe.expert.gate_bias},
                  {names_.split_up, inner, hidden, moe.expert.up_bias},
                  {names_.split_down, hidden, inner, moe.expert.down_bias}};
    for (const auto& stack : stacks) {
      const std::string name = absl::StrCat(prefix_, root, stack.name);
      wanted_.push_back({absl::StrCat(name, ".weight"), {experts, stack.rows, stack.columns}});
      if (stack.has_bias) wanted_.push_back({absl::StrCat(name, ".bias"), {experts, stack.rows}});
    }
  }

  void StackedExperts(const std::string& root, const MoeSpec& moe) {
    const std::int64_t experts = moe.num_experts, inner = moe.expert.intermediate;
    const std::int64_t hidden = spec_.hidden;
    const std::string gate_up = absl::StrCat(prefix_, root, names_.stacked_gate_up);
    const std::string down = absl::StrCat(prefix_, root, names_.stacked_down);
    wanted_.push_back({gate_up, {experts, hidden, 2 * inner}});
    wanted_.push_back({down, {experts, inner, hidden}});
    if (moe.expert.gate_bias) wanted_.push_back({gate_up + "_bias", {experts, 2 * inner}});
    if (moe.expert.down_bias) wanted_.push_back({down + "_bias", {experts, hidden}});
  }

  void Expert(const std::string& name, const MlpSpec& mlp) {
    const std::int64_t inner = mlp.intermediate;
    Matrix(absl::StrCat(name, names_.expert_gate), inner, spec_.hidden, mlp.gate_bias);
    Matrix(absl::StrCat(name, names_.expert_up), inner, spec_.hidden, mlp.up_bias);
    Matrix(absl::StrCat(name, names_.expert_down), spec_.hidden, inner, mlp.down_bias);
  }

  const ModelSpec& spec_;
  const TensorNames& names_;
  std::string prefix_;  // of the layer
  std::vector<Wanted> wanted_;
};

// FNV-1a.
std::uint64_t NameHash(absl::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Within +-kLargest.
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
