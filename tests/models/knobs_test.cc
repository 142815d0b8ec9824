// Tests every option of a dense layer in blocks and head. Results are compared with the formulas of
// layer_spec.h in double precision, and bitwise between chunkings. Each option alone must change
// the logits, so that none passes because it has no effect.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kHidden = 48, kVocab = 40, kInner = 40, kTokens = 90;
constexpr std::uint32_t kInput = 10;
constexpr TensorNames kNames{.attn_out = "attn_out",
                             .mlp_out = "mlp_out",
                             .output_scale = "output_scale",
                             .input_embedding = "input_embedding",
                             .input_context = "input_context",
                             .input_norm = "input_norm",
                             .input_gate = "input_gate",
                             .input_out = "input_out",
                             .input_out_norm = "input_out_norm",
                             .q_norm = "q_norm",
                             .k_norm = "k_norm",
                             .sinks = "sinks"};
constexpr NormSpec kNorm{.kind = NormKind::kRms, .eps = 0.01f};

ModelSpec BaseSpec() {
  LayerSpec layer;
  layer.attn_in = layer.mlp_in = kNorm;
  layer.heads.num_heads = 4;
  layer.heads.num_kv_heads = 2;
  layer.heads.head_size = layer.heads.v_head_size = 12;
  layer.heads.rope = 0;
  layer.heads.rotary_size = 12;
  layer.heads.scale = 0.4f;
  layer.dense.intermediate = kInner;
  ModelSpec spec;
  spec.vocab_size = kVocab;
  spec.hidden = kHidden;
  spec.max_position = 256;
  spec.layers.assign(2, layer);
  spec.rope_tables.push_back({{1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.01f}, 1.1f});
  spec.rope_tables.push_back({{0.7f, 0.3f, 0.1f, 0.02f}, 0.9f});
  spec.final_norm = kNorm;
  return spec;
}

struct Knob {
  const char* name;
  std::function<void(ModelSpec&)> turn;
};

// The option is set in only one of two layers, to prove that it is per layer.
AttentionSpec& Heads(ModelSpec& spec) {
  return spec.layers[1].heads;
}
MlpSpec& Dense(ModelSpec& spec) {
  return spec.layers[0].dense;
}

void RotatePart(ModelSpec& spec, std::uint32_t first) {
  Heads(spec).rope = 1;
  Heads(spec).rotary_size = 8;
  Heads(spec).rotary_first = first;
}

void ScaleByPosition(ModelSpec& spec) {
  Heads(spec).q_position_scale = {.beta = 0.4f, .period = 16, .offset = 1};
}

// The norm has no weights, and the rotation does not scale.
void NormAfterRope(ModelSpec& spec) {
  Heads(spec).qk_norm = kNorm;
  Heads(spec).qk_norm.has_weight = false;
  Heads(spec).qk_norm_after_rope = true;
  spec.rope_tables[0].attention_factor = 1;
}

void PostNorms(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) layer.attn_out = layer.mlp_out = kNorm;
}

// Layer 0 has the MLP alone, layer 1 attention alone, which is also its last branch.
void OneBranchLayers(ModelSpec& spec) {
  spec.layers[0].attention = AttentionKind::kNone;
  spec.layers[0].attn_in = {};
  spec.layers[1].mlp = MlpKind::kNone;
  spec.layers[1].mlp_in = {};
  for (LayerSpec& layer : spec.layers) layer.output_scale = 0.6f;
}

void NoGate(ModelSpec& spec) {
  Dense(spec).gated = false;
  Dense(spec).act = Activation::kRelu2;
  Dense(spec).up_bias = Dense(spec).down_bias = true;
}

void PostNormsOnly(ModelSpec& spec) {
  PostNorms(spec);
  for (LayerSpec& layer : spec.layers) layer.attn_in = layer.mlp_in = {};
}

void Clamp(ModelSpec& spec) {
  Dense(spec).alpha = 1.702f;
  Dense(spec).limit = 0.7f;
  Dense(spec).up_offset = 1;
}

NormSpec WithoutWeight(NormSpec norm) {
  norm.has_weight = false;
  return norm;
}

// The heads of the second layer have twice the size, so that it takes two slots.
void WideHeads(ModelSpec& spec) {
  Heads(spec).head_size = Heads(spec).v_head_size = 24;
}

// A third layer reads the K and V of layer `source`.
void ShareKeys(ModelSpec& spec, std::size_t source) {
  spec.layers.push_back(spec.layers[source]);
  spec.layers.back().kv_from_layer = static_cast<std::int32_t>(source);
}

void UseGate(ModelSpec& spec) {
  Heads(spec).output_gate = true;
}

void UseInputs(ModelSpec& spec, const NormSpec& norm) {
  spec.layer_inputs = {.size = kInput,
                       .vocab = kVocab + 3,
                       .embed_scale = 1.7f,
                       .projection_scale = 0.3f,
                       .scale = 0.7f,
                       .norm = norm};
  for (LayerSpec& layer : spec.layers) {
    layer.input = {.size = kInput, .act = Activation::kGeluTanh, .norm = norm};
  }
}

// Options of values, of KV rows that differ or are shared, and of inputs per layer.
std::vector<Knob> KnobsOfLayersThatDiffer() {
  return {
      {"v_norm", [](ModelSpec& s) { Heads(s).v_norm = WithoutWeight(kNorm); }},
      {"v_from_k",
       [](ModelSpec& s) {
         Heads(s).v_from_k = true;
         Heads(s).qk_norm = kNorm;
       }},
      {"v_from_k_with_norm",
       [](ModelSpec& s) {
         Heads(s).v_from_k = true;
         Heads(s).qk_norm = kNorm;
         Heads(s).v_norm = WithoutWeight(kNorm);
       }},
      {"wide_heads", WideHeads},
      {"wide_heads_of_512",
       [](ModelSpec& s) {
         s.layers[0].heads.head_size = s.layers[0].heads.v_head_size = 256;
         Heads(s).head_size = Heads(s).v_head_size = 512;
         Heads(s).num_kv_heads = 1;
         for (LayerSpec& layer : s.layers) layer.heads.scale = 0.02f;
       }},
      {"shared_keys", [](ModelSpec& s) { ShareKeys(s, 0); }},
      {"output_gate", UseGate},
      {"shared_keys_with_output_gate",
       [](ModelSpec& s) {
         UseGate(s);
         ShareKeys(s, 1);
       }},
      {"shared_keys_of_windows_and_wide_heads",
       [](ModelSpec& s) {
         s.layers[0].heads.window = 7;
         WideHeads(s);
         Heads(s).qk_norm = kNorm;
         Heads(s).v_norm = WithoutWeight(kNorm);
         ShareKeys(s, 1);
         ShareKeys(s, 0);
       }},
      {"stored_output_scale", [](ModelSpec& s) { s.layers[1].has_output_scale = true; }},
      {"stored_output_scale_without_mlp",
       [](ModelSpec& s) {
         s.layers[0].has_output_scale = true;
         s.layers[0].mlp = MlpKind::kNone;
         s.layers[0].mlp_in = {};
       }},
      {"inputs", [](ModelSpec& s) { UseInputs(s, {}); }},
      {"inputs_with_norms",
       [](ModelSpec& s) {
         UseInputs(s, kNorm);
         s.layers[0].has_output_scale = true;
         s.layers[0].output_scale = 0.8f;
       }},
  };
}

std::vector<Knob> Knobs() {
  return {
      {"window", [](ModelSpec& s) { Heads(s).window = 7; }},
      {"chunk", [](ModelSpec& s) { Heads(s).chunk = 23; }},
      {"q_position_scale", ScaleByPosition},
      {"qk_norm_after_rope", NormAfterRope},
      {"softcap", [](ModelSpec& s) { Heads(s).softcap = 0.8f; }},
      {"sinks", [](ModelSpec& s) { Heads(s).has_sinks = true; }},
      {"scale", [](ModelSpec& s) { Heads(s).scale = 0.1f; }},
      {"no_rope", [](ModelSpec& s) { Heads(s).rope = -1; }},
      {"partial_rope", [](ModelSpec& s) { RotatePart(s, 0); }},
      {"rotary_first", [](ModelSpec& s) { RotatePart(s, 4); }},
      {"interleaved", [](ModelSpec& s) { Heads(s).rope_style = RopeStyle::kInterleaved; }},
      {"qk_norm", [](ModelSpec& s) { Heads(s).qk_norm = kNorm; }},
      {"qk_norm_whole",
       [](ModelSpec& s) {
         Heads(s).qk_norm = kNorm;
         Heads(s).qk_norm_scope = QkNormScope::kWhole;
       }},
      {"qkv_bias",
       [](ModelSpec& s) { Heads(s).q_bias = Heads(s).k_bias = Heads(s).v_bias = true; }},
      {"o_bias", [](ModelSpec& s) { Heads(s).o_bias = true; }},
      {"sandwich_norms", PostNorms},
      {"post_norms_only", PostNormsOnly},
      {"residual_scale", [](ModelSpec& s) { s.layers[1].residual_scale = 0.37f; }},
      {"output_scale", [](ModelSpec& s) { s.layers[0].output_scale = 0.6f; }},
      {"gelu_tanh", [](ModelSpec& s) { Dense(s).act = Activation::kGeluTanh; }},
      {"gelu_erf", [](ModelSpec& s) { Dense(s).act = Activation::kGeluErf; }},
      {"relu2", [](ModelSpec& s) { Dense(s).act = Activation::kRelu2; }},
      {"no_gate", NoGate},
      {"one_branch_layers", OneBranchLayers},
      {"alpha", [](ModelSpec& s) { Dense(s).alpha = 1.702f; }},
      {"clamp", Clamp},
      {"mlp_bias",
       [](ModelSpec& s) { Dense(s).gate_bias = Dense(s).up_bias = Dense(s).down_bias = true; }},
      {"weight_offset",
       [](ModelSpec& s) {
         s.final_norm.weight_offset = 1;
         for (LayerSpec& layer : s.layers) layer.attn_in.weight_offset = 1;
       }},
      {"embed_scale", [](ModelSpec& s) { s.embed_scale = 3.3f; }},
      {"logit_scale", [](ModelSpec& s) { s.logit_scale = 0.3f; }},
      {"logit_softcap", [](ModelSpec& s) { s.logit_softcap = 0.8f; }},
      {"many_at_once",
       [](ModelSpec& s) {
         PostNorms(s);
         Clamp(s);
         RotatePart(s, 0);
         Heads(s).qk_norm = kNorm;
         Heads(s).qk_norm.weight_offset = 1;
         Heads(s).window = 20;
         Heads(s).has_sinks = true;
         s.layers[0].heads.softcap = 2;
         s.layers[1].residual_scale = 0.5f;
         s.embed_scale = 2;
         s.logit_softcap = 3;
       }},
  };
}

using Doubles = std::vector<double>;

// The tensors of a spec by name, with random values.
struct Tensors {
  explicit Tensors(const ModelSpec& spec) {
    ModelConfig config;
    config.dtype = DType::kF32;
    const auto dummy = DummyCheckpoint(config, spec, kNames, /*with_values=*/false);
    EXPECT_TRUE(dummy.ok()) << dummy.status();
    for (const formats::StoredTensor& tensor : dummy->tensors()) {
      const bool is_norm = tensor.shape.size() == 1 && absl::EndsWith(tensor.name, ".weight");
      const double inputs = static_cast<double>(tensor.shape.back());
      const double deviation = tensor.shape.size() == 1 ? 0.3 : 1.3 / std::sqrt(inputs);
      // Seeds by name, so that a tensor does not depend on the rest of the spec.
      std::mt19937 random(static_cast<std::uint32_t>(std::hash<std::string>()(tensor.name)));
      std::normal_distribution<float> normal(is_norm ? 1 : 0, static_cast<float>(deviation));
      std::vector<float>& values = all[tensor.name];
      values.resize(static_cast<std::size_t>(tensor.num_elements()));
      for (float& value : values) value = normal(random);
      stored.push_back(tensor);
      stored.back().bytes = std::as_bytes(std::span(values));
    }
  }
  const std::vector<float>& At(const std::string& name) const { return all.at(name); }

  std::map<std::string, std::vector<float>> all;
  std::vector<formats::StoredTensor> stored;
};

// Evaluates the formulas token by token.
class Reference {
 public:
  Reference(const ModelSpec& spec, const Tensors& tensors) : spec_(spec), tensors_(tensors) {}

  // Returns the logits of all tokens.
  Doubles Logits(const std::vector<std::int32_t>& tokens) {
    const std::vector<float>& table = tensors_.At("model.embed_tokens.weight");
    std::vector<Doubles> x;
    for (const std::int32_t token : tokens) {
      const float* const row = &table[static_cast<std::size_t>(token) * kHidden];
      Doubles embedded;
      for (std::uint32_t i = 0; i < kHidden; ++i) embedded.push_back(row[i] * spec_.embed_scale);
      x.push_back(embedded);
    }
    if (spec_.layer_inputs.size > 0) ComputeInputs(tokens, x);
    keys_.resize(spec_.layers.size());
    values_.resize(spec_.layers.size());
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      prefix_ = absl::StrCat("model.layers.", i, ".");
      Layer(i, &x);
    }
    prefix_.clear();
    Doubles logits;
    for (const Doubles& row : x) {
      for (double y : Product("lm_head", Norm("model.norm", spec_.final_norm, row), false)) {
        y *= spec_.logit_scale;
        logits.push_back(spec_.logit_softcap == 0
                             ? y
                             : spec_.logit_softcap * std::tanh(y / spec_.logit_softcap));
      }
    }
    return logits;
  }

 private:
  Doubles Product(const std::string& name, const Doubles& x, bool has_bias) const {
    const std::vector<float>& w = tensors_.At(prefix_ + name + ".weight");
    Doubles y(w.size() / x.size());
    for (std::size_t r = 0; r < y.size(); ++r) {
      for (std::size_t i = 0; i < x.size(); ++i) y[r] += double{w[r * x.size() + i]} * x[i];
      if (has_bias) y[r] += double{tensors_.At(prefix_ + name + ".bias")[r]};
    }
    return y;
  }

  // Norm groups are as wide as the weights.
  Doubles Norm(const std::string& name, const NormSpec& norm, Doubles x) const {
    if (norm.kind == NormKind::kNone) return x;
    return WeightedNorm(tensors_.At(prefix_ + name + ".weight"), norm, std::move(x));
  }

  // The norm of q or k.
  Doubles HeadNorm(const std::string& name, const AttentionSpec& heads, Doubles x) const {
    if (heads.qk_norm.kind == NormKind::kNone || heads.qk_norm.has_weight) {
      return Norm(name, heads.qk_norm, std::move(x));
    }
    return PlainNorm(heads.qk_norm, heads.head_size, std::move(x));
  }

  static Doubles WeightedNorm(const std::vector<float>& w, const NormSpec& norm, Doubles x) {
    for (std::size_t at = 0; at < x.size(); at += w.size()) {
      double sum = 0;
      for (std::size_t i = 0; i < w.size(); ++i) sum += x[at + i] * x[at + i];
      const double root = std::sqrt(sum / static_cast<double>(w.size()) + double{norm.eps});
      for (std::size_t i = 0; i < w.size(); ++i) {
        x[at + i] = x[at + i] / root * (double{w[i]} + norm.weight_offset);
      }
    }
    return x;
  }

  // Normalizes groups of `size` elements without weights.
  static Doubles PlainNorm(const NormSpec& norm, std::size_t size, Doubles x) {
    if (norm.kind == NormKind::kNone) return x;
    return WeightedNorm(std::vector<float>(size, 1), norm, std::move(x));
  }

  void ComputeInputs(const std::vector<std::int32_t>& tokens, const std::vector<Doubles>& x) {
    const PerLayerInputSpec& inputs = spec_.layer_inputs;
    const std::vector<float>& table = tensors_.At("input_embedding.weight");
    for (std::size_t t = 0; t < x.size(); ++t) {
      Doubles context = Product("input_context", x[t], false);
      for (double& value : context) value *= double{inputs.projection_scale};
      context = Norm("input_norm", inputs.norm, context);
      for (std::size_t i = 0; i < context.size(); ++i) {
        const float embedded = table[static_cast<std::size_t>(tokens[t]) * context.size() + i];
        context[i] =
            (context[i] + double{embedded} * double{inputs.embed_scale}) * double{inputs.scale};
      }
      inputs_.push_back(context);
    }
  }

  void Rotate(const AttentionSpec& heads, std::size_t position, Doubles* x) const {
    if (heads.rope < 0) return;
    const RopeTable& table = spec_.rope_tables[static_cast<std::size_t>(heads.rope)];
    const bool half = heads.rope_style == RopeStyle::kHalf;
    for (std::size_t head = 0; head < x->size(); head += heads.head_size) {
      for (std::size_t i = 0; i < heads.rotary_size / 2; ++i) {
        // The contract defines the angle as a product in float.
        const double angle = static_cast<float>(position) * table.inv_freq[i];
        const double c = std::cos(angle) * double{table.attention_factor};
        const double s = std::sin(angle) * double{table.attention_factor};
        const std::size_t first = head + heads.rotary_first + (half ? i : 2 * i);
        const std::size_t second = first + (half ? heads.rotary_size / 2 : 1);
        const double x0 = (*x)[first], x1 = (*x)[second];
        (*x)[first] = x0 * c - x1 * s;
        (*x)[second] = x1 * c + x0 * s;
      }
    }
  }

  // Attention of one head over keys [begin, end).
  void Attend(const AttentionSpec& heads, std::size_t head, const Doubles& q,
              const std::vector<Doubles>& k, const std::vector<Doubles>& v, Doubles* out) const {
    const std::size_t d = heads.head_size;
    const std::size_t kv = head / (heads.num_heads / heads.num_kv_heads) * d;
    const std::size_t end = k.size();
    std::size_t begin = heads.window == 0 || end <= heads.window ? 0 : end - heads.window;
    if (heads.chunk != 0) begin = (end - 1) / heads.chunk * heads.chunk;
    double sum = heads.has_sinks ? std::exp(double{tensors_.At(prefix_ + "sinks")[head]}) : 0;
    Doubles total(d);
    for (std::size_t j = begin; j < end; ++j) {
      double score = 0;
      for (std::size_t i = 0; i < d; ++i) score += q[head * d + i] * k[j][kv + i];
      score *= double{heads.scale};
      if (heads.softcap != 0) score = heads.softcap * std::tanh(score / heads.softcap);
      sum += std::exp(score);
      for (std::size_t i = 0; i < d; ++i) total[i] += std::exp(score) * v[j][kv + i];
    }
    for (std::size_t i = 0; i < d; ++i) out->push_back(total[i] / sum);
  }

  static double Activated(const MlpSpec& mlp, double x) {
    switch (mlp.act) {
      case Activation::kSilu:
        return x / (1 + std::exp(-double{mlp.alpha} * x));
      case Activation::kGeluTanh:
        return 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
      case Activation::kGeluErf:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case Activation::kRelu2:
        return x > 0 ? x * x : 0;
    }
    return 0;
  }

  Doubles Mlp(const MlpSpec& mlp, const Doubles& x) const {
    const Doubles up = Product("mlp.up_proj", x, mlp.up_bias);
    if (!mlp.gated) {
      Doubles inner;
      for (const double u : up) inner.push_back(Activated(mlp, u));
      return Product("mlp.down_proj", inner, mlp.down_bias);
    }
    Doubles gate = Product("mlp.gate_proj", x, mlp.gate_bias);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      double g = gate[i], u = up[i];
      if (mlp.limit != 0) {
        g = std::min(g, double{mlp.limit});
        u = std::clamp(u, -double{mlp.limit}, double{mlp.limit});
      }
      gate[i] = Activated(mlp, g) * (u + mlp.up_offset);
    }
    return Product("mlp.down_proj", gate, mlp.down_bias);
  }

  static void Join(const Doubles& branch, double scale, Doubles* x) {
    for (std::size_t i = 0; i < x->size(); ++i) (*x)[i] += scale * branch[i];
  }

  // Normalizes and rotates q or k of token t.
  Doubles Place(const std::string& norm, const AttentionSpec& heads, std::size_t t,
                Doubles x) const {
    if (heads.qk_norm_after_rope) Rotate(heads, t, &x);
    x = HeadNorm(norm, heads, std::move(x));
    if (!heads.qk_norm_after_rope) Rotate(heads, t, &x);
    return x;
  }

  // Appends K and V of a token.
  void Store(const LayerSpec& layer, std::size_t index, const Doubles& in) {
    const AttentionSpec& heads = layer.heads;
    const Doubles k = Product("self_attn.k_proj", in, heads.k_bias);
    const Doubles v = heads.v_from_k ? k : Product("self_attn.v_proj", in, heads.v_bias);
    keys_[index].push_back(Place("k_norm", heads, keys_[index].size(), k));
    values_[index].push_back(PlainNorm(heads.v_norm, heads.head_size, v));
  }

  // Removes the output gates, whose rows follow those of the query of their head.
  static Doubles TakeGates(const AttentionSpec& heads, Doubles* q) {
    Doubles gates;
    if (!heads.output_gate) return gates;
    const auto d = static_cast<std::ptrdiff_t>(heads.head_size);
    for (auto head = q->begin(); head != q->end();) {
      head += d;
      gates.insert(gates.end(), head, head + d);
      head = q->erase(head, head + d);
    }
    return gates;
  }

  // Adds the attention of token t.
  void Attention(const LayerSpec& layer, std::size_t index, std::size_t t, Doubles* row) {
    const AttentionSpec& heads = layer.heads;
    const bool is_shared = layer.kv_from_layer >= 0;
    const std::size_t source = is_shared ? static_cast<std::size_t>(layer.kv_from_layer) : index;
    const Doubles in = Norm("input_layernorm", layer.attn_in, *row);
    Doubles q = Product("self_attn.q_proj", in, heads.q_bias);
    const Doubles gates = TakeGates(heads, &q);
    if (!is_shared) Store(layer, index, in);
    q = Place("q_norm", heads, t, q);
    const PositionScale& scale = heads.q_position_scale;
    if (scale.beta != 0) {
      const auto periods = static_cast<double>((t + scale.offset) / scale.period);
      for (double& value : q) value *= 1 + double{scale.beta} * std::log(1 + periods);
    }
    const auto count = static_cast<std::ptrdiff_t>(t + 1);
    const std::vector<Doubles> k(keys_[source].begin(), keys_[source].begin() + count);
    const std::vector<Doubles> v(values_[source].begin(), values_[source].begin() + count);
    Doubles attended;
    for (std::size_t head = 0; head < heads.num_heads; ++head) {
      Attend(heads, head, q, k, v, &attended);
    }
    for (std::size_t i = 0; i < gates.size(); ++i) attended[i] /= 1 + std::exp(-gates[i]);
    const Doubles o = Product("self_attn.o_proj", attended, heads.o_bias);
    Join(Norm("attn_out", layer.attn_out, o), layer.residual_scale, row);
  }

  void Layer(std::size_t index, std::vector<Doubles>* x) {
    const LayerSpec& layer = spec_.layers[index];
    for (std::size_t t = 0; t < x->size(); ++t) {
      Doubles& row = (*x)[t];
      if (layer.attention != AttentionKind::kNone) Attention(layer, index, t, &row);
      if (layer.mlp != MlpKind::kNone) {
        const Doubles m = Mlp(layer.dense, Norm("post_attention_layernorm", layer.mlp_in, row));
        Join(Norm("mlp_out", layer.mlp_out, m), layer.residual_scale, &row);
      }
      if (layer.input.size > 0) AddInput(layer, index, t, &row);
      double scale = double{layer.output_scale};
      if (layer.has_output_scale) scale *= double{tensors_.At(prefix_ + "output_scale")[0]};
      for (double& value : row) value *= scale;
    }
  }

  void AddInput(const LayerSpec& layer, std::size_t index, std::size_t t, Doubles* row) const {
    Doubles gate = Product("input_gate", *row, false);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      gate[i] = Activated({.act = layer.input.act}, gate[i]) * inputs_[t][index * gate.size() + i];
    }
    const Doubles out = Norm("input_out_norm", layer.input.norm, Product("input_out", gate, false));
    Join(out, layer.residual_scale, row);
  }

  const ModelSpec& spec_;
  const Tensors& tensors_;
  std::string prefix_;                        // of the layer
  std::vector<std::vector<Doubles>> keys_;    // by layer, then by token
  std::vector<std::vector<Doubles>> values_;  // likewise
  std::vector<Doubles> inputs_;               // by token, those of all layers
};

std::vector<std::int32_t> Tokens() {
  std::vector<std::int32_t> tokens;
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    tokens.push_back(static_cast<std::int32_t>((t * t * 7 + t * 3 + 1) % kVocab));
  }
  return tokens;
}

// A model of a spec with the cache manager.
class Runs {
 public:
  Runs(const ModelSpec& spec, const Tensors& tensors, int threads) : cpu_(threads) {
    const Checkpoint checkpoint = Checkpoint::FromTensors(tensors.stored, nullptr);
    const WeightTarget target{.quantization = Quantization::kNone};
    auto slots = FindWeights(spec, kNames, checkpoint, target);
    EXPECT_TRUE(slots.ok()) << slots.status();
    auto weights = Weights::Load(*slots, cpu_.backend, target);
    EXPECT_TRUE(weights.ok()) << weights.status();
    model_.spec = spec;
    model_.weights = std::make_unique<Weights>(*std::move(weights));
    const LayerGroups layers = PlanLayerGroups(spec);
    const auto num_groups = static_cast<std::uint32_t>(layers.groups.size());
    const auto geometry = runtime::KvGeometryFor(spec, 16, DType::kF32, 1 + 19 * num_groups);
    EXPECT_TRUE(geometry.ok()) << geometry.status();
    pool_ = std::make_unique<cache::KvPool>(*cache::KvPool::Create(*geometry));
    auto runner = runtime::CpuRunner::Create(model_, cpu_.backend, pool_.get(),
                                             {.max_rows = 1, .max_step_tokens = kTokens});
    EXPECT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    cache_ = *cache::CacheManager::Create({.geometry = *geometry,
                                           .groups = CacheGroupsOf(layers),
                                           .max_rows = 1,
                                           .max_context_tokens = spec.max_position,
                                           .max_row_overlap_tokens = kTokens});
  }

  // Returns the logits of all tokens, with `chunk` tokens per step.
  std::vector<float> Logits(const std::vector<std::int32_t>& tokens, std::uint32_t chunk) {
    std::vector<float> logits(tokens.size() * kVocab);
    for (std::uint32_t cached = 0; cached < tokens.size();) {
      const auto left = static_cast<std::uint32_t>(tokens.size()) - cached;
      const std::uint32_t count = std::min(chunk, left);
      EXPECT_TRUE(cache_->Reserve(BatchRow{0}, cached + count).ok());
      runtime::StepBatch batch;
      for (std::uint32_t i = 0; i < count; ++i) {
        batch.token_ids.push_back(tokens[cached + i]);
        batch.logits_tokens.push_back(i);
      }
      batch.rows.push_back({BatchRow{0}, cached, 0, count});
      const cache::RowStep step{BatchRow{0}, cached, count};
      batch.kv = cache_->PrepareStep({&step, 1});
      batch.copies = cache_->TakeCopies();
      batch.clears = cache_->TakeClears();
      batch.logits_out = &logits[std::size_t{cached} * kVocab];
      EXPECT_TRUE(runner_->Run(batch).ok());
      cache_->CompleteStep();
      EXPECT_TRUE(runner_->Collect().ok());
      cached += count;
      cache_->ReleaseOutsideWindow(BatchRow{0}, cached);
    }
    return logits;
  }

 private:
  TestBackend cpu_;
  runtime::Model model_;
  std::unique_ptr<cache::KvPool> pool_;
  std::unique_ptr<runtime::CpuRunner> runner_;
  std::unique_ptr<cache::CacheManager> cache_;
};

double Relative(const auto& a, const Doubles& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST(KnobsTest, EveryOptionEqualsItsFormula) {
  const std::vector<std::int32_t> tokens = Tokens();
  const ModelSpec base = BaseSpec();
  const Tensors base_tensors(base);
  const Doubles without = Reference(base, base_tensors).Logits(tokens);
  std::vector<Knob> knobs = Knobs();
  const std::vector<Knob> others = KnobsOfLayersThatDiffer();
  knobs.insert(knobs.end(), others.begin(), others.end());
  knobs.push_back({"none", [](ModelSpec&) {}});
  for (const Knob& knob : knobs) {
    SCOPED_TRACE(knob.name);
    ModelSpec spec = BaseSpec();
    knob.turn(spec);
    AssignCacheGroups(&spec);
    ASSERT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
    ASSERT_TRUE(CheckSupported(spec, DeviceKind::kCpu).ok())
        << CheckSupported(spec, DeviceKind::kCpu);
    const Tensors tensors(spec);
    const Doubles exact = Reference(spec, tensors).Logits(tokens);
    const std::vector<float> logits = Runs(spec, tensors, 1).Logits(tokens, kTokens);
    EXPECT_LE(Relative(logits, exact), 2e-6);
    const double change = Relative(exact, without);
    if (knob.name == std::string("none")) {
      EXPECT_EQ(change, 0);
    } else {
      EXPECT_GE(change, 1e-3);
    }
    for (const std::uint32_t chunk : {1u, 37u}) {
      EXPECT_EQ(Runs(spec, tensors, 3).Logits(tokens, chunk), logits) << "chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace quire::models
