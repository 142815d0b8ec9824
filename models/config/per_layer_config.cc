#include "models/config/per_layer_config.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/config_reader.h"
#include "models/config/family.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kDefaultInputSize = 256;
constexpr std::uint32_t kDefaultInputVocab = 262144;

// The value "vision" concerns image tokens only, so text stays causal with it.
absl::Status CheckCausal(const ConfigReader& reader, const Family& family) {
  constexpr absl::string_view kKey = "use_bidirectional_attention";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> value, reader.OptionalString(kKey));
  if (!value || *value == "vision") return absl::OkStatus();
  return reader.Unsupported(kKey, absl::StrCat("by ", family.name, " (supported: null, vision)"));
}

absl::Status ReadGlobalHeads(const ConfigReader& reader, const PerLayerContext& context,
                             PerLayerConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(config->global_head_dim,
                         reader.CountOr("global_head_dim", 2, kMaxHeadDim, kDefaultGlobalHeadDim));
  if (config->global_head_dim % 2 != 0) {
    return reader.Error("global_head_dim",
                        absl::StrCat("is ", config->global_head_dim, ", it must be even"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> heads,
                         reader.OptionalInteger("num_global_key_value_heads", 1, kMaxHeads));
  // As in transformers, the key applies only if attention_k_eq_v is true.
  config->num_global_key_value_heads =
      config->attention_k_eq_v && heads ? static_cast<std::uint32_t>(*heads) : context.num_kv_heads;
  if (context.num_heads % config->num_global_key_value_heads != 0) {
    return reader.Error("num_global_key_value_heads",
                        absl::StrCat("is ", config->num_global_key_value_heads,
                                     ", it must divide num_attention_heads ", context.num_heads));
  }
  return absl::OkStatus();
}

absl::Status ReadInputs(const ConfigReader& reader, const PerLayerContext& context,
                        PerLayerConfig* config) {
  constexpr absl::string_view kSize = "hidden_size_per_layer_input";
  constexpr absl::string_view kVocab = "vocab_size_per_layer_input";
  const std::uint32_t fallback = reader.IsNull(kSize) ? 0 : kDefaultInputSize;
  QUIRE_ASSIGN_OR_RETURN(config->hidden_size_per_layer_input,
                         reader.CountOr(kSize, 0, kMaxHidden / context.num_layers, fallback));
  if (config->hidden_size_per_layer_input == 0) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(config->vocab_size_per_layer_input,
                         reader.CountOr(kVocab, 1, kMaxVocab, kDefaultInputVocab));
  if (config->vocab_size_per_layer_input >= context.vocab_size) return absl::OkStatus();
  return reader.Error(kVocab,
                      absl::StrCat("is ", config->vocab_size_per_layer_input,
                                   ", it must be at least vocab_size ", context.vocab_size));
}

}  // namespace

absl::StatusOr<PerLayerConfig> ReadPerLayerConfig(const ConfigReader& reader, const Family& family,
                                                  const PerLayerContext& context) {
  PerLayerConfig config;
  if (!ReadsKey(family, "global_head_dim")) return config;
  QUIRE_RETURN_IF_ERROR(CheckCausal(reader, family));
  QUIRE_ASSIGN_OR_RETURN(config.attention_k_eq_v, reader.BoolOr("attention_k_eq_v", false));
  QUIRE_ASSIGN_OR_RETURN(config.use_double_wide_mlp, reader.BoolOr("use_double_wide_mlp", false));
  QUIRE_ASSIGN_OR_RETURN(config.num_kv_shared_layers,
                         reader.CountOr("num_kv_shared_layers", 0, context.num_layers - 1, 0));
  QUIRE_RETURN_IF_ERROR(ReadGlobalHeads(reader, context, &config));
  QUIRE_RETURN_IF_ERROR(ReadInputs(reader, context, &config));
  return config;
}

}  // namespace quire::models
