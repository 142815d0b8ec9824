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
#include "tests/parity/feature_experiments.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

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

// Sparse attention whose keys an indexer selects.
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

// The frequencies of full layers are spread over the pairs that rotate instead of over all pairs.
SpecChange FullRopeByItsRotatedPart() {
  return [](ModelSpec* spec) {
    std::vector<float>& frequencies = spec->rope_tables[0].inv_freq;
    const auto end = std::find(frequencies.begin(), frequencies.end(), 0.0f);
    const auto rotating = static_cast<std::size_t>(end - frequencies.begin());
    for (std::size_t i = 0; i < rotating; ++i) {
      frequencies[i] = static_cast<float>(
          std::pow(1e6, -static_cast<double>(i) / static_cast<double>(rotating)));
    }
  };
}

void EndlessWindows(EditedFixture& fixture) {
  fixture.config()["sliding_window"] = 1 << 20;
}

// Shared layers read the first layer of their type.
void ShareFirstLayers(ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    if (layer.kv_from_layer < 0) continue;
    for (std::size_t i = 0; i < spec->layers.size(); ++i) {
      if (spec->layers[i].cache_group != layer.cache_group) continue;
      layer.kv_from_layer = static_cast<std::int32_t>(i);
      break;
    }
  }
}

// Adds 1 to the weights of the norms before and after branches.
void NormsWithOne(EditedFixture& fixture) {
  fixture.EditTensors("layernorm\\.weight$", [](std::vector<float>& values) {
    for (float& value : values) value += 1;
  });
}

// Full layers get a v_proj that computes what the norm of k multiplies by its weights. But for a
// factor, which the norm of v removes, these are the normed keys. Without attention_k_eq_v these
// layers have as many KV heads as the others, so their one head is stored twice.
void ValuesFromNormedKeys(EditedFixture& fixture) {
  const std::string layer = "model.layers.2.self_attn.";
  fixture.config()["attention_k_eq_v"] = false;
  fixture.RenameTensors(
      [&](const std::string& name) {
        return name == layer + "k_proj.weight" ? std::string("mtp.k_proj") : name;
      },
      {});
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < 128; ++i) rows.push_back(i % 64);
  fixture.AddCopy("mtp.k_proj", layer + "k_proj.weight", rows);
  fixture.AddCopy("mtp.k_proj", layer + "v_proj.weight", rows);
  std::vector<float> weights;
  fixture.EditTensors("layers\\.2\\.self_attn\\.k_norm",
                      [&](std::vector<float>& values) { weights = values; });
  fixture.EditTensors("layers\\.2\\.self_attn\\.v_proj", [&](std::vector<float>& values) {
    const std::size_t columns = values.size() / rows.size();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= weights[i / columns % 64];
  });
}

std::vector<Experiment> Gemma4Experiments() {
  return {
      {"windows (nearly endless)", EndlessWindows},
      {"soft cap on logits", SetConfig("final_logit_softcapping", nullptr)},
      {"norm of v (left out)", nullptr,
       EachLayer([](LayerSpec& layer) { layer.heads.v_norm = {}; })},
      {"attention scale 1 (head size ** -0.5 instead)", nullptr, EachLayer([](LayerSpec& layer) {
         layer.heads.scale =
             static_cast<float>(1 / std::sqrt(static_cast<double>(layer.heads.head_size)));
       })},
      {"rope of full layers by the whole head (by its rotated part instead)", nullptr,
       FullRopeByItsRotatedPart()},
      {"layer_scalar (set to 1)", Fill("layer_scalar$", 1)},
      {"embedding scale", nullptr, NoEmbeddingScale},
      {"weights of q_norm and k_norm (set to 1)", Fill("[qk]_norm\\.weight$", 1)},
      {"w in norms (1 + w instead)", NormsWithOne}};
}

ExperimentMap Gemma4ExperimentMap() {
  std::vector<Experiment> e = Gemma4Experiments();
  e.push_back({"embeddings of each layer", Fill("embed_tokens_per_layer", 0)});
  e.push_back(
      {"projection of the embedding for each layer", Fill("per_layer_model_projection", 0)});
  e.push_back({"whole input of each layer", Fill("per_layer_projection\\.weight$", 0)});
  e.push_back(
      {"which layer's keys and values are shared (the first of its kind instead of the last)",
       nullptr, ShareFirstLayers});
  std::vector<Experiment> moe = Gemma4Experiments();
  moe.push_back({"values from projected keys (from normed keys instead)", ValuesFromNormedKeys});
  moe.push_back({"dense mlp", Fill("mlp\\.down_proj", 0)});
  moe.push_back({"experts", Fill("experts\\.down_proj", 0)});
  moe.push_back(
      {"norm before the experts (weights set to 1)", Fill("pre_feedforward_layernorm_2", 1)});
  moe.push_back({"scale by column in the router (set to 1)", Fill("router\\.scale$", 1)});
  moe.push_back({"scale by expert (set to 1)", Fill("per_expert_scale$", 1)});
  return {{"gemma4-bf16", e}, {"gemma4-moe-bf16", moe}};
}

// A feature in a fixture's feature_checks that is neither here nor in kNoKnob fails the test.
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
    all->merge(RecurrentExperiments());
    all->merge(SelectionExperiments());
    all->merge(Gemma4ExperimentMap());
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
