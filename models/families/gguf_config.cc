#include "models/families/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "formats/model_files.h"
#include "formats/tensors/gguf_tensors.h"
#include "models/families/gguf_keys.h"
#include "models/families/gguf_layers.h"
#include "models/families/registry.h"

namespace quire::models {
namespace {

constexpr absl::string_view kEmbedding = "token_embd.weight";
constexpr absl::string_view kTokens = "tokenizer.ggml.tokens";

// Keys of the architecture that are read or that have no effect on generation.
constexpr absl::string_view kKnownKeys[] = {"context_length",
                                            "embedding_length",
                                            "block_count",
                                            "feed_forward_length",
                                            "vocab_size",
                                            "nextn_predict_layers",
                                            "full_attention_interval",
                                            "attention.recurrent_layers",
                                            "attention.indexer.types",
                                            "attention.head_count",
                                            "attention.head_count_kv",
                                            "attention.key_length",
                                            "attention.value_length",
                                            "attention.layer_norm_rms_epsilon",
                                            "attention.layer_norm_epsilon",
                                            "rope.dimension_count",
                                            "rope.dimension_count_swa",
                                            "rope.dimension_sections",
                                            "rope.freq_base",
                                            "rope.scale_linear",
                                            "rope.scaling.type",
                                            "rope.scaling.factor",
                                            "rope.scaling.original_context_length",
                                            "rope.scaling.yarn_beta_fast",
                                            "rope.scaling.yarn_beta_slow",
                                            "rope.scaling.finetuned"};

// Keys that change the computation. A family that does not read such a key accepts only its neutral
// values.
struct ComputationKey {
  absl::string_view key;
  double neutral;
  double also_neutral;
};
constexpr ComputationKey kComputationKeys[] = {{"expert_count", 0, 0},
                                               {"expert_used_count", 0, 0},
                                               {"expert_feed_forward_length", 0, 0},
                                               {"expert_shared_count", 0, 0},
                                               {"expert_shared_feed_forward_length", 0, 0},
                                               {"expert_weights_scale", 0, 1},
                                               {"expert_weights_norm", 1, 1},
                                               {"expert_gating_func", 0, 1},
                                               {"expert_group_count", 0, 1},
                                               {"expert_group_used_count", 0, 1},
                                               {"moe_latent_size", 0, 0},
                                               {"leading_dense_block_count", 0, 0},
                                               {"attention.sliding_window", 0, 0},
                                               {"attention.sliding_window_pattern", 0, 0},
                                               {"rope.freq_base_swa", 0, 0},
                                               {"attention.max_alibi_bias", 0, 0},
                                               {"attention.clamp_kqv", 0, 0},
                                               {"attention.scale", 0, 0},
                                               {"attention.shared_kv_layers", 0, 0},
                                               {"attention.temperature_scale", 0, 0},
                                               {"attention.temperature_length", 0, 0},
                                               {"embedding_length_per_layer_input", 0, 0},
                                               {"attention.causal", 1, 1},
                                               {"use_parallel_residual", 0, 0},
                                               {"logit_scale", 0, 1},
                                               {"embedding_scale", 0, 1},
                                               {"residual_scale", 0, 1},
                                               {"attn_logit_softcapping", 0, 0},
                                               {"final_logit_softcapping", 0, 0},
                                               {"rope.scaling.attn_factor", 1, 1},
                                               {"rope.scaling.yarn_log_multiplier", 0, 0},
                                               {"rope.scaling.yarn_ext_factor", 1, 1},
                                               {"rope.scaling.yarn_attn_factor", 1, 1}};

// Returns the window in tokens of a GGUF file without phi3.attention.sliding_window; 0 means none.
// Early converters left the key out, so published models are identified by their sizes. Returns
// nullopt for other sizes. llama.cpp uses the same rule.
std::optional<std::uint32_t> Phi3GgufWindow(std::uint32_t context_length,
                                            std::uint32_t block_count) {
  constexpr std::uint32_t kShortContext = 4096, kLongContext = 131072;
  constexpr std::uint32_t kShortWindow = 2047;
  // Models with long context have windows that are at least as long as the context.
  if (context_length == kLongContext) return 0;
  const bool is_published = block_count == 32 || block_count == 40;
  if (context_length == kShortContext && is_published) return kShortWindow;
  return std::nullopt;
}

// Fills a ModelConfig step by step.
class GgufConfigReader {
 public:
  explicit GgufConfigReader(const formats::OpenedGguf& opened)
      : opened_(opened), gguf_(opened.gguf) {}

  absl::StatusOr<ModelConfig> Read() {
    QUIRE_RETURN_IF_ERROR(SelectFamily());
    QUIRE_RETURN_IF_ERROR(CheckSplit());
    QUIRE_RETURN_IF_ERROR(CheckKeys());
    QUIRE_RETURN_IF_ERROR(ReadSizes());
    QUIRE_RETURN_IF_ERROR(ReadVocab());
    QUIRE_RETURN_IF_ERROR(ReadHeads());
    QUIRE_RETURN_IF_ERROR(ReadEpsilon());
    QUIRE_RETURN_IF_ERROR(ReadWindows());
    const GgufSource source{keys(), *family_, num_blocks_};
    QUIRE_RETURN_IF_ERROR(ReadGgufPerLayer(source, &config_));
    QUIRE_RETURN_IF_ERROR(ReadGgufMla(source, &config_));
    QUIRE_RETURN_IF_ERROR(ReadRope());
    QUIRE_RETURN_IF_ERROR(ReadGgufExperts(source, &config_));
    QUIRE_RETURN_IF_ERROR(ReadGgufStates(source, &config_));
    QUIRE_RETURN_IF_ERROR(ReadGgufIndex(source, &config_));
    QUIRE_RETURN_IF_ERROR(ReadGgufChunks(source, &config_));
    QUIRE_RETURN_IF_ERROR(ReadScores());
    QUIRE_RETURN_IF_ERROR(ReadIds());
    ReadPresence();
    return std::move(config_);
  }

 private:
  const GgufKeys& keys() const { return *keys_; }
  std::string Key(absl::string_view suffix) const { return keys().Name(suffix); }

  bool FamilyReads(absl::string_view suffix) const {
    return GgufSource{keys(), *family_}.Reads(suffix);
  }

  absl::Status SelectFamily() {
    QUIRE_ASSIGN_OR_RETURN(const absl::string_view architecture,
                           gguf_.String("general.architecture"));
    keys_.emplace(gguf_, architecture);
    QUIRE_ASSIGN_OR_RETURN(const std::uint32_t experts,
                           keys().CountOr("expert_count", kMaxExperts, 0, /*low=*/0));
    QUIRE_ASSIGN_OR_RETURN(const std::uint32_t window,
                           keys().CountOr("attention.sliding_window", kMaxPositions, 0, /*low=*/0));
    const auto& tensors = gguf_.tensors();
    const bool has_choice_bias =
        std::any_of(tensors.begin(), tensors.end(), [](const formats::GgufTensor& tensor) {
          return absl::EndsWith(tensor.name, ".exp_probs_b.bias");
        });
    family_ = FindFamilyByGgufArchitecture(architecture, {.has_experts = experts > 0,
                                                          .has_windows = window > 0,
                                                          .has_choice_bias = has_choice_bias});
    if (family_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(gguf_.label(), ": general.architecture \"", architecture,
                       "\" is not supported (supported: ", SupportedGgufArchitectures(), ")"));
    }
    config_.is_gguf = true;
    config_.family = std::string(family_->name);
    config_.architecture = std::string(family_->architectures[0]);
    config_.model_type = std::string(family_->model_types[0]);
    config_.hidden_act = std::string(family_->defaults.hidden_act);
    return absl::OkStatus();
  }

  absl::Status CheckSplit() const {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> files,
                           gguf_.OptionalInteger("split.count", 0, 65535));
    if (files.value_or(1) <= 1) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(gguf_.label(), ": split.count is ", *files,
                     ", a model in several GGUF files is not supported; merge them"));
  }

  // Returns a number or a bool as a number, nullopt for other types.
  absl::StatusOr<std::optional<double>> AnyNumber(absl::string_view key) const {
    switch (gguf_.TypeOf(key)) {
      case formats::GgufType::kString:
      case formats::GgufType::kArray:
        return std::nullopt;
      case formats::GgufType::kBool: {
        QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> value, gguf_.OptionalBool(key));
        return *value ? 1.0 : 0.0;
      }
      case formats::GgufType::kF32:
      case formats::GgufType::kF64:
        return gguf_.OptionalNumber(key);
      default: {
        constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
        QUIRE_ASSIGN_OR_RETURN(const std::int64_t value, gguf_.Integer(key, -kMax, kMax));
        return static_cast<double>(value);
      }
    }
  }

  absl::Status CheckKeys() {
    for (const ComputationKey& entry : kComputationKeys) {
      const std::string key = Key(entry.key);
      if (!gguf_.Has(key) || FamilyReads(entry.key)) continue;
      QUIRE_ASSIGN_OR_RETURN(const std::optional<double> value, AnyNumber(key));
      if (value && (*value == entry.neutral || *value == entry.also_neutral)) continue;
      return absl::UnimplementedError(absl::StrCat(gguf_.label(), ": ", key,
                                                   value ? absl::StrCat(" ", *value) : "",
                                                   " is not supported by ", family_->name));
    }
    std::vector<absl::string_view> unknown;
    const std::string prefix = Key("");
    for (const absl::string_view key : gguf_.keys()) {
      if (!absl::StartsWith(key, prefix)) continue;
      const absl::string_view suffix = key.substr(prefix.size());
      const bool known =
          FamilyReads(suffix) ||
          std::find(std::begin(kKnownKeys), std::end(kKnownKeys), suffix) != std::end(kKnownKeys) ||
          std::any_of(std::begin(kComputationKeys), std::end(kComputationKeys),
                      [&](const ComputationKey& entry) { return entry.key == suffix; });
      if (!known) unknown.push_back(key);
    }
    if (!unknown.empty()) {
      config_.warnings.push_back(absl::StrCat("the GGUF file has unknown keys, which are ignored: ",
                                              absl::StrJoin(unknown, ", ")));
    }
    return absl::OkStatus();
  }

  absl::Status ReadSizes() {
    QUIRE_ASSIGN_OR_RETURN(config_.max_position_embeddings,
                           keys().Count("context_length", kMaxPositions));
    QUIRE_ASSIGN_OR_RETURN(config_.hidden_size, keys().Count("embedding_length", kMaxHidden));
    QUIRE_ASSIGN_OR_RETURN(num_blocks_, keys().Count("block_count", kMaxLayers));
    // Blocks for multi-token prediction follow the layers.
    QUIRE_ASSIGN_OR_RETURN(const std::uint32_t num_mtp_blocks,
                           keys().CountOr("nextn_predict_layers", num_blocks_ - 1, 0, /*low=*/0));
    config_.num_hidden_layers = num_blocks_ - num_mtp_blocks;
    return ReadWidth();
  }

  absl::Status ReadWidth() {
    constexpr absl::string_view kWidth = "feed_forward_length";
    const std::uint32_t absent = family_->defaults.intermediate_size;
    if (!keys().Has(kWidth) && absent == 0) return keys().Error(kWidth, "is missing");
    if (FamilyReads("attention.key_length_swa")) {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> widths,
                             keys().PerBlock(kWidth, num_blocks_, kMaxIntermediate));
      config_.intermediate_size = widths.front();
      return absl::OkStatus();
    }
    QUIRE_ASSIGN_OR_RETURN(config_.intermediate_size,
                           keys().SameInBlocks(kWidth, num_blocks_, kMaxIntermediate, absent));
    if (!ReadsKey(*family_, "intermediate_size_mlp")) return absl::OkStatus();
    config_.intermediate_size_mlp = config_.intermediate_size;
    QUIRE_ASSIGN_OR_RETURN(config_.intermediate_size,
                           keys().SameInBlocks("expert_feed_forward_length", num_blocks_,
                                               kMaxIntermediate, config_.intermediate_size));
    return absl::OkStatus();
  }

  absl::Status ReadHeads() {
    constexpr absl::string_view kHeads = "attention.head_count";
    if (!keys().Has(kHeads)) return keys().Error(kHeads, "is missing");
    QUIRE_ASSIGN_OR_RETURN(config_.num_attention_heads,
                           keys().SameInBlocks(kHeads, num_blocks_, kMaxHeads, 0));
    const std::uint32_t heads = config_.num_attention_heads;
    const std::string kv_key = Key("attention.head_count_kv");
    config_.num_key_value_heads = heads;
    // In some families the number differs by layer (ReadGgufPerLayer).
    if (!FamilyReads("attention.key_length_swa")) {
      QUIRE_ASSIGN_OR_RETURN(
          config_.num_key_value_heads,
          keys().SameInBlocks("attention.head_count_kv", num_blocks_, kMaxHeads, heads));
    }
    if (heads % config_.num_key_value_heads != 0) {
      return gguf_.Error(kv_key,
                         absl::StrCat("is ", config_.num_key_value_heads, ", it must divide ",
                                      Key("attention.head_count"), " ", heads));
    }
    const std::string size_key = Key("attention.key_length");
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> head_size,
                           gguf_.OptionalInteger(size_key, 1, kMaxHeadDim));
    if (!head_size && config_.hidden_size % heads != 0) {
      return gguf_.Error(Key("attention.head_count"),
                         absl::StrCat("is ", heads, ", without ", size_key, " it must divide ",
                                      Key("embedding_length"), " ", config_.hidden_size));
    }
    config_.head_dim = static_cast<std::uint32_t>(head_size.value_or(config_.hidden_size / heads));
    if (config_.head_dim % 2 != 0 || config_.head_dim > kMaxHeadDim) {
      return gguf_.Error(head_size ? size_key : Key("attention.head_count"),
                         absl::StrCat("gives head size ", config_.head_dim,
                                      ", it must be even and at most ", kMaxHeadDim));
    }
    // MLA has other head sizes (ReadGgufMla).
    if (FamilyReads("attention.kv_lora_rank")) return absl::OkStatus();
    return CheckHeadSize("attention.value_length", config_.head_dim);
  }

  // Checks a key that must equal the head size in supported models.
  absl::Status CheckHeadSize(absl::string_view suffix, std::uint32_t head_size) const {
    const std::string key = Key(suffix);
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> size,
                           gguf_.OptionalInteger(key, 1, kMaxHeadDim));
    if (!size || *size == head_size) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(gguf_.label(), ": ", key, " ", *size,
                                                 " is not supported by ", family_->name,
                                                 " (supported: the head size ", head_size, ")"));
  }

  absl::Status ReadVocab() {
    const formats::GgufTensor* embedding = gguf_.FindTensor(kEmbedding);
    if (embedding == nullptr) return gguf_.Error(absl::StrCat("tensor ", kEmbedding), "is missing");
    if (embedding->extents.front() != config_.hidden_size) {
      return gguf_.Error(absl::StrCat("tensor ", kEmbedding),
                         absl::StrCat("has rows of ", embedding->extents.front(), " elements, ",
                                      Key("embedding_length"), " is ", config_.hidden_size));
    }
    const std::int64_t rows = embedding->extents.size() == 2 ? embedding->extents[1] : 0;
    if (rows < 1 || rows > kMaxVocab) {
      return gguf_.Error(absl::StrCat("tensor ", kEmbedding),
                         absl::StrCat("has ", rows, " rows, it must have 1 to ", kMaxVocab));
    }
    const std::string key = Key("vocab_size");
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> size,
                           gguf_.OptionalInteger(key, 1, kMaxVocab));
    if (size && *size != rows) {
      return gguf_.Error(key, absl::StrCat("is ", *size, ", ", kEmbedding, " has ", rows, " rows"));
    }
    config_.vocab_size = static_cast<std::uint32_t>(rows);
    if (!gguf_.Has(kTokens) || gguf_.TypeOf(kTokens) != formats::GgufType::kArray) {
      return absl::OkStatus();  // the tokenizer reports the error
    }
    const std::uint64_t tokens = gguf_.ArrayCount(kTokens);
    if (tokens == config_.vocab_size) return absl::OkStatus();
    return gguf_.Error(
        kTokens, absl::StrCat("has ", tokens, " elements, ", kEmbedding, " has ", rows, " rows"));
  }

  absl::Status ReadEpsilon() {
    const std::string key =
        Key(ReadsKey(*family_, "layer_norm_epsilon") ? "attention.layer_norm_epsilon"
                                                     : "attention.layer_norm_rms_epsilon");
    QUIRE_ASSIGN_OR_RETURN(const double epsilon, gguf_.Number(key));
    if (!(epsilon > 0 && epsilon < 1)) {
      return gguf_.Error(key, absl::StrCat("is ", epsilon, ", it must be above 0 and below 1"));
    }
    config_.rms_norm_eps = static_cast<float>(epsilon);
    return absl::OkStatus();
  }

  // Reads rope.dimension_count, the rotated columns, in families with partial rope.
  absl::Status ReadRotarySize() {
    config_.rotary_size = config_.head_dim;
    constexpr absl::string_view kSuffix = "rope.dimension_count";
    if (FamilyReads("rope.scaling.finetuned")) {
      QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> has_rope,
                             gguf_.OptionalBool(Key("rope.scaling.finetuned")));
      config_.has_rope = has_rope.value_or(true);
      if (!config_.has_rope) return absl::OkStatus();
    }
    const std::uint32_t global = config_.per_layer.global_head_dim;
    if (global != 0) {
      QUIRE_RETURN_IF_ERROR(CheckHeadSize("attention.value_length_swa", config_.head_dim));
      QUIRE_RETURN_IF_ERROR(CheckHeadSize("rope.dimension_count_swa", config_.head_dim));
      return CheckHeadSize(kSuffix, global);
    }
    const bool is_partial =
        ReadsKey(*family_, "partial_rotary_factor") || ReadsKey(*family_, "rotary_dim");
    if (!is_partial) return CheckHeadSize(kSuffix, config_.head_dim);
    const std::string key = Key(kSuffix);
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> size,
                           gguf_.OptionalInteger(key, 2, config_.head_dim));
    if (!size) return absl::OkStatus();
    if (*size % 2 != 0) return gguf_.Error(key, absl::StrCat("is ", *size, ", it must be even"));
    config_.rotary_size = static_cast<std::uint32_t>(*size);
    return absl::OkStatus();
  }

  absl::Status ReadRope() {
    QUIRE_RETURN_IF_ERROR(ReadRotarySize());
    RopeConfig& rope = config_.rope;
    const std::string base_key = Key("rope.freq_base");
    QUIRE_ASSIGN_OR_RETURN(const std::optional<double> base, gguf_.OptionalNumber(base_key));
    rope.theta = base.value_or(family_->defaults.rope_theta);
    if (rope.theta <= 1 || rope.theta > 1e12) {
      return gguf_.Error(base_key,
                         absl::StrCat("is ", rope.theta, ", it must be above 1 and at most 1e12"));
    }
    if (FamilyReads("rope.freq_base_swa")) {
      RopeConfig& local = config_.local_rope.emplace();
      QUIRE_ASSIGN_OR_RETURN(
          local.theta,
          keys().Positive("rope.freq_base_swa", family_->scales_full_layers_only
                                                    ? rope.theta
                                                    : family_->defaults.rope_local_base_freq));
    }
    if (config_.per_layer.global_head_dim != 0) return ReadProportional(&rope);
    if (gguf_.FindTensor(formats::kLongRopeFactors) != nullptr ||
        gguf_.FindTensor(formats::kShortRopeFactors) != nullptr) {
      return ReadLongrope(&rope);
    }
    QUIRE_ASSIGN_OR_RETURN(const double attention_factor,
                           keys().Positive("rope.scaling.attn_factor", 1));
    if (attention_factor != 1) {
      return absl::UnimplementedError(
          absl::StrCat(gguf_.label(), ": ", Key("rope.scaling.attn_factor"), " ", attention_factor,
                       " without tensor ", formats::kLongRopeFactors, " is not supported"));
    }
    QUIRE_RETURN_IF_ERROR(ReadRopeScaling(&rope));
    QUIRE_ASSIGN_OR_RETURN(rope.factors, FactorsOf(formats::kRopeFactors, config_.rotary_size));
    if (rope.factors.empty()) return absl::OkStatus();
    if (rope.kind == RopeKind::kDefault) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(gguf_.label(), ": ", Key("rope.scaling.type"), " \"", RopeKindName(rope.kind),
                     "\" together with tensor rope_freqs.weight is not supported"));
  }

  // Reads a tensor with one factor per pair of rotated columns; empty if there is no such tensor.
  absl::StatusOr<std::vector<float>> FactorsOf(absl::string_view name,
                                               std::uint32_t rotary_size) const {
    QUIRE_ASSIGN_OR_RETURN(std::vector<float> factors, formats::ReadRopeFactors(opened_, name));
    if (factors.empty() || factors.size() == rotary_size / 2) return factors;
    return gguf_.Error(
        absl::StrCat("tensor ", name),
        absl::StrCat("has ", factors.size(), " elements, it must have ", rotary_size / 2));
  }

  // Full attention layers rotate only their first pairs, which have factor 1. The factors of all
  // other pairs are huge, so those pairs do not rotate.
  absl::Status ReadProportional(RopeConfig* rope) const {
    constexpr float kHuge = 1e20f;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<float> factors,
                           FactorsOf(formats::kRopeFactors, config_.per_layer.global_head_dim));
    if (factors.empty()) return absl::OkStatus();
    const auto rest =
        std::find_if(factors.begin(), factors.end(), [](float factor) { return factor != 1; });
    const auto wrong =
        std::find_if(rest, factors.end(), [&](float factor) { return factor < kHuge; });
    if (wrong != factors.end()) {
      return absl::UnimplementedError(
          absl::StrCat(gguf_.label(), ": tensor ", formats::kRopeFactors, " has element ",
                       wrong - factors.begin(), " of value ", *wrong, ", but ", family_->name,
                       " supports only the factor 1 for the first pairs and 1e30 for all others"));
    }
    rope->kind = RopeKind::kProportional;
    rope->partial =
        static_cast<double>(rest - factors.begin()) / static_cast<double>(factors.size());
    return absl::OkStatus();
  }

  absl::Status ReadLongrope(RopeConfig* rope) {
    const std::string type_key = Key("rope.scaling.type");
    QUIRE_ASSIGN_OR_RETURN(const std::optional<absl::string_view> type,
                           gguf_.OptionalString(type_key));
    if (type && *type != "longrope" && *type != "none") {
      return absl::UnimplementedError(absl::StrCat(gguf_.label(), ": ", type_key, " \"", *type,
                                                   "\" together with tensor ",
                                                   formats::kLongRopeFactors, " is not supported"));
    }
    rope->kind = RopeKind::kLongrope;
    for (const auto& [name, list] : {std::pair{formats::kLongRopeFactors, &rope->long_factors},
                                     {formats::kShortRopeFactors, &rope->short_factors}}) {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<float> factors,
                             FactorsOf(name, config_.rotary_size));
      if (factors.empty()) return gguf_.Error(absl::StrCat("tensor ", name), "is missing");
      list->assign(factors.begin(), factors.end());
    }
    QUIRE_ASSIGN_OR_RETURN(
        const std::int64_t original,
        gguf_.Integer(Key("rope.scaling.original_context_length"), 2, kMaxPositions));
    rope->original_max_position = static_cast<std::uint32_t>(original);
    rope->factor = static_cast<double>(config_.max_position_embeddings) /
                   static_cast<double>(rope->original_max_position);
    if (!gguf_.Has(Key("rope.scaling.attn_factor"))) return absl::OkStatus();
    QUIRE_ASSIGN_OR_RETURN(rope->attention_factor, keys().Positive("rope.scaling.attn_factor", 1));
    return absl::OkStatus();
  }

  // GGUF files state one window for all windowed layers. WindowedLayers selects these layers.
  absl::Status ReadWindows() {
    if (!FamilyReads("attention.sliding_window")) return absl::OkStatus();
    QUIRE_ASSIGN_OR_RETURN(
        const std::optional<std::int64_t> given,
        gguf_.OptionalInteger(Key("attention.sliding_window"), 0, kMaxPositions));
    auto width = static_cast<std::uint32_t>(given.value_or(family_->defaults.sliding_window));
    if (!given && family_ == &Phi3Family()) {
      const std::optional<std::uint32_t> trained =
          Phi3GgufWindow(config_.max_position_embeddings, config_.num_hidden_layers);
      if (!trained) {
        return gguf_.Error(
            Key("attention.sliding_window"),
            absl::StrCat("is missing and not known for ", Key("context_length"), " ",
                         config_.max_position_embeddings, " with ", Key("block_count"), " ",
                         config_.num_hidden_layers, "; reconvert the model"));
      }
      width = *trained;
    }
    if (width == 0) return absl::OkStatus();
    QUIRE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, WindowedLayers());
    for (std::size_t i = 0; i < config_.num_hidden_layers; ++i) {
      config_.windows.push_back(windowed[i] ? width : 0);
    }
    return absl::OkStatus();
  }

  // Returns which layers have a window. attention.sliding_window_pattern is a flag for each block,
  // or the distance between layers without a window.
  absl::StatusOr<std::vector<bool>> WindowedLayers() const {
    const std::string key = Key("attention.sliding_window_pattern");
    if (gguf_.Has(key) && gguf_.TypeOf(key) == formats::GgufType::kArray) {
      QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> array,
                             gguf_.OptionalBools(key));
      const std::vector<bool> flags = array.value_or(std::vector<bool>());
      if (flags.size() == num_blocks_) return flags;
      return gguf_.Error(key, absl::StrCat("has ", flags.size(), " elements, ", Key("block_count"),
                                           " is ", num_blocks_));
    }
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> pattern,
                           gguf_.OptionalInteger(key, 1, kMaxLayers + 1));
    return WindowedByRule(family_->windows, num_blocks_,
                          pattern.value_or(family_->defaults.sliding_window_pattern));
  }

  // Reads the factors and caps of scores and logits.
  absl::Status ReadScores() {
    const ConfigDefaults& defaults = family_->defaults;
    const struct {
      absl::string_view key;
      double* value;
      double absent;
    } caps[] = {{"attn_logit_softcapping", &config_.attn_logit_softcapping,
                 defaults.attn_logit_softcapping},
                {"final_logit_softcapping", &config_.final_logit_softcapping,
                 defaults.final_logit_softcapping}};
    for (const auto& cap : caps) {
      if (!FamilyReads(cap.key)) continue;
      QUIRE_ASSIGN_OR_RETURN(*cap.value, keys().Positive(cap.key, cap.absent));
    }
    if (FamilyReads("residual_scale")) return ReadMultipliers();
    if (!FamilyReads("attention.scale")) return absl::OkStatus();
    // gguf_wide_block_count identifies the published model whose query_pre_attn_scalar is
    // hidden_size / num_attention_heads instead of the head size.
    const bool scales_by_hidden_size = config_.num_hidden_layers == family_->gguf_wide_block_count;
    const std::uint32_t scalar = scales_by_hidden_size
                                     ? config_.hidden_size / config_.num_attention_heads
                                     : config_.head_dim;
    QUIRE_ASSIGN_OR_RETURN(
        const double scale,
        keys().Positive("attention.scale", 1 / std::sqrt(static_cast<double>(scalar))));
    config_.query_pre_attn_scalar = 1 / (scale * scale);
    return absl::OkStatus();
  }

  absl::Status ReadMultipliers() {
    const struct {
      absl::string_view key;
      double* value;
      double absent;
    } factors[] = {{"attention.scale", &config_.attention_multiplier,
                    1 / std::sqrt(static_cast<double>(config_.head_dim))},
                   {"embedding_scale", &config_.embedding_multiplier, 1},
                   {"residual_scale", &config_.residual_multiplier, 1},
                   {"logit_scale", &config_.logits_scaling, 1}};
    for (const auto& factor : factors) {
      QUIRE_ASSIGN_OR_RETURN(*factor.value, keys().Positive(factor.key, factor.absent));
    }
    return absl::OkStatus();
  }

  absl::Status ReadRopeScaling(RopeConfig* rope) {
    const std::string key = Key("rope.scaling.type");
    QUIRE_ASSIGN_OR_RETURN(const std::optional<absl::string_view> type, gguf_.OptionalString(key));
    // Older files have the factor without the type, in one of two keys.
    QUIRE_ASSIGN_OR_RETURN(const double old_factor, keys().Positive("rope.scale_linear", 1));
    QUIRE_ASSIGN_OR_RETURN(const double factor, keys().Positive("rope.scaling.factor", old_factor));
    const absl::string_view kind = type.value_or(factor == 1 ? "none" : "linear");
    if (kind == "none") return absl::OkStatus();
    if (kind != "linear" && kind != "yarn") {
      return absl::UnimplementedError(absl::StrCat(gguf_.label(), ": ", key, " \"", kind,
                                                   "\" is not supported by ", family_->name,
                                                   " (supported: none, linear, yarn)"));
    }
    rope->kind = kind == "linear" ? RopeKind::kLinear : RopeKind::kYarn;
    rope->factor = factor;
    if (rope->kind == RopeKind::kLinear) return absl::OkStatus();
    QUIRE_ASSIGN_OR_RETURN(rope->original_max_position,
                           keys().CountOr("rope.scaling.original_context_length", kMaxPositions,
                                          config_.max_position_embeddings));
    // GGUF files have no key for truncate.
    if (family_->default_rope != nullptr) rope->truncate = family_->default_rope->truncate;
    QUIRE_ASSIGN_OR_RETURN(rope->beta_fast, keys().Positive("rope.scaling.yarn_beta_fast", 32));
    QUIRE_ASSIGN_OR_RETURN(rope->beta_slow, keys().Positive("rope.scaling.yarn_beta_slow", 1));
    QUIRE_RETURN_IF_ERROR(ReadYarnFactors(rope));
    if (rope->beta_fast < rope->beta_slow) {
      return gguf_.Error(Key("rope.scaling.yarn_beta_fast"),
                         absl::StrCat("is ", rope->beta_fast, ", it must be at least ",
                                      Key("rope.scaling.yarn_beta_slow"), " ", rope->beta_slow));
    }
    return absl::OkStatus();
  }

  // Reads the YaRN attention factor, or the multiplier from which mscale is computed.
  absl::Status ReadYarnFactors(RopeConfig* rope) const {
    constexpr absl::string_view kFactor = "rope.scaling.yarn_attn_factor";
    if (FamilyReads(kFactor) && keys().Has(kFactor)) {
      QUIRE_ASSIGN_OR_RETURN(rope->attention_factor, keys().Positive(kFactor, 1));
    }
    constexpr absl::string_view kLogMultiplier = "rope.scaling.yarn_log_multiplier";
    if (!FamilyReads(kLogMultiplier) || !keys().Has(kLogMultiplier)) return absl::OkStatus();
    // The key is 0.1 * mscale_all_dim, rounded to f32. mscale has no key. In published models it
    // equals mscale_all_dim.
    QUIRE_ASSIGN_OR_RETURN(const double multiplier, keys().Positive(kLogMultiplier, 0));
    rope->mscale_all_dim = static_cast<float>(multiplier / 0.1);
    rope->mscale = rope->mscale_all_dim;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<std::int32_t>> Id(absl::string_view name) const {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> id,
                           gguf_.OptionalInteger(absl::StrCat("tokenizer.ggml.", name), 0,
                                                 std::int64_t{config_.vocab_size} - 1));
    if (!id) return std::nullopt;
    return static_cast<std::int32_t>(*id);
  }

  absl::Status ReadIds() {
    QUIRE_ASSIGN_OR_RETURN(config_.bos_id, Id("bos_token_id"));
    QUIRE_ASSIGN_OR_RETURN(config_.pad_id, Id("padding_token_id"));
    // Generation ends at the end of the text, of a turn or of a message.
    for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int32_t> id, Id(name));
      std::vector<std::int32_t>& ids = config_.eos_ids;
      if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
    }
    return absl::OkStatus();
  }

  // Sets the fields that follow from the presence and the types of tensors.
  void ReadPresence() {
    const TensorNames& names = family_->gguf_names;
    const auto has = [&](absl::string_view part, absl::string_view ending) {
      for (std::size_t i = 0; i < config_.num_hidden_layers; ++i) {
        if (keys().LayerTensor(i, absl::StrCat(part, ending)) != nullptr) return true;
      }
      return false;
    };
    const auto has_bias = [&](absl::string_view part) { return has(part, ".bias"); };
    config_.attention_bias =
        has_bias(names.q) || has_bias(names.k) || has_bias(names.v) || has_bias(names.o);
    config_.mlp_bias = has_bias(names.gate) || has_bias(names.up) || has_bias(names.down);
    if (family_->may_omit_qk_norm && !names.q_norm.empty()) {
      config_.use_qk_norm = has(names.q_norm, ".weight");
    }
    config_.tie_word_embeddings = gguf_.FindTensor(absl::StrCat(names.head, ".weight")) == nullptr;
    const std::uint32_t type = gguf_.FindTensor(kEmbedding)->type;
    if (type == static_cast<std::uint32_t>(formats::GgmlType::kF32)) config_.dtype = DType::kF32;
    if (type == static_cast<std::uint32_t>(formats::GgmlType::kF16)) config_.dtype = DType::kF16;
  }

  const formats::OpenedGguf& opened_;
  const formats::GgufFile& gguf_;
  const Family* family_ = nullptr;
  std::optional<GgufKeys> keys_;  // set with family_
  std::uint32_t num_blocks_ = 0;  // including blocks for multi-token prediction
  ModelConfig config_;
};

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const formats::ModelFiles& files) {
  QUIRE_ASSIGN_OR_RETURN(const formats::OpenedGguf opened, formats::OpenGguf(files));
  return GgufConfigReader(opened).Read();
}

}  // namespace quire::models
