#include "tests/parity/gguf_conversion.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/dtype.h"
#include "formats/tensors/ggml_blocks.h"
#include "models/weights/checkpoint.h"
#include "tests/parity/ggml_encoder.h"

namespace quire::models::parity {
namespace {

using nlohmann::json;
using Names = std::map<std::string, std::string>;

struct Values {
  std::vector<std::int64_t> shape;
  std::vector<float> data;

  std::size_t at(std::size_t dim) const { return static_cast<std::size_t>(shape[dim]); }
  std::size_t row() const { return data.size() / at(0); }  // elements behind the first dimension
};
using Tensors = std::map<std::string, Values>;

bool IsAny(const std::string& text, const std::vector<std::string>& of) {
  return std::find(of.begin(), of.end(), text) != of.end();
}

// Maps the part of a name behind "layers.N." to the part behind "blk.N.".
const Names& CommonNames() {
  static const Names kNames = {{"input_layernorm", "attn_norm"},
                               {"post_attention_layernorm", "ffn_norm"},
                               {"self_attn.q_proj", "attn_q"},
                               {"self_attn.k_proj", "attn_k"},
                               {"self_attn.v_proj", "attn_v"},
                               {"self_attn.o_proj", "attn_output"},
                               {"self_attn.q_norm", "attn_q_norm"},
                               {"self_attn.k_norm", "attn_k_norm"},
                               {"self_attn.q_a_proj", "attn_q_a"},
                               {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                               {"self_attn.q_b_proj", "attn_q_b"},
                               {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                               {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                               {"self_attn.indexer.wq_b", "indexer.attn_q_b"},
                               {"self_attn.indexer.wk", "indexer.attn_k"},
                               {"self_attn.indexer.k_norm", "indexer.k_norm"},
                               {"self_attn.indexer.weights_proj", "indexer.proj"}};
  return kNames;
}

// The same for MLPs and experts, behind the name of their block.
const Names& MlpNames() {
  static const Names kNames = {{"gate_proj", "ffn_gate"},
                               {"up_proj", "ffn_up"},
                               {"down_proj", "ffn_down"},
                               {"gate", "ffn_gate_inp"},
                               {"router", "ffn_gate_inp"},
                               {"gate.e_score_correction_bias", "exp_probs_b.bias"},
                               {"e_score_correction_bias", "exp_probs_b.bias"},
                               {"shared_expert_gate", "ffn_gate_inp_shexp"},
                               {"shared_mlp.output_linear", "ffn_down_shexp"},
                               {"fc1_latent_proj", "ffn_latent_down"},
                               {"fc2_latent_proj", "ffn_latent_up"}};
  return kNames;
}

// The same for the tensors of recurrent layers that several families call alike.
const Names& RecurrentNames() {
  static const Names kNames = {{"in_proj", "ssm_in"},       {"in_proj_ba", "ssm_ba"},
                               {"in_proj_qkv", "attn_qkv"}, {"in_proj_z", "attn_gate"},
                               {"in_proj_b", "ssm_beta"},   {"in_proj_a", "ssm_alpha"},
                               {"conv1d", "ssm_conv1d"},    {"A_log", "ssm_a"},
                               {"dt_bias", "ssm_dt.bias"},  {"D", "ssm_d"},
                               {"norm", "ssm_norm"},        {"out_proj", "ssm_out"}};
  return kNames;
}

// Names that belong to one architecture.
Names OwnNames(const std::string& architecture) {
  if (absl::StartsWith(architecture, "qwen") || architecture == "glm4moe") {
    return {{"post_attention_layernorm", "post_attention_norm"}};
  }
  if (architecture == "granitehybrid") {
    return {{"block_sparse_moe.router.layer", "ffn_gate_inp"},
            {"block_sparse_moe.output_linear", "ffn_down_exps"},
            {"shared_mlp.output_linear", "ffn_down_shexp"}};
  }
  if (absl::StartsWith(architecture, "nemotron_h")) {
    return {{"norm", "attn_norm"},
            {"mixer.q_proj", "attn_q"},
            {"mixer.k_proj", "attn_k"},
            {"mixer.v_proj", "attn_v"},
            {"mixer.o_proj", "attn_output"}};
  }
  if (architecture == "lfm2") {
    return {{"operator_norm", "attn_norm"},
            {"ffn_norm", "ffn_norm"},
            {"conv.in_proj", "shortconv.in_proj"},
            {"conv.conv", "shortconv.conv"},
            {"conv.out_proj", "shortconv.out_proj"},
            {"feed_forward.w1", "ffn_gate"},
            {"feed_forward.w3", "ffn_up"},
            {"feed_forward.w2", "ffn_down"},
            {"self_attn.q_layernorm", "attn_q_norm"},
            {"self_attn.k_layernorm", "attn_k_norm"},
            {"self_attn.out_proj", "attn_output"}};
  }
  if (architecture == "gemma4" || architecture == "olmo2") {
    return {{"post_attention_layernorm", "post_attention_norm"},
            {"pre_feedforward_layernorm", "ffn_norm"},
            {"post_feedforward_layernorm", "post_ffw_norm"},
            {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
            {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
            {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
            {"layer_scalar", "layer_output_scale.weight"},
            {"per_layer_input_gate", "inp_gate"},
            {"per_layer_projection", "proj"},
            {"post_per_layer_input_norm", "post_norm"},
            {"router.proj", "ffn_gate_inp"},
            {"router.scale", "ffn_gate_inp.scale"},
            {"router.per_expert_scale", "ffn_down_exps.scale"}};
  }
  if (architecture == "kimi-linear") {
    return {{"self_attn.q_conv1d", "ssm_conv1d_q"}, {"self_attn.k_conv1d", "ssm_conv1d_k"},
            {"self_attn.v_conv1d", "ssm_conv1d_v"}, {"self_attn.A_log", "ssm_a"},
            {"self_attn.dt_bias", "ssm_dt.bias"},   {"self_attn.f_a_proj", "ssm_f_a"},
            {"self_attn.f_b_proj", "ssm_f_b"},      {"self_attn.g_a_proj", "ssm_g_a"},
            {"self_attn.g_b_proj", "ssm_g_b"},      {"self_attn.b_proj", "ssm_beta"},
            {"self_attn.o_norm", "ssm_norm"}};
  }
  return {};
}

// Returns the new name of a part, without ".weight" and ".bias"; empty if there is none.
std::string FindName(const Names& own, const std::string& part) {
  if (const auto found = own.find(part); found != own.end()) return found->second;
  if (const auto found = CommonNames().find(part); found != CommonNames().end()) {
    return found->second;
  }
  const auto under = [&](const char* block, const Names& names, const char* ending) {
    const std::string prefix = absl::StrCat(block, ".");
    if (!absl::StartsWith(part, prefix)) return std::string();
    const auto found = names.find(part.substr(prefix.size()));
    return found == names.end() ? std::string() : found->second + ending;
  };
  for (const char* block : {"mlp", "feed_forward", "block_sparse_moe", "mixer"}) {
    for (const char* shared : {".shared_expert", ".shared_experts"}) {
      const std::string name = under(absl::StrCat(block, shared).c_str(), MlpNames(), "_shexp");
      if (!name.empty()) return name;
    }
    if (const std::string name = under(block, MlpNames(), ""); !name.empty()) return name;
  }
  for (const char* block : {"linear_attn", "mamba", "mixer"}) {
    if (const std::string name = under(block, RecurrentNames(), ""); !name.empty()) return name;
  }
  return "";
}

// True for the matrices that programs quantize.
bool IsQuantized(const std::string& name, const Values& values) {
  return values.shape.size() > 1 && absl::EndsWith(name, ".weight") &&
         values.shape.back() % 32 == 0 && !absl::StrContains(name, "conv.weight") &&
         !absl::StrContains(name, "conv1d") && !absl::StrContains(name, "norm") &&
         !absl::StrContains(name, "ffn_gate_inp");
}

class Converter {
 public:
  Converter(EditedFixture& fixture, const std::string& architecture, const GgufOptions& options)
      : arch_(architecture),
        options_(options),
        config_(fixture.config()),
        names_(OwnNames(architecture)) {
    if (config_.contains("text_config")) config_ = config_["text_config"];
    if (options.has_tokenizer) tokenizer_ = json::parse(fixture.Text("tokenizer.json"));
    const formats::ModelFiles files = fixture.Files();
    const auto checkpoint = Checkpoint::Open(files);
    QUIRE_CHECK(checkpoint.ok());
    for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
      Values values{.shape = tensor.shape, .data = {}};
      values.data.resize(static_cast<std::size_t>(tensor.num_elements()));
      formats::DequantizeRow(
          tensor.dtype == DType::kF32 ? formats::GgmlType::kF32 : formats::GgmlType::kBF16,
          tensor.bytes, values.data);
      tensors_.emplace(tensor.name, std::move(values));
    }
  }

  GgufWriter Convert() {
    writer_.Text("general.architecture", arch_);
    AddCommonKeys();
    if (absl::StartsWith(arch_, "qwen")) AddQwenKeys();
    if (config_.contains("moe_intermediate_size") || config_.contains("num_local_experts")) {
      AddExpertKeys();
    }
    if (config_.contains("mamba_d_state")) AddGraniteKeys();
    if (config_.contains("ssm_state_size")) AddNemotronKeys();
    if (arch_ == "lfm2") Copy("shortconv.l_cache", "conv_L_cache");
    if (arch_ == "lfm2") Copy("vocab_size", "vocab_size");
    if (arch_ == "gemma4") AddGemmaKeys();
    if (arch_ == "llama4") AddLlama4Keys();
    if (arch_ == "olmo2") AddOlmoKeys();
    if (config_.contains("kv_lora_rank")) AddMlaKeys();
    for (auto& [name, values] : tensors_) AddTensor(name, std::move(values));
    AddExpertStacks();
    if (options_.has_tokenizer) AddTokenizer();
    return std::move(writer_);
  }

 private:
  std::size_t layers() const { return config_["num_hidden_layers"].get<std::size_t>(); }
  std::int64_t Size(const char* key) const { return config_[key].get<std::int64_t>(); }
  std::string Key(const std::string& key) const { return absl::StrCat(arch_, ".", key); }
  void Integer(const std::string& key, std::int64_t value) {
    writer_.Integer(Key(key), static_cast<std::uint32_t>(value));
  }
  // Writes a key of config.json, if it is there.
  void Copy(const std::string& key, const char* from) {
    if (config_.contains(from) && config_[from].is_number()) Integer(key, Size(from));
  }
  void CopyNumber(const std::string& key, const char* from) {
    if (config_.contains(from)) writer_.Number(Key(key), config_[from].get<double>());
  }
  formats::GgmlType TypeOf(const std::string& name, const Values& values) const {
    const bool is_outer = !absl::StartsWith(name, "blk.");
    if (!IsQuantized(name, values) || (options_.in_layers_only && is_outer)) {
      return formats::GgmlType::kF32;
    }
    const bool fits = values.shape.back() % formats::FormatOf(options_.type).elements == 0;
    return fits ? options_.type : formats::GgmlType::kQ8_0;
  }
  void Tensor(const std::string& name, const Values& values) {
    formats::GgmlType type = TypeOf(name, values);
    std::string bytes = EncodeGgml(type, values.data);
    if (options_.is_dequantized) {
      bytes = EncodeGgml(formats::GgmlType::kF32, DecodeGgml(type, bytes));
      type = formats::GgmlType::kF32;
    }
    writer_.Tensor(name, values.shape, static_cast<std::uint32_t>(type), bytes.data(),
                   bytes.size());
  }

  // Rope settings, which are at the top level or nested.
  const json& Rope() const {
    return config_.contains("rope_parameters") ? config_["rope_parameters"] : config_;
  }

  bool is_nemotron() const { return absl::StartsWith(arch_, "nemotron_h"); }
  std::int64_t behind() const {
    return config_.value("mtp_num_hidden_layers", config_.value("num_nextn_predict_layers", 0));
  }
  std::int64_t head_size() const {
    return config_.value("head_dim", Size("hidden_size") / Size("num_attention_heads"));
  }
  // True for layers whose entry of layer_types is one of `types`.
  std::vector<bool> LayersOf(const std::vector<std::string>& types) const {
    std::vector<bool> is_one;
    for (const json& type : config_["layer_types"]) is_one.push_back(IsAny(type, types));
    return is_one;
  }
  // Writes the number of KV heads, which is 0 in layers without attention.
  void AddKvHeads(const std::vector<bool>& has_attention) {
    std::vector<std::int32_t> heads;
    for (const bool has : has_attention) {
      heads.push_back(has ? config_["num_key_value_heads"].get<std::int32_t>() : 0);
    }
    writer_.Integers(Key("attention.head_count_kv"), heads);
  }

  void AddCommonKeys() {
    const bool has_mamba = config_.contains("mamba_d_state") || config_.contains("ssm_state_size");
    if (has_mamba) {
      Integer("context_length", 1 << 20);
    } else {
      Copy("context_length", "max_position_embeddings");
      Copy("context_length", "model_max_length");
    }
    Copy("embedding_length", "hidden_size");
    Integer("block_count", Size("num_hidden_layers") + behind());
    if (behind() > 0) Integer("nextn_predict_layers", behind());
    Copy("attention.head_count", "num_attention_heads");
    for (const char* key : {"rms_norm_eps", "norm_eps"}) {
      CopyNumber("attention.layer_norm_rms_epsilon", key);
    }
    const bool is_nested = Rope().contains("full_attention");
    const json& rope = is_nested ? Rope()["full_attention"] : Rope();
    writer_.Number(Key("rope.freq_base"), rope["rope_theta"].get<double>());
    const bool has_own_widths = IsAny(arch_, {"gemma4", "llama4", "lfm2"}) || is_nemotron();
    if (!has_own_widths) Copy("feed_forward_length", "intermediate_size");
    if (arch_ == "lfm2") {
      Integer("feed_forward_length", tensors_.at("model.layers.0.feed_forward.w1.weight").shape[0]);
      AddKvHeads(LayersOf({"full_attention"}));
    }
    const bool is_mla = config_.contains("kv_lora_rank");
    if (!has_mamba && !is_mla && !IsAny(arch_, {"lfm2", "gemma4"})) {
      Copy("attention.head_count_kv", "num_key_value_heads");
    }
    if (is_mla || arch_ == "gemma4") return;
    Copy("attention.key_length", "head_dim");
    Copy("attention.value_length", "head_dim");
  }

  void AddExpertKeys() {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      Copy("expert_count", key);
    }
    for (const char* key : {"num_experts_per_tok", "num_experts_per_token", "top_k_experts"}) {
      Copy("expert_used_count", key);
    }
    Copy("expert_feed_forward_length", "moe_intermediate_size");
    if (IsAny(arch_, {"minimax-m2", "llama4"})) {
      Copy("expert_feed_forward_length", "intermediate_size");
    }
    for (const char* key : {"n_shared_experts", "num_shared_experts"}) {
      Copy("expert_shared_count", key);
    }
    Copy("expert_group_count", "n_group");
    Copy("expert_group_used_count", "topk_group");
    CopyNumber("expert_weights_scale", "routed_scaling_factor");
    Copy("leading_dense_block_count", "first_k_dense_replace");
    const bool normalizes = config_.value("norm_topk_prob", false);
    if (normalizes && config_.contains("n_routed_experts")) {
      writer_.Bool(Key("expert_weights_norm"), true);
    }
    const bool is_sigmoid = arch_ == "glm4moe" || arch_ == "kimi-linear" ||
                            config_.value("scoring_func", "") == "sigmoid";
    if (is_sigmoid) Integer("expert_gating_func", 2);
    if (config_.value("scoring_func", "") == "softmax") Integer("expert_gating_func", 1);
    if (!IsAny(arch_, {"glm4moe", "minimax-m2"})) return;
    Integer("rope.dimension_count",
            arch_ == "minimax-m2"
                ? Size("rotary_dim")
                : static_cast<std::int64_t>(config_["partial_rotary_factor"].get<double>() *
                                            static_cast<double>(head_size())));
  }

  void AddGraniteKeys() {
    AddKvHeads(LayersOf({"attention"}));
    Copy("vocab_size", "vocab_size");
    Integer("rope.dimension_count", head_size());
    CopyNumber("attention.scale", "attention_multiplier");
    CopyNumber("embedding_scale", "embedding_multiplier");
    CopyNumber("residual_scale", "residual_multiplier");
    CopyNumber("logit_scale", "logits_scaling");
    Copy("expert_shared_feed_forward_length", "shared_intermediate_size");
    Copy("ssm.conv_kernel", "mamba_d_conv");
    Copy("ssm.state_size", "mamba_d_state");
    Copy("ssm.group_count", "mamba_n_groups");
    Integer("ssm.inner_size", Size("mamba_n_heads") * Size("mamba_d_head"));
    Copy("ssm.time_step_rank", "mamba_n_heads");
    writer_.Bool(Key("rope.scaling.finetuned"), false);
  }

  void AddNemotronKeys() {
    const auto pattern = config_["hybrid_override_pattern"].get<std::string>();
    std::vector<bool> has_attention;
    std::vector<std::int32_t> widths;
    const bool has_experts = arch_ == "nemotron_h_moe";
    const auto width =
        config_[has_experts ? "moe_intermediate_size" : "intermediate_size"].get<std::int32_t>();
    for (const char c : pattern) {
      has_attention.push_back(c == '*');
      // With experts, the widths of other MLPs are not stored.
      const bool is_stored = c == (has_experts ? 'E' : '-');
      widths.push_back(is_stored ? width : 0);
    }
    AddKvHeads(has_attention);
    writer_.Integers(Key("feed_forward_length"), widths);
    CopyNumber("attention.layer_norm_epsilon", "layer_norm_epsilon");
    Copy("vocab_size", "vocab_size");
    Integer("rope.dimension_count", Size("hidden_size") / Size("num_attention_heads"));
    Copy("ssm.conv_kernel", "conv_kernel");
    Copy("ssm.state_size", "ssm_state_size");
    Copy("ssm.group_count", "n_groups");
    Integer("ssm.inner_size", Size("mamba_num_heads") * Size("mamba_head_dim"));
    Copy("ssm.time_step_rank", "mamba_num_heads");
    writer_.Bool(Key("rope.scaling.finetuned"), false);
    Copy("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size");
    Copy("moe_latent_size", "moe_latent_size");
  }

  void AddGemmaKeys() {
    const std::vector<bool> has_window = LayersOf({"sliding_attention"});
    std::vector<std::int32_t> heads, widths;
    const json& global = config_["num_global_key_value_heads"];
    const std::size_t first_shared = layers() - config_["num_kv_shared_layers"].get<std::size_t>();
    for (std::size_t i = 0; i < layers(); ++i) {
      const bool is_own = has_window[i] || global.is_null();
      heads.push_back((is_own ? config_["num_key_value_heads"] : global).get<std::int32_t>());
      widths.push_back(config_["intermediate_size"].get<std::int32_t>() *
                       (i < first_shared ? 1 : 2));
    }
    if (global.is_null()) {
      Copy("attention.head_count_kv", "num_key_value_heads");
    } else {
      writer_.Integers(Key("attention.head_count_kv"), heads);
    }
    if (first_shared == layers()) {
      Copy("feed_forward_length", "intermediate_size");
    } else {
      writer_.Integers(Key("feed_forward_length"), widths);
    }
    writer_.Number(Key("rope.freq_base_swa"),
                   Rope()["sliding_attention"]["rope_theta"].get<double>());
    for (const char* key :
         {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
      Copy(key, "global_head_dim");
      Copy(absl::StrCat(key, "_swa"), "head_dim");
    }
    CopyNumber("final_logit_softcapping", "final_logit_softcapping");
    Copy("attention.sliding_window", "sliding_window");
    Copy("attention.shared_kv_layers", "num_kv_shared_layers");
    Copy("embedding_length_per_layer_input", "hidden_size_per_layer_input");
    writer_.Bools(Key("attention.sliding_window_pattern"), has_window);
    const auto pairs = static_cast<std::size_t>(Size("global_head_dim") / 2);
    std::vector<float> factors(pairs, 1e30f);
    const double partial = Rope()["full_attention"]["partial_rotary_factor"].get<double>();
    std::fill_n(factors.begin(), static_cast<std::size_t>(partial * static_cast<double>(pairs)),
                1.0f);
    writer_.Floats("rope_freqs.weight", factors);
  }

  void AddLlama4Keys() {
    Copy("feed_forward_length", "intermediate_size_mlp");
    Copy("vocab_size", "vocab_size");
    Copy("rope.dimension_count", "head_dim");
    Copy("interleave_moe_layer_step", "interleave_moe_layer_step");
    // The divisors of frequencies by which llama3 scaling is stored.
    const json& scaling = config_["rope_scaling"];
    const double low = scaling["low_freq_factor"], high = scaling["high_freq_factor"];
    const double original = scaling["original_max_position_embeddings"], factor = scaling["factor"];
    std::vector<float> divisors;
    for (std::int64_t i = 0; i < head_size(); i += 2) {
      const double frequency = std::pow(config_["rope_theta"].get<double>(),
                                        -static_cast<double>(i) / static_cast<double>(head_size()));
      const double turns = original * frequency / (2 * std::acos(-1.0));
      const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      divisors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
    }
    writer_.Floats("rope_freqs.weight", divisors);
  }

  void AddYarnKeys() {
    const json& scaling = config_["rope_scaling"];
    const auto number = [&](const std::string& key, const char* from) {
      if (scaling.contains(from)) writer_.Number(Key("rope.scaling." + key), scaling[from]);
    };
    writer_.Text(Key("rope.scaling.type"), "yarn");
    number("factor", "factor");
    Integer("rope.scaling.original_context_length", scaling["original_max_position_embeddings"]);
    number("yarn_beta_fast", "beta_fast");
    number("yarn_beta_slow", "beta_slow");
    number("yarn_attn_factor", "attention_factor");
    if (!scaling.contains("mscale_all_dim")) return;
    writer_.Number(Key("rope.scaling.yarn_log_multiplier"),
                   0.1 * scaling["mscale_all_dim"].get<double>());
  }

  void AddOlmoKeys() {
    if (!config_.contains("sliding_window")) return;
    AddYarnKeys();
    writer_.Number(Key("rope.freq_base_swa"), config_["rope_theta"].get<double>());
    Copy("attention.sliding_window", "sliding_window");
    writer_.Bools(Key("attention.sliding_window_pattern"), LayersOf({"sliding_attention"}));
  }

  void AddMlaKeys() {
    Copy("vocab_size", "vocab_size");
    Copy("attention.q_lora_rank", "q_lora_rank");
    Copy("attention.kv_lora_rank", "kv_lora_rank");
    Integer("attention.key_length_mla", Size("qk_nope_head_dim") + Size("qk_rope_head_dim"));
    Copy("attention.value_length_mla", "v_head_dim");
    // Keys and values are the cached rows.
    Integer("attention.key_length", Size("kv_lora_rank") + Size("qk_rope_head_dim"));
    Integer("attention.value_length",
            arch_ == "kimi-linear" ? Size("head_dim") : Size("kv_lora_rank"));
    Copy("rope.dimension_count", "qk_rope_head_dim");
    Copy("attention.indexer.head_count", "index_n_heads");
    Copy("attention.indexer.key_length", "index_head_dim");
    Copy("attention.indexer.top_k", "index_topk");
    if (arch_ == "glm-dsa") {
      std::vector<bool> has_indexer;
      for (std::size_t i = 0; i < layers(); ++i) {
        const std::string name = absl::StrCat("model.layers.", i, ".self_attn.indexer.wk.weight");
        has_indexer.push_back(tensors_.contains(name));
      }
      writer_.Bools(Key("attention.indexer.types"), has_indexer);
    }
    if (config_["rope_scaling"].is_object()) AddYarnKeys();
    if (arch_ != "kimi-linear") return Integer("attention.head_count_kv", 1);
    std::vector<std::int32_t> heads(layers(), 0);
    for (const json& number : config_["linear_attn_config"]["full_attn_layers"]) {
      heads[number.get<std::size_t>() - 1] = 1;
    }
    writer_.Integers(Key("attention.head_count_kv"), heads);
    const json& kda = config_["linear_attn_config"];
    Integer("ssm.conv_kernel", kda["short_conv_kernel_size"]);
    Integer("kda.head_dim", kda["head_dim"]);
  }

  void AddQwenKeys() {
    Copy("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    Copy("ssm.conv_kernel", "linear_conv_kernel_dim");
    Copy("ssm.state_size", "linear_key_head_dim");
    Copy("ssm.group_count", "linear_num_key_heads");
    Copy("ssm.time_step_rank", "linear_num_value_heads");
    Integer("ssm.inner_size", Size("linear_value_head_dim") * Size("linear_num_value_heads"));
    const auto interval = config_.value("full_attention_interval", std::size_t{4});
    const std::size_t blocks = layers() + config_.value("mtp_num_hidden_layers", std::size_t{0});
    std::vector<bool> recurrent;
    for (std::size_t i = 0; i < blocks; ++i) {
      recurrent.push_back(i < layers() && (i + 1) % interval != 0);
    }
    writer_.Bools(Key("attention.recurrent_layers"), recurrent);
    Integer("full_attention_interval", static_cast<std::int64_t>(interval));
    const double partial = Rope().value("partial_rotary_factor", 0.25);
    Integer("rope.dimension_count",
            static_cast<std::int64_t>(partial * static_cast<double>(Size("head_dim"))));
    if (!Rope().contains("mrope_section")) return;
    auto sections = Rope()["mrope_section"].get<std::vector<std::int32_t>>();
    sections.resize(4);
    writer_.Integers(Key("rope.dimension_sections"), sections);
  }

  // Returns "blk.3." and the part behind "layers.3.", or the name in `part` for other tensors.
  std::string Prefix(const std::string& name, std::string* part) const {
    std::string rest = name;
    for (const char* prefix : {"model.language_model.", "backbone.", "model."}) {
      if (absl::StartsWith(rest, prefix)) rest = std::string(absl::StripPrefix(rest, prefix));
    }
    *part = rest;
    if (!absl::StartsWith(rest, "layers.")) return "";
    const std::vector<std::string> words = absl::StrSplit(rest, absl::MaxSplits('.', 2));
    *part = words[2];
    return absl::StrCat("blk.", words[1], ".");
  }

  void AddTensor(const std::string& name, Values values) {
    if (absl::StartsWith(name, "model.visual.") || absl::StartsWith(name, "mtp.")) return;
    std::string part;
    const std::string prefix = Prefix(name, &part);
    if (absl::StartsWith(prefix, absl::StrCat("blk.", layers(), "."))) return;
    if (prefix.empty()) return AddOuter(part, std::move(values));
    if (absl::StrContains(part, ".experts.") || absl::StartsWith(part, "experts.")) {
      return AddExpert(prefix, part, std::move(values));
    }
    if (absl::StartsWith(arch_, "qwen")) ChangeQwen(part, &values);
    ChangeRecurrent(part, &values);
    if (part == "linear_attn.in_proj_qkvz.weight") return AddQkvz(prefix, values);
    if (part == "block_sparse_moe.input_linear.weight") {
      return AddGateAndUp(prefix, "_exps", std::move(values));
    }
    if (part == "shared_mlp.input_linear.weight") {
      return AddGateAndUp(prefix, "_shexp", std::move(values));
    }
    if (part == "self_attn.kv_b_proj.weight") return AddKeysAndValues(prefix, values);
    const bool interleaves = arch_ == "granitehybrid" || is_nemotron();
    if (interleaves &&
        (absl::EndsWith(part, "q_proj.weight") || absl::EndsWith(part, "k_proj.weight"))) {
      Interleave(&values);
    }
    Tensor(prefix + GgufName(part), values);
  }

  std::string GgufName(const std::string& part) const {
    if (const std::string whole = FindName(names_, part); !whole.empty()) return whole;
    const std::size_t dot = part.rfind('.');
    const std::string name = FindName(names_, part.substr(0, dot));
    QUIRE_CHECK(!name.empty());
    return name + part.substr(dot);
  }

  void AddOuter(const std::string& part, Values values) {
    static const Names kNames = {
        {"embed_tokens.weight", "token_embd.weight"},
        {"embeddings.weight", "token_embd.weight"},
        {"norm.weight", "output_norm.weight"},
        {"norm_f.weight", "output_norm.weight"},
        {"embedding_norm.weight", "token_embd_norm.weight"},
        {"lm_head.weight", "output.weight"},
        {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
        {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
        {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"}};
    if (absl::StartsWith(arch_, "qwen") && part == "norm.weight") AddOne(&values);
    Tensor(kNames.at(part), values);
  }

  static void AddOne(Values* values) {
    for (float& value : values->data) value += 1;
  }

  // Reorders value heads of `size` columns along the first dimension. The value heads of a key head
  // are adjacent in checkpoints, and key_heads apart in GGUF files.
  void TileRows(std::size_t first, std::size_t size, Values* values) const {
    const auto key_heads = static_cast<std::size_t>(Size("linear_num_key_heads"));
    const std::size_t ratio = static_cast<std::size_t>(Size("linear_num_value_heads")) / key_heads;
    const std::size_t row = values->row();
    const std::vector<float> old = values->data;
    for (std::size_t k = 0; k < key_heads; ++k) {
      for (std::size_t r = 0; r < ratio; ++r) {
        std::copy_n(
            old.begin() + static_cast<std::ptrdiff_t>((first + (k * ratio + r) * size) * row),
            size * row,
            values->data.begin() +
                static_cast<std::ptrdiff_t>((first + (r * key_heads + k) * size) * row));
      }
    }
  }

  // Swaps the last two dimensions.
  static void Transpose(Values* values) {
    const std::size_t dims = values->shape.size();
    const std::size_t rows = values->at(dims - 2), columns = values->at(dims - 1);
    const std::vector<float> old = values->data;
    for (std::size_t i = 0; i < old.size(); ++i) {
      const std::size_t matrix = i / (rows * columns), r = i / columns % rows, c = i % columns;
      values->data[matrix * rows * columns + c * rows + r] = old[i];
    }
    std::swap(values->shape[dims - 2], values->shape[dims - 1]);
  }

  void ChangeQwen(const std::string& part, Values* values) const {
    if (absl::EndsWith(part, "norm.weight") && part != "linear_attn.norm.weight") AddOne(values);
    if (!absl::StartsWith(part, "linear_attn.")) return;
    const auto value_size = static_cast<std::size_t>(Size("linear_value_head_dim"));
    const auto keys =
        static_cast<std::size_t>(2 * Size("linear_num_key_heads") * Size("linear_key_head_dim"));
    if (arch_ == "qwen3next") return;
    if (IsAny(part, {"linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"})) {
      TileRows(keys, value_size, values);
    } else if (part == "linear_attn.in_proj_z.weight") {
      TileRows(0, value_size, values);
    } else if (part == "linear_attn.out_proj.weight") {
      Transpose(values);
      TileRows(0, value_size, values);
      Transpose(values);
    } else if (part != "linear_attn.norm.weight") {
      TileRows(0, 1, values);
    }
  }

  // Recurrent layers: the shapes of files, and A instead of its logarithm.
  void ChangeRecurrent(const std::string& part, Values* values) const {
    if (absl::EndsWith(part, "A_log")) {
      for (float& value : values->data) value = -std::exp(value);
    }
    const bool is_conv = absl::EndsWith(part, "conv1d.weight") || part == "conv.conv.weight";
    const bool is_kimi = arch_ == "kimi-linear";
    if (is_conv && is_kimi) values->shape = {1, values->shape[0], 1, values->shape[2]};
    if (is_conv && !is_kimi) values->shape = {values->shape[0], values->shape[2]};
    if (IsAny(part, {"mamba.A_log", "mamba.D", "mixer.A_log", "mixer.D"})) {
      values->shape = {values->shape[0], 1};
    }
    if (IsAny(part, {"mamba.norm.weight", "mixer.norm.weight"})) {
      const std::int64_t groups =
          arch_ == "granitehybrid" ? Size("mamba_n_groups") : Size("n_groups");
      values->shape = {groups, values->shape[0] / groups};
    }
  }

  // Puts rows j and j + d/2 of each head beside each other.
  void Interleave(Values* values) const {
    const auto size = static_cast<std::size_t>(head_size());
    const std::vector<float> old = values->data;
    const std::size_t row = values->row();
    for (std::size_t i = 0; i < values->at(0); ++i) {
      const std::size_t j = i % size, from = i - j + j / 2 + j % 2 * (size / 2);
      std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(from * row), row,
                  values->data.begin() + static_cast<std::ptrdiff_t>(i * row));
    }
  }

  // Divides the rows of each head into those of keys, which are transposed, and those of values.
  void AddKeysAndValues(const std::string& prefix, const Values& whole) {
    const std::int64_t heads = Size("num_attention_heads"), nope = Size("qk_nope_head_dim");
    const std::int64_t all = whole.shape[0] / heads;
    Values keys{.shape = {heads, nope, whole.shape[1]}, .data = {}};
    Values values{.shape = {heads, all - nope, whole.shape[1]}, .data = {}};
    for (std::int64_t row = 0; row < whole.shape[0]; ++row) {
      const float* const from = whole.data.data() + static_cast<std::size_t>(row) * whole.row();
      Values& to = row % all < nope ? keys : values;
      to.data.insert(to.data.end(), from, from + whole.row());
    }
    Transpose(&keys);
    Tensor(prefix + "attn_k_b.weight", keys);
    Tensor(prefix + "attn_v_b.weight", values);
  }

  // Divides rows that are ordered by key heads, each with its q, k, v and z.
  void AddQkvz(const std::string& prefix, const Values& whole) {
    const std::int64_t heads = Size("linear_num_key_heads"), keys = Size("linear_key_head_dim");
    const std::int64_t all = whole.shape[0] / heads, values = (all - 2 * keys) / 2;
    Values qkv{.shape = {heads * (2 * keys + values), whole.shape[1]}, .data = {}};
    Values z{.shape = {heads * values, whole.shape[1]}, .data = {}};
    const auto append = [&](Values* to, std::int64_t first, std::int64_t count) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto* const from =
            whole.data.data() + static_cast<std::size_t>(head * all + first) * whole.row();
        to->data.insert(to->data.end(), from, from + static_cast<std::size_t>(count) * whole.row());
      }
    };
    append(&qkv, 0, keys);
    append(&qkv, keys, keys);
    append(&qkv, 2 * keys, values);
    append(&z, 2 * keys + values, values);
    Tensor(prefix + "attn_qkv.weight", qkv);
    Tensor(prefix + "attn_gate.weight", z);
  }

  // Collects experts, which are one tensor each or stacks.
  void AddExpert(const std::string& prefix, const std::string& part, Values values) {
    static const Names kStacks = {{"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"},
                                  {"down_proj", "ffn_down_exps"}, {"w1", "ffn_gate_exps"},
                                  {"w3", "ffn_up_exps"},          {"w2", "ffn_down_exps"}};
    const std::string name = part.substr(part.find("experts.") + 8);
    if (IsAny(name, {"gate_up_proj", "down_proj"})) {
      if (arch_ == "llama4") Transpose(&values);
      if (name == "down_proj") return Tensor(prefix + "ffn_down_exps.weight", values);
      if (arch_ == "gemma4") return Tensor(prefix + "ffn_gate_up_exps.weight", values);
      return AddGateAndUp(prefix, "_exps", std::move(values));
    }
    const std::vector<std::string> words = absl::StrSplit(name, '.');
    std::size_t number = 0;
    QUIRE_CHECK(absl::SimpleAtoi(words[0], &number));
    experts_[absl::StrCat(prefix, kStacks.at(words[1]), ".weight")][number] = std::move(values);
  }

  // Divides a matrix, or each matrix of a stack: the rows of gate precede those of up.
  void AddGateAndUp(const std::string& prefix, const char* ending, Values both) {
    const bool is_stack = both.shape.size() == 3;
    if (!is_stack) both.shape.insert(both.shape.begin(), 1);
    const std::size_t half = both.row() / 2;
    for (std::size_t part = 0; part < 2; ++part) {
      Values values{.shape = {both.shape[0], both.shape[1] / 2, both.shape[2]}, .data = {}};
      for (std::size_t e = 0; e < both.at(0); ++e) {
        const float* const from = both.data.data() + e * both.row() + part * half;
        values.data.insert(values.data.end(), from, from + half);
      }
      if (!is_stack) values.shape.erase(values.shape.begin());
      Tensor(absl::StrCat(prefix, part == 0 ? "ffn_gate" : "ffn_up", ending, ".weight"), values);
    }
  }

  void AddExpertStacks() {
    for (const auto& [name, experts] : experts_) {
      Values stack{.shape = {static_cast<std::int64_t>(experts.size())}, .data = {}};
      const Values& first = experts.begin()->second;
      stack.shape.insert(stack.shape.end(), first.shape.begin(), first.shape.end());
      for (const auto& [number, values] : experts) {
        stack.data.insert(stack.data.end(), values.data.begin(), values.data.end());
      }
      Tensor(name, stack);
    }
  }

  // Fixtures have BPE with the pre-tokenizer of GPT-2. Ids behind its tokens are unused.
  void AddTokenizer() {
    constexpr std::int32_t kNormal = 1, kControl = 3, kUnused = 5;
    std::vector<std::string> tokens(static_cast<std::size_t>(Size("vocab_size")));
    std::vector<std::int32_t> types(tokens.size(), kUnused);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = absl::StrCat("[PAD", i, "]");
    const auto set = [&](const std::string& token, std::size_t id, std::int32_t type) {
      tokens.at(id) = token;
      types.at(id) = type;
    };
    for (const auto& [token, id] : tokenizer_["model"]["vocab"].items()) set(token, id, kNormal);
    for (const json& added : tokenizer_["added_tokens"]) {
      set(added["content"], added["id"], kControl);
    }
    std::vector<std::string> merges;
    for (const json& pair : tokenizer_["model"]["merges"]) {
      merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
    }
    writer_.Text("tokenizer.ggml.model", "gpt2");
    writer_.Text("tokenizer.ggml.pre", "gpt-2");
    writer_.Texts("tokenizer.ggml.tokens", tokens);
    writer_.Integers("tokenizer.ggml.token_type", types);
    writer_.Texts("tokenizer.ggml.merges", merges);
    for (const char* name : {"bos", "eos"}) {
      const std::string key = absl::StrCat(name, "_token_id");
      writer_.Integer("tokenizer.ggml." + key, static_cast<std::uint32_t>(Size(key.c_str())));
    }
  }

  const std::string arch_;
  const GgufOptions options_;
  json config_;
  json tokenizer_;
  const Names names_;
  Tensors tensors_;
  std::map<std::string, std::map<std::size_t, Values>> experts_;
  GgufWriter writer_;
};

}  // namespace

GgufWriter ConvertToGguf(EditedFixture& fixture, const std::string& architecture,
                         const GgufOptions& options) {
  return Converter(fixture, architecture, options).Convert();
}

}  // namespace quire::models::parity
