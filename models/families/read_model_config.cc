#include "models/families/read_model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/model_files.h"
#include "models/config/config_keys.h"
#include "models/config/config_reader.h"
#include "models/config/hybrid_config.h"
#include "models/config/quantization_config.h"
#include "models/config/rope_config.h"
#include "models/config/window_config.h"
#include "models/families/gguf_config.h"
#include "models/families/registry.h"

namespace quire::models {
namespace {

absl::StatusOr<formats::JsonDocument> ParseObject(const formats::ModelFile& file,
                                                  absl::string_view text) {
  absl::StatusOr<formats::JsonDocument> document = formats::JsonDocument::Parse(text);
  if (!document.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.label(), ": ", document.status().message()));
  }
  if (!document->root().is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file.label(), ": not a JSON object"));
  }
  return document;
}

absl::Status NoConfigError(const formats::ModelFiles& files) {
  const auto gguf =
      std::find_if(files.names().begin(), files.names().end(),
                   [](const std::string& name) { return absl::EndsWithIgnoreCase(name, ".gguf"); });
  if (gguf != files.names().end()) {
    return absl::NotFoundError(
        absl::StrCat(files.LabelOf("config.json"),
                     ": no such file; the directory contains a GGUF file; set the model path to ",
                     files.LabelOf(*gguf)));
  }
  absl::string_view hint = "";
  if (files.Has("snapshots")) {
    hint = "; the directory is a download cache; set the model path to a directory in snapshots";
  } else if (files.Has("params.json")) {
    hint = "; the layout with params.json is not supported, use the Hugging Face layout";
  }
  return absl::NotFoundError(absl::StrCat(files.LabelOf("config.json"), ": no such file", hint));
}

// Finds the family of an architecture. "...Model" and "...ForSequenceClassification" belong to the
// family of "...ForCausalLM".
const Family* FamilyOf(const std::string& architecture, ModelOutput* output) {
  if (const Family* family = FindFamilyByArchitecture(architecture)) return family;
  constexpr std::pair<absl::string_view, ModelOutput> kOthers[] = {
      {"ForSequenceClassification", ModelOutput::kLabels}, {"Model", ModelOutput::kHidden}};
  for (const auto& [suffix, other] : kOthers) {
    absl::string_view stem = architecture;
    if (!absl::ConsumeSuffix(&stem, suffix)) continue;
    *output = other;
    return FindFamilyByArchitecture(absl::StrCat(stem, "ForCausalLM"));
  }
  return nullptr;
}

// Reads the labels of a classifier: the names in id2label, or else LABEL_0, LABEL_1 and so on for
// num_labels, whose default is 2, as in transformers.
absl::Status ReadLabels(const ConfigReader& reader, ModelConfig* config) {
  constexpr std::int64_t kMaxLabels = 1 << 16;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> count,
                         reader.OptionalInteger("num_labels", 1, kMaxLabels));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> names,
                         reader.OptionalObject("id2label"));
  const std::int64_t named = names ? static_cast<std::int64_t>(names->Keys().size()) : 0;
  if (count && named > 0 && *count != named) {
    return reader.Error("num_labels",
                        absl::StrCat("is ", *count, ", id2label has ", named, " entries"));
  }
  const std::int64_t labels = named > 0 ? named : count.value_or(2);
  if (labels > kMaxLabels) {
    return reader.Error("id2label",
                        absl::StrCat("has ", labels, " entries, the limit is ", kMaxLabels));
  }
  for (std::int64_t i = 0; i < labels; ++i) {
    std::string label = absl::StrCat("LABEL_", i);
    if (named > 0) {
      QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                             names->OptionalString(absl::StrCat(i)));
      if (!name) return names->Error(absl::StrCat(i), "is missing");
      label = *name;
    }
    config->labels.push_back(std::move(label));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Family*> SelectFamily(const ConfigReader& reader, ModelConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> architectures,
                         reader.OptionalStrings("architectures"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> model_type,
                         reader.OptionalString("model_type"));
  const Family* family = nullptr;
  if (architectures && !architectures->empty()) {
    family = FamilyOf(architectures->front(), &config->output);
    if (family == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(reader.label(), ": architectures \"", architectures->front(), "\"",
                       model_type ? absl::StrCat(" with model_type \"", *model_type, "\"") : "",
                       " is not supported (supported: ", SupportedArchitectures(),
                       "; also *Model, *ForSequenceClassification)"));
    }
    config->architecture = architectures->front();
  }
  if (model_type) {
    const Family* by_type = FindFamilyByModelType(*model_type);
    if (by_type == nullptr || (family != nullptr && by_type != family)) {
      return absl::UnimplementedError(absl::StrCat(
          reader.label(), ": model_type \"", *model_type, "\" is not supported",
          family == nullptr ? ""
                            : absl::StrCat(" with architectures \"", config->architecture, "\""),
          " (supported: ", SupportedModelTypes(), ")"));
    }
    family = by_type;
    config->model_type = *model_type;
  }
  if (family == nullptr) {
    return reader.Error("architectures", "and model_type are missing");
  }
  config->family = std::string(family->name);
  if (config->architecture.empty()) config->architecture = std::string(family->architectures[0]);
  if (config->model_type.empty()) config->model_type = std::string(family->model_types[0]);
  return family;
}

// Reads a count. Returns `if_null` for a null key. For an absent key returns `if_absent`, or
// `if_null` if `if_absent` is 0.
absl::StatusOr<std::uint32_t> CountOr(const ConfigReader& reader, absl::string_view key,
                                      std::uint32_t high, std::uint32_t if_absent,
                                      std::uint32_t if_null) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> count,
                         reader.OptionalInteger(key, 1, high));
  if (count) return static_cast<std::uint32_t>(*count);
  return reader.IsNull(key) || if_absent == 0 ? if_null : if_absent;
}

// Reads a count that is required unless the family has a default.
absl::StatusOr<std::uint32_t> RequiredCount(const ConfigReader& reader, absl::string_view key,
                                            std::uint32_t high, std::uint32_t if_absent) {
  return reader.Has(key) || if_absent == 0 ? reader.Count(key, 1, high) : if_absent;
}

absl::Status ReadHeads(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(
      config->num_attention_heads,
      RequiredCount(reader, "num_attention_heads", kMaxHeads, family.defaults.num_attention_heads));
  const std::uint32_t heads = config->num_attention_heads;
  if (ReadsKey(family, "kv_lora_rank")) {
    // MLA has its own head sizes, so head_dim and num_key_value_heads are not read.
    QUIRE_ASSIGN_OR_RETURN(config->mla, ReadMla(reader));
    config->num_key_value_heads = heads;
    config->head_dim = config->mla.qk_rope_head_dim;
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(config->num_key_value_heads,
                         CountOr(reader, "num_key_value_heads", kMaxHeads,
                                 family.defaults.num_key_value_heads, heads));
  if (heads % config->num_key_value_heads != 0) {
    return reader.Error("num_key_value_heads",
                        absl::StrCat("is ", config->num_key_value_heads,
                                     ", it must divide num_attention_heads ", heads));
  }
  QUIRE_ASSIGN_OR_RETURN(config->head_dim, CountOr(reader, "head_dim", kMaxHeadDim,
                                                   family.defaults.head_dim, /*if_null=*/0));
  if (config->head_dim == 0 && config->hidden_size % heads != 0) {
    return reader.Error("num_attention_heads",
                        absl::StrCat("is ", heads, ", without head_dim it must divide hidden_size ",
                                     config->hidden_size));
  }
  if (config->head_dim == 0) config->head_dim = config->hidden_size / heads;
  if (config->head_dim % 2 != 0 || config->head_dim > kMaxHeadDim) {
    return reader.Error("head_dim", absl::StrCat("is ", config->head_dim,
                                                 ", it must be even and at most ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(config->vocab_size, RequiredCount(reader, "vocab_size", kMaxVocab,
                                                           family.defaults.vocab_size));
  QUIRE_ASSIGN_OR_RETURN(config->hidden_size, reader.Count("hidden_size", 1, kMaxHidden));
  QUIRE_ASSIGN_OR_RETURN(config->intermediate_size,
                         ReadsKey(family, "block_ff_dim")
                             ? ReadAdjustedWidth(reader)
                             : RequiredCount(reader, "intermediate_size", kMaxIntermediate,
                                             family.defaults.intermediate_size));
  if (ReadsKey(family, "intermediate_size_mlp")) {
    QUIRE_ASSIGN_OR_RETURN(config->intermediate_size_mlp,
                           reader.CountOr("intermediate_size_mlp", 1, kMaxIntermediate,
                                          family.defaults.intermediate_size_mlp));
  }
  QUIRE_ASSIGN_OR_RETURN(config->num_hidden_layers,
                         reader.Count("num_hidden_layers", 1, kMaxLayers));
  QUIRE_RETURN_IF_ERROR(ReadHeads(reader, family, config));
  const absl::string_view length =
      ReadsKey(family, "model_max_length") ? "model_max_length" : "max_position_embeddings";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> positions,
                         reader.OptionalInteger(length, 1, kMaxPositions));
  if (!positions) {
    config->warnings.push_back(absl::StrCat("config.json has no ", length, "; using ",
                                            family.defaults.max_position_embeddings,
                                            ", the default of ", family.name));
  }
  config->max_position_embeddings =
      static_cast<std::uint32_t>(positions.value_or(family.defaults.max_position_embeddings));
  return absl::OkStatus();
}

// hidden_act and hidden_activation are synonyms, except in families that read only
// hidden_activation or mlp_hidden_act. Files of such families have arbitrary values of hidden_act.
absl::Status ReadActivation(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  for (const absl::string_view key : {"hidden_activation", "mlp_hidden_act"}) {
    if (!ReadsKey(family, key)) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> only, reader.OptionalString(key));
    config->hidden_act = only ? *only : std::string(family.defaults.hidden_act);
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> act, reader.OptionalString("hidden_act"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> alias,
                         reader.OptionalString("hidden_activation"));
  if (act && alias && *act != *alias) {
    return reader.Error(
        "hidden_act", absl::StrCat("is \"", *act, "\", but hidden_activation is \"", *alias, "\""));
  }
  config->hidden_act = act ? *act : alias ? *alias : std::string(family.defaults.hidden_act);
  return absl::OkStatus();
}

absl::Status ReadFlags(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  const struct {
    absl::string_view key;
    bool* value;
    bool absent;
  } flags[] = {
      {"attention_bias", &config->attention_bias, family.defaults.attention_bias},
      {"mlp_bias", &config->mlp_bias, false},
      {"tie_word_embeddings", &config->tie_word_embeddings, family.defaults.tie_word_embeddings}};
  for (const auto& flag : flags) {
    QUIRE_ASSIGN_OR_RETURN(*flag.value, reader.BoolOr(flag.key, flag.absent));
  }
  if (ReadsKey(family, "use_qk_norm")) {
    QUIRE_ASSIGN_OR_RETURN(config->use_qk_norm,
                           reader.BoolOr("use_qk_norm", family.defaults.use_qk_norm));
  }
  if (ReadsKey(family, "tie_embedding")) {
    QUIRE_ASSIGN_OR_RETURN(config->tie_word_embeddings,
                           reader.BoolOr("tie_embedding", config->tie_word_embeddings));
  }
  absl::string_view key = "rms_norm_eps";
  for (const absl::string_view other : {"norm_eps", "layer_norm_epsilon"}) {
    if (ReadsKey(family, other)) key = other;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> eps, reader.OptionalNumber(key));
  config->rms_norm_eps = static_cast<float>(eps.value_or(family.defaults.rms_norm_eps));
  if (!(config->rms_norm_eps > 0 && config->rms_norm_eps < 1)) {
    return reader.Error(key, absl::StrCat("is ", *eps, ", it must be above 0 and below 1"));
  }
  return absl::OkStatus();
}

// A number that some families read, and its default.
struct NumberKey {
  absl::string_view key;
  double* value;
  double absent;
  bool null_is_off;  // null means 0; otherwise null is refused
};

// All these numbers are factors, divisors or limits. The range ensures that they and their inverses
// are representable as float.
absl::Status ReadNumbers(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  constexpr double kMin = 1e-6;
  constexpr double kMax = 1e6;
  const ConfigDefaults& defaults = family.defaults;
  const NumberKey numbers[] = {{"query_pre_attn_scalar", &config->query_pre_attn_scalar,
                                defaults.query_pre_attn_scalar, false},
                               {"attn_logit_softcapping", &config->attn_logit_softcapping,
                                defaults.attn_logit_softcapping, true},
                               {"final_logit_softcapping", &config->final_logit_softcapping,
                                defaults.final_logit_softcapping, true},
                               {"attention_multiplier", &config->attention_multiplier, 1, false},
                               {"embedding_multiplier", &config->embedding_multiplier, 1, false},
                               {"residual_multiplier", &config->residual_multiplier, 1, false},
                               {"logits_scaling", &config->logits_scaling, 1, false}};
  for (const NumberKey& number : numbers) {
    if (!ReadsKey(family, number.key)) continue;
    *number.value = number.absent;
    if (!reader.Has(number.key)) continue;
    if (reader.IsNull(number.key) && number.null_is_off) {
      *number.value = 0;
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(*number.value, reader.Number(number.key));
    if (*number.value >= kMin && *number.value <= kMax) continue;
    return reader.Error(number.key,
                        absl::StrCat("is ", *number.value, ", it must be ", kMin, " to ", kMax,
                                     number.null_is_off ? ", or null" : ""));
  }
  return absl::OkStatus();
}

// no_rope_layers has a 1 for each layer with rope. Without the key every no_rope_layer_interval-th
// layer has no rope.
absl::Status ReadRopeLayers(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  if (!ReadsKey(family, "no_rope_layers")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> flags,
                         reader.OptionalIds("no_rope_layers"));
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t interval,
                         reader.CountOr("no_rope_layer_interval", 1, kMaxLayers + 1, 4));
  // In published files an empty list means the same as an absent list.
  const bool has_flags = flags && !flags->empty();
  for (std::uint32_t i = 0; i < config->num_hidden_layers && !has_flags; ++i) {
    config->rope_layers.push_back((i + 1) % interval != 0);
  }
  if (!has_flags) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(
      reader.CheckLength("no_rope_layers", flags->size(), config->num_hidden_layers));
  for (const std::int32_t flag : *flags) {
    if (flag != 0 && flag != 1) {
      return reader.Error("no_rope_layers",
                          absl::StrCat("has the entry ", flag, ", each must be 0 or 1"));
    }
    config->rope_layers.push_back(flag == 1);
  }
  return absl::OkStatus();
}

absl::Status ReadDType(const ConfigReader& reader, ModelConfig* config) {
  constexpr std::pair<absl::string_view, DType> kDTypes[] = {
      {"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
  for (const char* key : {"dtype", "torch_dtype"}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> name, reader.OptionalString(key));
    if (!name) continue;
    for (const auto& [dtype_name, dtype] : kDTypes) {
      if (*name != dtype_name) continue;
      config->dtype = dtype;
      return absl::OkStatus();
    }
    return reader.Unsupported(key, "(supported: float32, float16, bfloat16)");
  }
  return absl::OkStatus();
}

absl::Status ReadIds(const ConfigReader& reader, ModelConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> eos,
                         reader.OptionalIds("eos_token_id"));
  if (eos) config->eos_ids = *eos;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> bos,
                         reader.OptionalIds("bos_token_id"));
  if (bos && bos->size() == 1) config->bos_id = bos->front();
  // Early files have -1 for "no padding".
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> pad,
                         reader.OptionalInteger("pad_token_id", -1, (std::int64_t{1} << 31) - 1));
  if (pad)
    config->pad_id = *pad < 0 ? std::nullopt : std::optional(static_cast<std::int32_t>(*pad));
  return absl::OkStatus();
}

// Reads a sampling default in [low, high], or in (low, high] if `excludes_low` is true.
absl::Status ReadSampling(const ConfigReader& reader, absl::string_view key, double low,
                          double high, bool excludes_low, std::optional<float>* result) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> value, reader.OptionalNumber(key));
  if (!value) return absl::OkStatus();
  if (*value < low || *value > high || (excludes_low && *value == low)) {
    return reader.Error(key, absl::StrCat("is ", *value, ", it must be in ",
                                          excludes_low ? "(" : "[", low, ", ", high, "]"));
  }
  *result = static_cast<float>(*value);
  return absl::OkStatus();
}

absl::Status ReadGeneration(const formats::ModelFiles& files, ModelConfig* config) {
  constexpr absl::string_view kName = "generation_config.json";
  if (!files.Has(kName)) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile file, files.Open(kName));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document, ParseObject(file, file.text()));
  const ConfigReader reader(file.label(), document.root());
  QUIRE_RETURN_IF_ERROR(ReadIds(reader, config));
  GenerationDefaults& defaults = config->generation;
  QUIRE_ASSIGN_OR_RETURN(defaults.do_sample, reader.OptionalBool("do_sample"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> top_k,
                         reader.OptionalInteger("top_k", 0, kMaxVocab));
  if (top_k) defaults.top_k = static_cast<std::int32_t>(*top_k);
  QUIRE_RETURN_IF_ERROR(ReadSampling(reader, "temperature", 0, 100, false, &defaults.temperature));
  QUIRE_RETURN_IF_ERROR(ReadSampling(reader, "top_p", 0, 1, true, &defaults.top_p));
  QUIRE_RETURN_IF_ERROR(ReadSampling(reader, "min_p", 0, 1, false, &defaults.min_p));
  return ReadSampling(reader, "repetition_penalty", 0, 100, true, &defaults.repetition_penalty);
}

// Reads the keys that scale queries by their position. In the first published files
// attn_temperature_tuning is the number 4 instead of true.
absl::Status ReadTemperature(const ConfigReader& reader, const Family& family,
                             ModelConfig* config) {
  constexpr absl::string_view kKey = "attn_temperature_tuning";
  if (!ReadsKey(family, kKey)) return absl::OkStatus();
  const absl::StatusOr<std::uint32_t> number = reader.CountOr(kKey, 0, kMaxPositions, 1);
  if (number.ok()) {
    config->attn_temperature_tuning = *number != 0;
  } else {
    QUIRE_ASSIGN_OR_RETURN(config->attn_temperature_tuning, reader.BoolOr(kKey, true));
  }
  QUIRE_ASSIGN_OR_RETURN(config->floor_scale, reader.CountOr("floor_scale", 1, kMaxPositions,
                                                             family.defaults.floor_scale));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> scale, reader.OptionalNumber("attn_scale"));
  config->attn_scale = scale.value_or(family.defaults.attn_scale);
  if (config->attn_scale >= 0 && config->attn_scale <= 1e6) return absl::OkStatus();
  return reader.Error("attn_scale",
                      absl::StrCat("is ", config->attn_scale, ", it must be 0 to 1e6"));
}

absl::Status ReadRope(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(RopeSettings settings,
                         ReadRopeConfig(reader,
                                        {.family = family,
                                         .max_position = config->max_position_embeddings,
                                         .head_dim = config->head_dim},
                                        &config->warnings));
  config->rope = std::move(settings.rope);
  config->local_rope = std::move(settings.local);
  config->rotary_size = settings.rotary_size;
  QUIRE_RETURN_IF_ERROR(ReadRopeLayers(reader, family, config));
  QUIRE_ASSIGN_OR_RETURN(
      config->windows, ReadWindows(reader, family, config->num_hidden_layers, config->rope_layers));
  if (family.has_full_last_layer && !config->windows.empty() && config->windows.back() != 0) {
    config->windows.back() = 0;
    config->warnings.push_back(
        absl::StrCat("the window of the last layer is ignored: ", family.name,
                     " computes this layer with full attention, as transformers does"));
  }
  QUIRE_ASSIGN_OR_RETURN(
      config->chunks, ReadChunks(reader, family, config->num_hidden_layers, config->rope_layers));
  return ReadTemperature(reader, family, config);
}

// Reads the keys of families with layers of different kinds.
absl::Status ReadHybridKeys(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(
      config->hybrid, ReadHybrid(reader, family, config->num_hidden_layers, config->hidden_size));
  if (ReadsKey(family, "position_embedding_type")) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                           reader.OptionalString("position_embedding_type"));
    config->has_rope = type == "rope";
  }
  if (ReadsKey(family, "mla_use_nope")) {
    QUIRE_ASSIGN_OR_RETURN(const bool no_rope, reader.BoolOr("mla_use_nope", true));
    if (!no_rope) {
      return reader.Unsupported("mla_use_nope", absl::StrCat("by ", family.name));
    }
  }
  if (!ReadsKey(family, "shared_intermediate_size")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(config->shared_intermediate_size,
                         reader.CountOr("shared_intermediate_size", 1, kMaxIntermediate, 1024));
  return absl::OkStatus();
}

void WarnAboutIds(ModelConfig* config) {
  for (const std::int32_t id : config->eos_ids) {
    if (static_cast<std::uint32_t>(id) < config->vocab_size) continue;
    config->warnings.push_back(absl::StrCat(
        "eos_token_id ", id, " can never be generated: vocab_size is ", config->vocab_size));
  }
}

// Returns config.json with the keys of text_config moved to the top level, and without the keys for
// images, video and audio (kOtherInputKeys). Returns nullopt for families without text_config.
absl::StatusOr<std::optional<formats::JsonDocument>> TextConfig(const ConfigReader& top,
                                                                const formats::JsonValue& root,
                                                                const Family& family) {
  if (family.text_model_type.empty()) return std::optional<formats::JsonDocument>();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> inner,
                         top.OptionalObject("text_config"));
  if (!inner) return top.Error("text_config", "is missing");
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                         inner->OptionalString("model_type"));
  if (type && *type != family.text_model_type) {
    return inner->Unsupported(
        "model_type",
        absl::StrCat("by ", family.name, " (supported: ", family.text_model_type, ")"));
  }
  nlohmann::json merged = root.raw();
  merged.erase("text_config");
  for (const absl::string_view key : kOtherInputKeys) merged.erase(std::string(key));
  merged.update(root.raw()["text_config"]);
  absl::StatusOr<formats::JsonDocument> parsed = formats::JsonDocument::Parse(merged.dump());
  if (!parsed.ok()) return top.Error("text_config", parsed.status().message());
  return std::optional<formats::JsonDocument>(*std::move(parsed));
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const formats::ModelFiles& files) {
  if (!files.gguf().empty()) return ReadGgufConfig(files);
  if (!files.Has("config.json")) return NoConfigError(files);
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile file, files.Open("config.json"));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseObject(file, WithQuotedInfinity(file.text())));
  const ConfigReader top(file.label(), document.root());
  ModelConfig config;
  QUIRE_ASSIGN_OR_RETURN(const Family* family, SelectFamily(top, &config));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<formats::JsonDocument> nested,
                         TextConfig(top, document.root(), *family));
  const ConfigReader reader =
      nested ? ConfigReader(absl::StrCat(file.label(), " with text_config"), nested->root()) : top;
  QUIRE_RETURN_IF_ERROR(CheckConfigKeys(reader, *family, &config.warnings));
  QUIRE_ASSIGN_OR_RETURN(config.stored_quantization,
                         ReadStoredQuantization(reader, &config.warnings));
  QUIRE_RETURN_IF_ERROR(ReadSizes(reader, *family, &config));
  QUIRE_RETURN_IF_ERROR(ReadActivation(reader, *family, &config));
  QUIRE_RETURN_IF_ERROR(ReadFlags(reader, *family, &config));
  QUIRE_RETURN_IF_ERROR(ReadDType(reader, &config));
  QUIRE_RETURN_IF_ERROR(ReadNumbers(reader, *family, &config));
  QUIRE_ASSIGN_OR_RETURN(config.per_layer,
                         ReadPerLayerConfig(reader, *family,
                                            {.vocab_size = config.vocab_size,
                                             .num_layers = config.num_hidden_layers,
                                             .num_heads = config.num_attention_heads,
                                             .num_kv_heads = config.num_key_value_heads}));
  QUIRE_RETURN_IF_ERROR(ReadRope(reader, *family, &config));
  QUIRE_RETURN_IF_ERROR(ReadHybridKeys(reader, *family, &config));
  QUIRE_ASSIGN_OR_RETURN(
      config.moe, ReadMoe(reader, *family, config.num_hidden_layers, config.intermediate_size));
  QUIRE_ASSIGN_OR_RETURN(config.index, ReadIndex(reader, *family, config.num_hidden_layers));
  if (config.output == ModelOutput::kLabels) QUIRE_RETURN_IF_ERROR(ReadLabels(reader, &config));
  QUIRE_ASSIGN_OR_RETURN(config.pooling,
                         ReadPoolingConfig(files, config.hidden_size, config.vocab_size));
  QUIRE_RETURN_IF_ERROR(ReadIds(reader, &config));
  QUIRE_RETURN_IF_ERROR(ReadGeneration(files, &config));
  WarnAboutIds(&config);
  return config;
}

}  // namespace quire::models
