// Switching off each special feature of a fixture alone changes the logits by as much as in Hugging
// Face transformers. This proves that no comparison passes because an option has no effect. The
// expected figures are `feature_checks` in a fixture's reference.json: |changed - unchanged| /
// |unchanged| over the logits of all tokens of all prompts and of the 64 greedy tokens after each.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "formats/tensors/safetensors.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

using Change = std::function<void(EditedFixture&)>;
using SpecChange = std::function<void(ModelSpec*)>;
using StateChange = decltype(ReplayOptions::edit_state);
using WeightChange = std::function<void(std::span<LayerWeights>)>;

// One feature, switched off in the files, or in the spec or the weights of the loaded model.
struct Experiment {
  const char* feature;  // as in feature_checks
  Change files = nullptr;
  SpecChange spec = nullptr;
  StateChange state = nullptr;  // of each row before each step of 64 tokens
  WeightChange weights = nullptr;
};

Change SetConfig(const std::string& key, const nlohmann::json& value) {
  return [=](EditedFixture& fixture) { fixture.config()[key] = value; };
}

// Sets a key of the rope dictionary, whichever form the file has.
Change SetRope(const std::string& key, const nlohmann::json& value) {
  return [=](EditedFixture& fixture) {
    nlohmann::json& config = fixture.config();
    config[config.contains("rope_parameters") ? "rope_parameters" : "rope_scaling"][key] = value;
  };
}

void PlainRope(EditedFixture& fixture) {
  nlohmann::json& config = fixture.config();
  if (config.contains("rope_parameters")) {
    config["rope_parameters"] = {{"rope_type", "default"},
                                 {"rope_theta", config["rope_parameters"]["rope_theta"]}};
  }
  config["rope_scaling"] = nullptr;
}

Change Fill(const std::string& pattern, float value) {
  return [=](EditedFixture& fixture) {
    fixture.EditTensors(pattern, [=](std::vector<float>& values) {
      std::fill(values.begin(), values.end(), value);
    });
  };
}

void NormsWithoutOne(EditedFixture& fixture) {
  fixture.EditTensors("norm\\.weight$", [](std::vector<float>& values) {
    for (float& value : values) value -= 1;
  });
}

void SwapGateAndUp(EditedFixture& fixture) {
  fixture.EditTensors("gate_up_proj", [](std::vector<float>& values) {
    std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                values.end());
  });
}

SpecChange EachLayer(const std::function<void(LayerSpec&)>& change) {
  return [=](ModelSpec* spec) {
    for (LayerSpec& layer : spec->layers) change(layer);
  };
}

SpecChange NoQkNorm() {
  return EachLayer([](LayerSpec& layer) { layer.heads.qk_norm = {}; });
}

SpecChange NoSinks() {
  return EachLayer([](LayerSpec& layer) { layer.heads.has_sinks = false; });
}

SpecChange EachExpert(const std::function<void(MlpSpec&)>& change) {
  return EachLayer([=](LayerSpec& layer) { change(layer.moe.expert); });
}

// The router has no preference, and every token uses the first two of four experts. The reference's
// topk selects the last two of four equal ones, so the experts are swapped.
void EqualExperts(EditedFixture& fixture) {
  fixture.EditTensors("block_sparse_moe\\.gate", [](std::vector<float>& values) {
    std::fill(values.begin(), values.end(), 0.0f);
  });
  // The names are in the header. The data is not searched for text of this length.
  std::string& text = fixture.Text("model.safetensors");
  for (std::size_t at = text.find(".experts."); at != std::string::npos;
       at = text.find(".experts.", at + 1)) {
    char& number = text[at + sizeof(".experts.") - 1];
    number = static_cast<char>('0' + (number - '0' + 2) % 4);
  }
}

// Swaps the two values of every byte of mxfp4 blocks.
void SwapNibbles(EditedFixture& fixture) {
  std::string& text = fixture.Text("model.safetensors");
  const auto tensors = formats::ReadSafetensors(std::as_bytes(std::span(text.data(), text.size())),
                                                "edited fixture");
  QUIRE_CHECK(tensors.ok());
  for (const formats::StoredTensor& tensor : *tensors) {
    if (!absl::EndsWith(tensor.name, "_blocks")) continue;
    // The bytes belong to the fixture's own text.
    auto* const bytes = const_cast<std::byte*>(tensor.bytes.data());
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
      bytes[i] = bytes[i] >> 4 | bytes[i] << 4;
    }
  }
}

// The head becomes a copy of the embedding with its rows shuffled, like torch.randperm with a
// generator of seed 1.
void ShuffledHead(EditedFixture& fixture) {
  nlohmann::json& config = fixture.config();
  std::vector<std::size_t> rows(config["vocab_size"].get<std::size_t>());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  std::mt19937 random(1);
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    std::swap(rows[i], rows[i + random() % (rows.size() - i)]);
  }
  fixture.AddCopy("model.embed_tokens.weight", "lm_head.weight", rows);
  config["tie_word_embeddings"] = false;
}

void NoEmbeddingScale(ModelSpec* spec) {
  spec->embed_scale = 1;
}

Change LayerTypes(const std::string& type) {
  return [=](EditedFixture& fixture) {
    nlohmann::json& config = fixture.config();
    config["layer_types"] =
        std::vector<std::string>(config["num_hidden_layers"].get<std::size_t>(), type);
  };
}

// Sets a key to the value of another key.
Change Copy(const std::string& from, const std::string& to) {
  return [=](EditedFixture& fixture) { fixture.config()[to] = fixture.config()[from]; };
}

Change CopyRope(const std::string& from, const std::string& to) {
  return [=](EditedFixture& fixture) {
    nlohmann::json& rope = fixture.config()["rope_scaling"];
    rope[to] = rope[from];
  };
}

// Every layer uses the scaled table of the full layers.
void OneRopeTable(LayerSpec& layer) {
  layer.heads.rope = 0;
}

void WindowFromLayer0(EditedFixture& fixture) {
  fixture.config()["use_sliding_window"] = true;
  fixture.config()["max_window_layers"] = 0;
}

void RopeEverywhere(EditedFixture& fixture) {
  for (nlohmann::json& flag : fixture.config()["no_rope_layers"]) flag = 1;
}

// Features whose alternative is a computation that no knob selects: heads that are normalized
// separately, each with weights of its own, gates of 1, and the mean of the decays of a head.
constexpr const char* kNoKnob[] = {"norm over all heads (over each head instead)",
                                   "gate before the convolution", "gate behind the convolution",
                                   "decay for each channel (mean of the head instead)"};

// By fixture. A feature in a fixture's feature_checks that is neither here nor in kNoKnob fails the
// test.
using ExperimentMap = std::map<std::string, std::vector<Experiment>>;

ExperimentMap LlamaExperiments() {
  return {
      {"llama-bias-bf16",
       {{"bias of q", Fill("q_proj\\.bias", 0)},
        {"bias of k", Fill("k_proj\\.bias", 0)},
        {"bias of v", Fill("v_proj\\.bias", 0)},
        {"bias of o", Fill("o_proj\\.bias", 0)},
        {"bias of gate", Fill("gate_proj\\.bias", 0)},
        {"bias of up", Fill("up_proj\\.bias", 0)},
        {"bias of down", Fill("down_proj\\.bias", 0)}}},
      {"llama-gqa-tied-bf16",
       {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)},
        {"tied output matrix (replaced by a shuffled copy)", ShuffledHead}}},
      {"llama-headdim-bf16",
       {{"head_dim in the attention scale (hidden/heads used instead)", nullptr,
         EachLayer([](LayerSpec& layer) { layer.heads.scale = 0.25f; })}}},
      {"llama-newstyle-bf16",
       {{"rope scaling", PlainRope}, {"rope_theta (10000)", SetRope("rope_theta", 10000.0)}}},
      {"llama-rope-llama3-bf16",
       {{"rope scaling", PlainRope},
        {"smooth part of llama3 scaling (high_freq_factor nearly low_freq_factor)",
         SetRope("high_freq_factor", 1.0001)}}},
      {"llama-rope-yarn-bf16",
       {{"rope scaling", PlainRope},
        {"attention factor (set to 1)", SetRope("attention_factor", 1.0)},
        {"yarn ramp (no frequency scaled, attention factor kept)",
         [](EditedFixture& fixture) {
           SetRope("beta_fast", 1000.0)(fixture);
           SetRope("beta_slow", 999.0)(fixture);
         }}}},
      {"llama-rope-yarn-newstyle-bf16",
       {{"rope scaling", PlainRope},
        {"attention factor (set to 1)", SetRope("attention_factor", 1.0)},
        {"truncate false (set to true)", SetRope("truncate", true)}}},
      {"llama-extra-buffers-bf16", {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)}}},
      {"llama-sharded-bf16", {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)}}},
      {"llama-vocab-padded-bf16", {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)}}},
      {"llama-gqa-hd80-bf16",
       {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)},
        {"rope (theta 1e12)", SetConfig("rope_theta", 1e12)}}},
      {"llama-mha-f32",
       {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)},
        {"rope (theta 1e12)", SetConfig("rope_theta", 1e12)}}},
      {"llama-untied-f16",
       {{"norm weights (all set to 1)", Fill("norm\\.weight$", 1)},
        {"rope (theta 1e12)", SetConfig("rope_theta", 1e12)}}},
      {"llama-rope-linear-bf16", {{"rope scaling", PlainRope}}},
      {"llama-theta500k-multieos-bf16",
       {{"rope_theta (default 10000)", SetConfig("rope_theta", 10000.0)}}}};
}

std::vector<Experiment> Longrope() {
  return {
      {"long factors (short ones everywhere)", CopyRope("short_factor", "long_factor")},
      {"short factors (long ones everywhere)", CopyRope("long_factor", "short_factor")},
      {"derived attention factor (set to 1)", SetRope("attention_factor", 1.0)},
      {"which part is rotated (last instead of first)", nullptr, EachLayer([](LayerSpec& layer) {
         layer.heads.rotary_first = layer.heads.head_size - layer.heads.rotary_size;
       })}};
}

ExperimentMap Phi4MiniExperiments() {
  std::vector<Experiment> all = Longrope();
  all.push_back({"tied output matrix (replaced by a shuffled copy)", ShuffledHead});
  return {{"phi4-mini-bf16", all}};
}

// Families with norms before attention and MLP.
ExperimentMap PreNormExperiments() {
  return {{"mistral-window-bf16",
           {{"sliding window", SetConfig("sliding_window", nullptr)},
            {"window one token longer", SetConfig("sliding_window", 33)}}},
          {"ministral-bf16",
           {{"windows (full attention everywhere)", LayerTypes("full_attention")},
            {"full layers (windows everywhere)", LayerTypes("sliding_attention")},
            {"window one token longer", SetConfig("sliding_window", 25)},
            {"rope_theta (10000)", SetConfig("rope_theta", 10000.0)},
            {"head_dim in the attention scale (hidden/heads used instead)", nullptr,
             EachLayer([](LayerSpec& layer) { layer.heads.scale = 0.25f; })}}},
          {"qwen2-bf16",
           {{"bias of q", Fill("q_proj\\.bias", 0)},
            {"bias of k", Fill("k_proj\\.bias", 0)},
            {"bias of v", Fill("v_proj\\.bias", 0)},
            {"ignoring the window (used from layer 0 on instead)", WindowFromLayer0}}},
          {"qwen3-hd128-bf16",
           {{"weights of q_norm (set to 1)", Fill("q_norm", 1)},
            {"weights of k_norm (set to 1)", Fill("k_norm", 1)},
            {"q and k norm (left out)", nullptr, NoQkNorm()}}},
          {"smollm3-bf16", {{"layers without rope (rope everywhere)", RopeEverywhere}}},
          {"granite-bf16",
           {{"embedding_multiplier", SetConfig("embedding_multiplier", 1.0)},
            {"residual_multiplier", SetConfig("residual_multiplier", 1.0)},
            {"attention_multiplier (1/sqrt(head size) instead)",
             SetConfig("attention_multiplier", 1 / std::sqrt(32.0))},
            {"logits_scaling", SetConfig("logits_scaling", 1.0)}}},
          {"phi3-bf16",
           {{"sliding window", SetConfig("sliding_window", nullptr)},
            {"order of the fused gate and up rows (swapped)", SwapGateAndUp},
            {"norm weights (all set to 1)", Fill("norm\\.weight$", 1)}}},
          {"phi3-longrope-bf16", Longrope()}};
}

// Families with norms after them.
ExperimentMap PostNormExperiments() {
  return {
      {"gemma2-bf16",
       {{"soft cap on logits", SetConfig("final_logit_softcapping", nullptr)},
        {"soft cap on attention scores", SetConfig("attn_logit_softcapping", nullptr)},
        {"windows (full attention everywhere)", LayerTypes("full_attention")},
        {"full layers (windows everywhere)", LayerTypes("sliding_attention")},
        {"query_pre_attn_scalar (head size instead)", Copy("head_dim", "query_pre_attn_scalar")},
        {"embedding scale", nullptr, NoEmbeddingScale},
        {"1 + w in norms (w alone)", NormsWithoutOne},
        {"tanh form of gelu (exact gelu instead)", SetConfig("hidden_activation", "gelu")}}},
      {"gemma3-text-bf16",
       {{"windows (nearly endless)", SetConfig("sliding_window", 4096)},
        {"local rope base (global one instead)", Copy("rope_theta", "rope_local_base_freq")},
        {"rope scaling of global layers", PlainRope},
        {"weights of q_norm and k_norm (set to 0)", Fill("[qk]_norm", 0)},
        {"query_pre_attn_scalar (head size instead)", Copy("head_dim", "query_pre_attn_scalar")},
        {"embedding scale", nullptr, NoEmbeddingScale},
        {"1 + w in norms (w alone)", NormsWithoutOne}}},
      {"olmo2-bf16",
       {{"weights of q_norm and k_norm (set to 1)", Fill("[qk]_norm", 1)},
        {"q and k norm (left out)", nullptr, NoQkNorm()},
        {"weights of the post norms (set to 1)", Fill("post_.*norm", 1)}}},
      {"olmo3-bf16",
       {{"windows (nearly endless)", SetConfig("sliding_window", 4096)},
        {"window one token longer", SetConfig("sliding_window", 25)},
        {"rope scaling of full layers", PlainRope},
        {"rope scaling in full layers only (everywhere instead)", nullptr, EachLayer(OneRopeTable)},
        {"attention factor (set to 1)", SetRope("attention_factor", 1.0)},
        {"weights of q_norm and k_norm (set to 1)", Fill("[qk]_norm", 1)},
        {"weights of the post norms (set to 1)", Fill("post_.*norm", 1)}}}};
}

ExperimentMap MoeExperiments() {
  return {{"mixtral-bf16",
           {{"second expert", SetConfig("num_experts_per_tok", 1)},
            {"router (all experts equal)", EqualExperts}}},
          {"qwen3-moe-bf16",
           {{"renormalised expert weights", SetConfig("norm_topk_prob", false)},
            {"one active expert", SetConfig("num_experts_per_tok", 1)},
            {"q and k norm (left out)", nullptr, NoQkNorm()}}},
          {"gpt-oss-bf16",
           {{"sinks", nullptr, NoSinks()},
            {"windows (full attention everywhere)", LayerTypes("full_attention")},
            {"rope scaling", PlainRope},
            {"attention factor (set to 1)", SetRope("attention_factor", 1.0)},
            {"truncate false (set to true)", SetRope("truncate", true)},
            {"clamp in the experts", nullptr, EachExpert([](MlpSpec& mlp) { mlp.limit = 1e9f; })},
            {"1.702 in the experts (1 instead)", nullptr,
             EachExpert([](MlpSpec& mlp) { mlp.alpha = 1; })},
            {"up + 1 in the experts (up alone)", nullptr,
             EachExpert([](MlpSpec& mlp) { mlp.up_offset = 0; })},
            {"bias of gate_up", Fill("gate_up_proj_bias", 0)},
            {"bias of down", Fill("down_proj_bias", 0)},
            {"bias of the router", Fill("router\\.bias", 0)},
            {"bias of q, k, v, o", Fill("[qkvo]_proj\\.bias", 0)}}},
          {"gpt-oss-mxfp4",
           {{"sinks", nullptr, NoSinks()},
            {"order of the two values in a byte (swapped)", SwapNibbles}}}};
}

// Routing by sigmoids with a correction bias.
ExperimentMap SigmoidExperiments() {
  return {{"glm4-moe-bf16",
           {{"bias of q", Fill("q_proj\\.bias", 0)},
            {"bias of k", Fill("k_proj\\.bias", 0)},
            {"bias of v", Fill("v_proj\\.bias", 0)},
            {"partial rotary factor (whole heads rotate)", SetConfig("partial_rotary_factor", 1.0)},
            {"q and k norm (left out)", nullptr, NoQkNorm()},
            {"correction bias", Fill("e_score_correction_bias", 0)},
            {"renormalised expert weights", SetConfig("norm_topk_prob", false)},
            {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)},
            {"shared expert", Fill("shared_experts\\.down_proj", 0)}}},
          {"minimax-m2-bf16",
           {{"rotary_dim (whole heads rotate)", SetConfig("rotary_dim", 32)},
            {"q and k norm (left out)", nullptr, NoQkNorm()},
            {"correction bias", Fill("e_score_correction_bias", 0)},
            {"second expert", SetConfig("num_experts_per_tok", 1)}}}};
}

void WindowForChunk(LayerSpec& layer) {
  layer.heads.window = layer.heads.chunk;
  layer.heads.chunk = 0;
}

void RotateHeadHalves(LayerSpec& layer) {
  layer.heads.rope_style = RopeStyle::kHalf;
}

// Layers without rope rotate instead of scaling queries. They still see all tokens without a norm.
void RopeInEveryLayer(LayerSpec& layer) {
  layer.heads.rope = 0;
  layer.heads.q_position_scale = {};
}

ExperimentMap ChunkExperiments() {
  return {{"llama4-bf16",
           {{"chunks (full attention everywhere)", LayerTypes("full_attention")},
            {"chunk of one token more", SetConfig("attention_chunk_size", 33)},
            {"chunks (a window of the same length instead)", nullptr, EachLayer(WindowForChunk)},
            {"layers without rope (rope everywhere)", nullptr, EachLayer(RopeInEveryLayer)},
            {"scale of queries by position", SetConfig("attn_temperature_tuning", false)},
            {"q and k norm (left out)", SetConfig("use_qk_norm", false)},
            {"neighbouring pairs in rope (halves instead)", nullptr, EachLayer(RotateHeadHalves)},
            {"rope scaling", PlainRope},
            {"weight on the input of an expert (on its output instead)", nullptr,
             EachLayer([](LayerSpec& layer) { layer.moe.weight_on_input = false; })},
            {"sigmoid in the router (softmax instead)", nullptr,
             EachLayer([](LayerSpec& layer) { layer.moe.score = RouterScore::kSoftmaxAll; })},
            {"shared expert", Fill("shared_expert\\.down_proj", 0)}}}};
}

SpecChange EachLatent(const std::function<void(MlaSpec&)>& change) {
  return EachLayer([=](LayerSpec& layer) { change(layer.mla); });
}

void NoLatentNorms(MlaSpec& mla) {
  mla.latent_eps = 0;
}

void NoScoreFactor(MlaSpec& mla) {
  mla.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(mla.nope_size + mla.rope_size)));
}

void RotateHalves(MlaSpec& mla) {
  mla.rope_style = RopeStyle::kHalf;
}

// MLA.
ExperimentMap LatentExperiments() {
  return {{"deepseek-v2-bf16",
           {{"rope scaling", PlainRope},
            {"mscale in the attention scale", nullptr, EachLatent(NoScoreFactor)},
            {"attention factor of cos and sin (set to 1)", SetRope("attention_factor", 1.0)},
            {"neighbouring pairs in rope (halves instead)", nullptr, EachLatent(RotateHalves)},
            {"norm of the latent (left out)", nullptr, EachLatent(NoLatentNorms)},
            {"shared experts", Fill("shared_experts\\.down_proj", 0)},
            {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)}}},
          {"deepseek-v2-lite-bf16",
           {{"rope scaling", PlainRope},
            {"mscale in the attention scale", nullptr, EachLatent(NoScoreFactor)},
            {"attention factor of cos and sin (of mscale alone instead of the quotient)",
             SetRope("attention_factor", 0.1 * 0.707 * std::log(40.0) + 1)},
            {"neighbouring pairs in rope (halves instead)", nullptr, EachLatent(RotateHalves)},
            {"norm of the latent (left out)", nullptr, EachLatent(NoLatentNorms)},
            {"shared experts", Fill("shared_experts\\.down_proj", 0)},
            {"expert weights as softmax gives them (divided by their sum instead)", nullptr,
             EachLayer([](LayerSpec& layer) { layer.moe.renormalize = true; })}}},
          {"deepseek-v3-bf16",
           {{"rope scaling", PlainRope},
            {"mscale in the attention scale", nullptr, EachLatent(NoScoreFactor)},
            {"neighbouring pairs in rope (halves instead)", SetConfig("rope_interleave", false)},
            {"norms of the latents (left out)", nullptr, EachLatent(NoLatentNorms)},
            {"choice of groups", nullptr,
             EachLayer([](LayerSpec& layer) { layer.moe.groups_kept = layer.moe.groups; })},
            {"correction bias", Fill("e_score_correction_bias", 0)},
            {"renormalised expert weights", SetConfig("norm_topk_prob", false)},
            {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)},
            {"shared expert", Fill("shared_experts\\.down_proj", 0)}}},
          {"deepseek-v3-noqlora-bf16",
           {{"correction bias", Fill("e_score_correction_bias", 0)},
            {"neighbouring pairs in rope (halves instead)", SetConfig("rope_interleave", false)},
            {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)}}},
          {"glm4-moe-lite-bf16",
           {{"neighbouring pairs in rope (halves instead)", SetConfig("rope_interleave", false)},
            {"norms of the latents (left out)", nullptr, EachLatent(NoLatentNorms)},
            {"correction bias", Fill("e_score_correction_bias", 0)},
            {"renormalised expert weights", SetConfig("norm_topk_prob", false)},
            {"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)},
            {"shared expert", Fill("shared_experts\\.down_proj", 0)}}}};
}

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

SpecChange EachIndex(const std::function<void(IndexSpec&)>& change) {
  return EachLayer([=](LayerSpec& layer) { change(*layer.mla.index); });
}

void OtherIndexRope(IndexSpec& index) {
  index.rope_style =
      index.rope_style == RopeStyle::kHalf ? RopeStyle::kInterleaved : RopeStyle::kHalf;
}

// x = relu(x) - relu(-x), so each head gets a second one with the opposite queries and weight.
void NoReluInIndexScores(EditedFixture& fixture) {
  fixture.config()["index_n_heads"] = 2 * fixture.config()["index_n_heads"].get<int>();
  fixture.AppendNegatedRows("indexer\\.(wq_b|weights_proj)\\.weight$");
}

// Moves the last columns of index heads to the front, where rope rotates them. Scores without rope
// do not depend on the order.
void RotateLastIndexColumns(EditedFixture& fixture) {
  const auto size = fixture.config()["index_head_dim"].get<std::size_t>();
  const auto rope = fixture.config()["qk_rope_head_dim"].get<std::size_t>();
  const auto heads = fixture.config()["index_n_heads"].get<std::size_t>();
  const auto rotate = [&](const std::string& pattern, std::size_t blocks) {
    fixture.EditTensors(pattern, [&](std::vector<float>& values) {
      const std::size_t columns = values.size() / (blocks * size);
      for (std::size_t b = 0; b < blocks; ++b) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(b * size * columns);
        std::rotate(begin, begin + static_cast<std::ptrdiff_t>((size - rope) * columns),
                    begin + static_cast<std::ptrdiff_t>(size * columns));
      }
    });
  };
  rotate("indexer\\.wq_b\\.weight$", heads);
  rotate("indexer\\.(wk\\.weight|k_norm\\.weight|k_norm\\.bias)$", 1);
}

// The bias exists in the loaded model only. It is the weight of every head, as the matrix is zero.
void EqualIndexWeights(std::span<LayerWeights> layers) {
  static constexpr std::array<float, 64> kOnes = [] {
    std::array<float, 64> ones{};
    ones.fill(1);
    return ones;
  }();
  for (LayerWeights& layer : layers) layer.mla.index_weights.bias = kOnes.data();
}

std::vector<Experiment> IndexExperiments() {
  return {{"selection of keys (all keys)", nullptr,
           EachIndex([](IndexSpec& index) { index.topk = 1u << 20; })},
          {"one key fewer", nullptr, EachIndex([](IndexSpec& index) { --index.topk; })},
          {"relu in the index scores (left out)", NoReluInIndexScores},
          {"weights of index heads (all equal)", Fill("indexer\\.weights_proj", 0), nullptr,
           nullptr, EqualIndexWeights},
          {"pairs of columns in the rope of the indexer (the other way)", nullptr,
           EachIndex(OtherIndexRope)},
          {"rotated columns of index heads (last instead of first)", RotateLastIndexColumns},
          {"weights of the norm of index keys (set to 1)", Fill("indexer\\.k_norm\\.weight", 1)},
          {"bias of the norm of index keys", Fill("indexer\\.k_norm\\.bias", 0)},
          {"correction bias", Fill("e_score_correction_bias", 0)}};
}

// Learned selection of keys.
ExperimentMap SelectionExperiments() {
  std::vector<Experiment> deepseek = IndexExperiments();
  deepseek.push_back({"choice of groups", nullptr, EachLayer([](LayerSpec& layer) {
                        layer.moe.groups_kept = layer.moe.groups;
                      })});
  deepseek.push_back({"mscale in the attention scale", nullptr, EachLatent(NoScoreFactor)});
  deepseek.push_back({"shared expert", Fill("shared_experts\\.down_proj", 0)});
  std::vector<Experiment> glm = IndexExperiments();
  glm.push_back({"selection in the layers that share one (all keys)", nullptr,
                 EachLayer([](LayerSpec& layer) {
                   if (!layer.mla.has_indexer()) layer.mla.index.reset();
                 })});
  glm.push_back({"routed_scaling_factor", SetConfig("routed_scaling_factor", 1.0)});
  return {{"deepseek-v32-bf16", deepseek}, {"glm-moe-dsa-bf16", glm}};
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

const ExperimentMap& Experiments() {
  static const auto& kExperiments = *[] {
    auto* const all = new ExperimentMap(LlamaExperiments());
    all->merge(PreNormExperiments());
    all->merge(Phi4MiniExperiments());
    all->merge(PostNormExperiments());
    all->merge(MoeExperiments());
    all->merge(SigmoidExperiments());
    all->merge(ChunkExperiments());
    all->merge(LatentExperiments());
    all->merge(DeltaRuleExperiments());
    all->merge(SelectionExperiments());
    all->merge(MambaExperiments());
    all->merge(KimiExperiments());
    all->merge(ShortConvExperiments());
    return all;
  }();
  return kExperiments;
}

// Maps a feature to its relative change.
std::map<std::string, double> RecordedChanges(const std::string& folder) {
  std::ifstream stream(FixturePath(folder) + "/reference.json");
  const nlohmann::json json = nlohmann::json::parse(stream);
  std::map<std::string, double> changes;
  for (const auto& check : json["feature_checks"]) {
    changes[check["feature"].get<std::string>()] = check["relative_change"].get<double>();
  }
  return changes;
}

// Prompts with their greedy tokens, as prompts with logits at all positions. Tokens generated after
// them are not compared.
Reference WholeSequences(const Reference& reference) {
  Reference whole = reference;
  for (ReferencePrompt& prompt : whole.prompts) {
    prompt.tokens.insert(prompt.tokens.end(), prompt.greedy.begin(), prompt.greedy.end());
    prompt.greedy.resize(1);
    prompt.all_positions = true;
  }
  return whole;
}

class FeatureOffTest : public testing::TestWithParam<std::string> {
 protected:
  // Context length from which a longrope model uses its other table.
  static std::uint32_t Border(const nlohmann::json& config) {
    constexpr std::uint32_t kNone = 1u << 30;
    const auto scaling = config.find("rope_scaling");
    if (scaling == config.end() || !scaling->is_object() || !scaling->contains("long_factor")) {
      return kNone;
    }
    return config["original_max_position_embeddings"].get<std::uint32_t>();
  }

  static std::vector<ReplayedPrompt> MustReplay(EditedFixture& fixture, const Reference& reference,
                                                const Experiment& experiment) {
    const auto replayed = ReplayByContext(fixture.Files(), reference,
                                          {.threads = 2,
                                           .chunk = 64,
                                           .generated = 1,
                                           .logprobs = false,
                                           .edit_spec = experiment.spec,
                                           .edit_weights = experiment.weights,
                                           .edit_state = experiment.state},
                                          Border(fixture.config()));
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *replayed : std::vector<ReplayedPrompt>();
  }
};

TEST_P(FeatureOffTest, ChangesTheLogitsByTheRecordedAmount) {
  const auto read = ReadReference(GetParam());
  ASSERT_TRUE(read.ok()) << read.status();
  Reference reference = WholeSequences(*read);
  EditedFixture untouched(GetParam());
  const auto base = MustReplay(untouched, reference, Experiment{});
  ASSERT_EQ(base.size(), reference.prompts.size());
  for (std::size_t i = 0; i < base.size(); ++i) reference.prompts[i].logits = base[i].logits;

  std::map<std::string, double> recorded = RecordedChanges(GetParam());
  for (const Experiment& experiment : Experiments().at(GetParam())) {
    SCOPED_TRACE(experiment.feature);
    ASSERT_EQ(recorded.count(experiment.feature), 1u) << "the fixture has no such feature";
    EditedFixture edited(GetParam());
    if (experiment.files) experiment.files(edited);
    const auto changed = MustReplay(edited, reference, experiment);
    const double got = CompareLogits(changed, reference).relative;
    const double want = recorded[experiment.feature];
    std::printf("%s: %s: %.4g, recorded %.4g\n", GetParam().c_str(), experiment.feature, got, want);
    EXPECT_NEAR(got, want, 0.05 * want);
    recorded.erase(experiment.feature);
  }
  for (const char* feature : kNoKnob) recorded.erase(feature);
  for (const auto& [feature, change] : recorded) ADD_FAILURE() << "not switched off: " << feature;
}

std::vector<std::string> Folders() {
  std::vector<std::string> folders;
  for (const auto& [folder, experiments] : Experiments()) folders.push_back(folder);
  return folders;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FeatureOffTest, testing::ValuesIn(Folders()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
