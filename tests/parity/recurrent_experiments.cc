// The experiments of fixtures with recurrent layers or short convolutions.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/parity/feature_experiments.h"

namespace quire::models::parity {
namespace {

// Calls change(states of the heads, inputs of the convolution) for each recurrent layer.
StateChange EachState(const std::function<void(std::span<float>, std::span<float>)>& change) {
  return [=](const ModelSpec& spec, const LayerGroups& layers, std::span<float> slot) {
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      const auto first = static_cast<std::size_t>(layers.places[i].state) / sizeof(float);
      if (spec.layers[i].attention == AttentionKind::kShortConv) {
        const std::size_t taps = spec.layers[i].short_conv.width - 1;
        change({}, slot.subspan(first, taps * spec.hidden));
      }
      if (spec.layers[i].attention != AttentionKind::kRecurrent) continue;
      const RecurrentSpec& recurrent = spec.layers[i].recurrent;
      const auto states = static_cast<std::size_t>(recurrent.state_floats());
      change(slot.subspan(first, states),
             slot.subspan(first + states, static_cast<std::size_t>(recurrent.conv_floats())));
    }
  };
}

StateChange NoState() {
  return EachState([](std::span<float> states, std::span<float>) {
    std::fill(states.begin(), states.end(), 0.0f);
  });
}

StateChange NoHistory() {
  return EachState([](std::span<float>, std::span<float> inputs) {
    std::fill(inputs.begin(), inputs.end(), 0.0f);
  });
}

SpecChange EachRecurrent(const std::function<void(RecurrentSpec&)>& change) {
  return EachLayer([=](LayerSpec& layer) { change(layer.recurrent); });
}

Change LastTap(std::size_t width, const std::string& pattern = "conv1d\\.weight") {
  return [=](EditedFixture& fixture) {
    fixture.EditTensors(pattern, [=](std::vector<float>& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % width != width - 1) values[i] = 0;
      }
    });
  };
}

// Tensors of Qwen's recurrent layers, in units of a tensor's rows. Value heads are numbered across
// key heads.
struct QwenSizes {
  std::size_t hidden, key_heads, key_size, value_size;
  bool by_key_heads;  // in_proj_qkvz and in_proj_ba
};
constexpr std::size_t kPerKeyHead = 2;  // value heads

constexpr QwenSizes kNext{64, 2, 16, 24, true};
constexpr QwenSizes kQwen35{64, 2, 16, 16, false};

// Swaps `count` values at `a` and at `b`, in units of `size` values.
void Swap(std::vector<float>& values, std::size_t a, std::size_t b, std::size_t count,
          std::size_t size) {
  const auto at = [&](std::size_t i) {
    return values.begin() + static_cast<std::ptrdiff_t>(i * size);
  };
  std::swap_ranges(at(a), at(a + count), at(b));
}

// Swaps value heads 1 and 2 of four. Heads 0 and 2 then read key head 0, as if value heads took key
// heads in turn.
Change KeyHeadsInTurn(const QwenSizes& s) {
  return [=](EditedFixture& fixture) {
    const std::size_t keys = s.key_heads * s.key_size, dv = s.value_size;
    const auto edit = [&](const std::string& name, std::size_t a, std::size_t b, std::size_t count,
                          std::size_t size) {
      fixture.EditTensors("linear_attn\\." + name,
                          [=](std::vector<float>& values) { Swap(values, a, b, count, size); });
    };
    if (s.by_key_heads) {
      const std::size_t all = 2 * s.key_size + 2 * kPerKeyHead * dv;  // rows of a key head
      const std::size_t v = 2 * s.key_size, z = v + kPerKeyHead * dv;
      edit("in_proj_qkvz", v + dv, all + v, dv, s.hidden);
      edit("in_proj_qkvz", z + dv, all + z, dv, s.hidden);
      edit("in_proj_ba", 1, 2 * kPerKeyHead, 1, s.hidden);
      edit("in_proj_ba", kPerKeyHead + 1, 3 * kPerKeyHead, 1, s.hidden);
    } else {
      edit("in_proj_qkv", 2 * keys + dv, 2 * keys + 2 * dv, dv, s.hidden);
      edit("in_proj_z", dv, 2 * dv, dv, s.hidden);
      edit("in_proj_a", 1, 2, 1, s.hidden);
      edit("in_proj_b", 1, 2, 1, s.hidden);
    }
    edit("conv1d", 2 * keys + dv, 2 * keys + 2 * dv, dv, 4);
    edit("A_log", 1, 2, 1, 1);
    edit("dt_bias", 1, 2, 1, 1);
    fixture.EditTensors("linear_attn\\.out_proj", [=](std::vector<float>& values) {
      for (std::size_t row = 0; row < s.hidden; ++row) {
        const std::size_t first = row * s.key_heads * kPerKeyHead;
        Swap(values, first + 1, first + 2, 1, dv);
      }
    });
  };
}

// Rows of b are 0, so that beta is 1/2.
Change HalfBeta(const QwenSizes& s) {
  if (!s.by_key_heads) return Fill("in_proj_b", 0);
  return [=](EditedFixture& fixture) {
    fixture.EditTensors("in_proj_ba", [=](std::vector<float>& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i / s.hidden % (2 * kPerKeyHead) < kPerKeyHead) values[i] = 0;
      }
    });
  };
}

// The gate z is 0 and its function is a sigmoid, so the gate is 1/2. The weights of the norm are
// doubled.
Change NoOutputNormGate(const QwenSizes& s) {
  return [=](EditedFixture& fixture) {
    const std::size_t all = 2 * s.key_size + 2 * kPerKeyHead * s.value_size;
    const std::size_t z = all - kPerKeyHead * s.value_size;
    fixture.EditTensors(s.by_key_heads ? "in_proj_qkvz" : "in_proj_z",
                        [=](std::vector<float>& values) {
                          for (std::size_t i = 0; i < values.size(); ++i) {
                            if (!s.by_key_heads || i / s.hidden % all >= z) values[i] = 0;
                          }
                        });
    fixture.EditTensors("linear_attn\\.norm", [](std::vector<float>& values) {
      for (float& value : values) value *= 2;
    });
  };
}

constexpr std::size_t kQwenHead = 32;  // rows of an attention head

Change HalfOutputGate(const QwenSizes& s) {
  return [=](EditedFixture& fixture) {
    fixture.EditTensors("q_proj", [=](std::vector<float>& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i / s.hidden % (2 * kQwenHead) >= kQwenHead) values[i] = 0;
      }
    });
  };
}

// Reads the first half of all rows as queries and the second as gates.
Change GatesBehindQueries(const QwenSizes& s) {
  return [=](EditedFixture& fixture) {
    fixture.EditTensors("q_proj", [=](std::vector<float>& values) {
      const std::vector<float> old = values;
      const std::size_t block = kQwenHead * s.hidden, heads = old.size() / block / 2;
      for (std::size_t h = 0; h < heads; ++h) {
        std::copy_n(old.data() + h * block, block, values.data() + 2 * h * block);
        std::copy_n(old.data() + (heads + h) * block, block, values.data() + (2 * h + 1) * block);
      }
    });
  };
}

// All norms but the gated one multiply by 1 + w.
void HybridNormsWithoutOne(EditedFixture& fixture) {
  fixture.EditTensors("(layernorm|model\\.norm|_norm)\\.weight$", [](std::vector<float>& values) {
    for (float& value : values) value -= 1;
  });
}

void WholeHeadsRotate(EditedFixture& fixture) {
  nlohmann::json& config = fixture.config();
  nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
  if (text.contains("rope_parameters")) {
    text["rope_parameters"]["partial_rotary_factor"] = 1.0;
  } else {
    text["partial_rotary_factor"] = 1.0;
  }
}

std::vector<Experiment> DeltaRule(const QwenSizes& s) {
  return {{"recurrent state (cleared every 64 tokens)", nullptr, nullptr, NoState()},
          {"history of the convolution (cleared every 64 tokens)", nullptr, nullptr, NoHistory()},
          {"convolution (last tap alone)", LastTap(4)},
          {"decay (none)", Fill("A_log", -1e4f)},
          {"dt_bias", Fill("dt_bias", 0)},
          {"size of the update, beta (always 1/2)", HalfBeta(s)},
          {"norm of keys in the delta rule (divided by 8 instead)", nullptr,
           EachRecurrent([](RecurrentSpec& recurrent) { recurrent.qk_l2_eps = 64; })},
          {"key head of a value head (in turn instead of in runs)", KeyHeadsInTurn(s)},
          {"gate of the output norm (silu of it taken as 1)", NoOutputNormGate(s),
           EachRecurrent(
               [](RecurrentSpec& recurrent) { recurrent.gate = RecurrentGate::kNormThenSigmoid; })},
          {"norm before the gate (behind it instead)", nullptr,
           EachRecurrent(
               [](RecurrentSpec& recurrent) { recurrent.gate = RecurrentGate::kSiluThenNorm; })},
          {"gate of the attention output (always 1/2)", HalfOutputGate(s)},
          {"gate of the attention output (taken from the second half of all rows of q_proj)",
           GatesBehindQueries(s)},
          {"partial rotary factor (whole heads rotate)", WholeHeadsRotate},
          {"1 + w in norms (w alone)", HybridNormsWithoutOne}};
}

ExperimentMap DeltaRuleExperiments() {
  const Experiment gate_norm = {"weights of the gated norm (set to 1)",
                                Fill("linear_attn\\.norm", 1)};
  const Experiment qk_norms = {"weights of q_norm and k_norm (set to 0)", Fill("[qk]_norm", 0)};
  const Experiment shared = {"shared expert", Fill("shared_expert\\.down_proj", 0)};
  const Experiment shared_gate = {"gate of the shared expert (always 1/2)",
                                  Fill("shared_expert_gate", 0)};
  ExperimentMap all = {{"qwen3-next-bf16", DeltaRule(kNext)},
                       {"qwen35-bf16", DeltaRule(kQwen35)},
                       {"qwen35-moe-bf16", DeltaRule(kQwen35)}};
  const auto add = [&](const char* folder, const std::vector<Experiment>& more) {
    all[folder].insert(all[folder].end(), more.begin(), more.end());
  };
  add("qwen3-next-bf16", {gate_norm,
                          qk_norms,
                          shared,
                          shared_gate,
                          {"renormalised expert weights", SetConfig("norm_topk_prob", false)}});
  add("qwen35-bf16", {gate_norm, qk_norms});
  add("qwen35-moe-bf16", {shared, shared_gate});
  return all;
}

std::vector<Experiment> Join(std::vector<Experiment> all, const std::vector<Experiment>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const Experiment kNoHistory = {"history of the convolution (cleared every 64 tokens)", nullptr,
                               nullptr, NoHistory()};

// Swaps the rows of B and of C of the two groups of nemotron-h-bf16, of 16 each.
void SwapGroups(EditedFixture& fixture) {
  constexpr std::size_t kInner = 96, kState = 16;
  const auto edit = [&](const std::string& name, std::size_t first, std::size_t size) {
    fixture.EditTensors(name, [=](std::vector<float>& values) {
      Swap(values, first, first + kState, kState, size);
      Swap(values, first + 2 * kState, first + 3 * kState, kState, size);
    });
  };
  edit("mixer\\.in_proj", 2 * kInner, 64);
  edit("conv1d\\.weight", kInner, 4);
  edit("conv1d\\.bias", kInner, 1);
}

std::vector<Experiment> Mamba(const std::string& gated_norm) {
  return {{"recurrent state (cleared every 64 tokens)", nullptr, nullptr, NoState()},
          kNoHistory,
          {"convolution (last tap alone)", LastTap(4)},
          {"bias of the convolution", Fill("conv1d\\.bias", 0)},
          {"decay (none)", Fill("A_log", -1e4f)},
          {"dt_bias", Fill("dt_bias", 0)},
          {"D", Fill("\\.D$", 0)},
          {"gate before the norm (behind it instead)", nullptr,
           EachRecurrent(
               [](RecurrentSpec& recurrent) { recurrent.gate = RecurrentGate::kNormThenSilu; })},
          {"weights of the gated norm (set to 1)", Fill(gated_norm, 1)}};
}

void UseSilu(LayerSpec& layer) {
  layer.dense.act = layer.moe.expert.act = Activation::kSilu;
  if (layer.moe.shared) layer.moe.shared->act = Activation::kSilu;
}

ExperimentMap MambaExperiments() {
  return {{"granite-hybrid-bf16",
           Join(Mamba("mamba\\.norm"),
                {{"attention without positions (rope instead)",
                  SetConfig("position_embedding_type", "rope")},
                 {"shared mlp", Fill("shared_mlp\\.output_linear", 0)},
                 {"experts", Fill("block_sparse_moe\\.output_linear", 0)},
                 {"second expert", SetConfig("num_experts_per_tok", 1)},
                 {"embedding_multiplier", SetConfig("embedding_multiplier", 1.0)},
                 {"residual_multiplier", SetConfig("residual_multiplier", 1.0)},
                 {"attention_multiplier (head size ** -0.5 instead)",
                  SetConfig("attention_multiplier", 1 / std::sqrt(32.0))},
                 {"logits_scaling", SetConfig("logits_scaling", 1.0)}})},
          {"nemotron-h-bf16",
           Join(Mamba("mixer\\.norm"),
                {{"norm by group (over all columns instead)", nullptr,
                  EachRecurrent([](RecurrentSpec& recurrent) { recurrent.norm_groups = 1; })},
                 {"group of a head (in the opposite order)", SwapGroups},
                 {"squared relu (silu instead)", nullptr, EachLayer(UseSilu)},
                 {"correction bias", Fill("e_score_correction_bias", 0)},
                 {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)},
                 {"renormalised expert weights", SetConfig("norm_topk_prob", false)},
                 {"shared expert", Fill("shared_experts\\.down_proj", 0)}})}};
}

ExperimentMap KimiExperiments() {
  return {{"kimi-linear-bf16",
           {{"recurrent state (cleared every 64 tokens)", nullptr, nullptr, NoState()},
            kNoHistory,
            {"convolution (last tap alone)", LastTap(4)},
            {"decay (none)", Fill("A_log", -1e4f)},
            {"dt_bias", Fill("dt_bias", 0)},
            {"size of the update, beta (always 1/2)", Fill("\\.b_proj", 0)},
            {"norm of keys in the delta rule (divided by 8 instead)", nullptr,
             EachRecurrent([](RecurrentSpec& recurrent) { recurrent.qk_l2_eps = 64; })},
            {"gate of the output norm (always 1/2)", Fill("g_b_proj", 0)},
            {"sigmoid in the output gate (silu instead)", nullptr,
             EachRecurrent(
                 [](RecurrentSpec& recurrent) { recurrent.gate = RecurrentGate::kNormThenSilu; })},
            {"weights of the gated norm (set to 1)", Fill("o_norm", 1)},
            {"norm of the latent (left out)", nullptr, EachLatent(NoLatentNorms)},
            {"correction bias", Fill("e_score_correction_bias", 0)},
            {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)},
            {"shared expert", Fill("shared_experts\\.down_proj", 0)}}}};
}

ExperimentMap ShortConvExperiments() {
  return {{"lfm2-bf16",
           {kNoHistory,
            {"convolution (last tap alone)", LastTap(3, "conv\\.conv\\.weight")},
            {"q and k norm (left out)", nullptr, NoQkNorm()},
            {"rope (theta 1e12)", SetConfig("rope_theta", 1e12)}}}};
}

}  // namespace

ExperimentMap RecurrentExperiments() {
  ExperimentMap all = DeltaRuleExperiments();
  all.merge(MambaExperiments());
  all.merge(KimiExperiments());
  all.merge(ShortConvExperiments());
  return all;
}

}  // namespace quire::models::parity
