#include "models/config/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/family.h"

namespace quire::models {
namespace {

constexpr RopeKind kKinds[] = {RopeKind::kDefault,     RopeKind::kLinear, RopeKind::kDynamic,
                               RopeKind::kYarn,        RopeKind::kLlama3, RopeKind::kLongrope,
                               RopeKind::kProportional};
constexpr absl::string_view kSupportedKinds = "default, linear, dynamic, yarn, llama3, longrope";
constexpr double kMaxFactor = 1e6;

// Known keys of a rope dictionary. Some publishers add "finetuned", which has no effect.
constexpr absl::string_view kKnownKeys[] = {"type",
                                            "rope_type",
                                            "rope_theta",
                                            "factor",
                                            "low_freq_factor",
                                            "high_freq_factor",
                                            "original_max_position_embeddings",
                                            "beta_fast",
                                            "beta_slow",
                                            "truncate",
                                            "attention_factor",
                                            "mscale",
                                            "mscale_all_dim",
                                            "partial_rotary_factor",
                                            "finetuned"};

absl::Status CheckKeys(const ConfigReader& rope, RopeKind kind, const Family& family,
                       std::vector<std::string>* warnings) {
  for (const std::string& key : rope.Keys()) {
    // transformers does not read the key, so published models were trained or tested without it.
    if (kind == RopeKind::kYarn && key == "attn_factor" && !rope.IsNull(key)) {
      warnings->push_back(absl::StrCat(rope.label(), ": ", rope.PathOf(key), " ",
                                       rope.ValueText(key),
                                       " is ignored; other programs may multiply by it"));
      continue;
    }
    const bool known =
        std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys) ||
        (kind == RopeKind::kLongrope && (key == "short_factor" || key == "long_factor")) ||
        // A text token has the same position in all mrope sections, so these keys have no effect.
        (ReadsKey(family, "mrope_section") && absl::StartsWith(key, "mrope_"));
    if (!known && !rope.IsNull(key)) {
      return rope.Unsupported(key, absl::StrCat("by ", family.name));
    }
  }
  return absl::OkStatus();
}

// True if full layers have their own head size. Such files have rope settings in dictionaries only.
bool HasOwnFullHeads(const Family& family) {
  return ReadsKey(family, "global_head_dim");
}

absl::StatusOr<RopeKind> ReadKind(const ConfigReader& rope, const Family& family) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> name, rope.OptionalString("rope_type"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> old_name, rope.OptionalString("type"));
  if (name && old_name && *name != *old_name) {
    return rope.Error("rope_type", absl::StrCat("is \"", *name, "\", but ", rope.PathOf("type"),
                                                " is \"", *old_name, "\""));
  }
  if (!name && !old_name) {
    const std::vector<std::string> keys = rope.Keys();
    const bool only_theta = std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return key == "rope_theta" || key == "partial_rotary_factor" || rope.IsNull(key);
    });
    if (only_theta) return RopeKind::kDefault;
    return rope.Error("rope_type", "is missing");
  }
  const std::string& given = name ? *name : *old_name;
  if (family.has_old_longrope_names && (given == "su" || given == "yarn")) {
    return RopeKind::kLongrope;
  }
  for (const RopeKind kind : kKinds) {
    if (kind == RopeKind::kProportional && !HasOwnFullHeads(family)) continue;
    if (given == RopeKindName(kind)) return kind;
  }
  return absl::UnimplementedError(
      absl::StrCat(rope.label(), ": ", rope.PathOf("rope_type"), " \"", given,
                   "\" is not supported by ", family.name, " (supported: ", kSupportedKinds,
                   HasOwnFullHeads(family) ? ", proportional" : "", ")"));
}

absl::StatusOr<double> ReadPositive(const ConfigReader& rope, absl::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(const double value, rope.Number(key));
  if (value <= 0 || value > kMaxFactor) {
    return rope.Error(key,
                      absl::StrCat("is ", value, ", it must be above 0 and at most ", kMaxFactor));
  }
  return value;
}

absl::Status ReadOptionalPositive(const ConfigReader& rope, absl::string_view key, double* value) {
  if (!rope.Has(key) || rope.IsNull(key)) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(*value, ReadPositive(rope, key));
  return absl::OkStatus();
}

absl::Status ReadOriginalLength(const ConfigReader& config, const ConfigReader& rope,
                                const RopeContext& context, RopeConfig* result) {
  constexpr absl::string_view kKey = "original_max_position_embeddings";
  for (const ConfigReader* reader : {&config, &rope}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> length,
                           reader->OptionalInteger(kKey, 1, kMaxPositions));
    if (!length) continue;
    result->original_max_position = static_cast<std::uint32_t>(*length);
    return absl::OkStatus();
  }
  result->original_max_position = context.max_position;
  return absl::OkStatus();
}

absl::Status ReadLlama3(const ConfigReader& rope, RopeConfig* result) {
  QUIRE_ASSIGN_OR_RETURN(result->low_freq_factor, ReadPositive(rope, "low_freq_factor"));
  QUIRE_ASSIGN_OR_RETURN(result->high_freq_factor, ReadPositive(rope, "high_freq_factor"));
  if (result->high_freq_factor < result->low_freq_factor) {
    return rope.Error("high_freq_factor",
                      absl::StrCat("is ", result->high_freq_factor, ", it must be at least ",
                                   rope.PathOf("low_freq_factor"), " ", result->low_freq_factor));
  }
  return absl::OkStatus();
}

absl::Status ReadAttentionFactor(const ConfigReader& rope, RopeConfig* result) {
  if (!rope.Has("attention_factor") || rope.IsNull("attention_factor")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(result->attention_factor, ReadPositive(rope, "attention_factor"));
  return absl::OkStatus();
}

absl::Status ReadYarn(const ConfigReader& rope, RopeConfig* result) {
  QUIRE_RETURN_IF_ERROR(ReadOptionalPositive(rope, "beta_fast", &result->beta_fast));
  QUIRE_RETURN_IF_ERROR(ReadOptionalPositive(rope, "beta_slow", &result->beta_slow));
  if (result->beta_fast < result->beta_slow) {
    return rope.Error("beta_fast", absl::StrCat("is ", result->beta_fast, ", it must be at least ",
                                                rope.PathOf("beta_slow"), " ", result->beta_slow));
  }
  QUIRE_ASSIGN_OR_RETURN(result->truncate, rope.BoolOr("truncate", true));
  const std::pair<absl::string_view, std::optional<double>*> factors[] = {
      {"mscale", &result->mscale}, {"mscale_all_dim", &result->mscale_all_dim}};
  for (const auto& [key, value] : factors) {
    QUIRE_ASSIGN_OR_RETURN(*value, rope.OptionalNumber(key));
    if (*value && (**value < 0 || **value > kMaxFactor)) {
      return rope.Error(key, absl::StrCat("is ", **value, ", it must be 0 to ", kMaxFactor));
    }
  }
  return ReadAttentionFactor(rope, result);
}

absl::Status ReadLongrope(const ConfigReader& rope, const RopeContext& context,
                          std::uint32_t rotary_size, RopeConfig* result) {
  const std::pair<absl::string_view, std::vector<double>*> lists[] = {
      {"short_factor", &result->short_factors}, {"long_factor", &result->long_factors}};
  for (const auto& [key, list] : lists) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<double>> factors,
                           rope.OptionalNumbers(key));
    if (!factors) return rope.Error(key, "is missing");
    if (factors->size() != rotary_size / 2) {
      return rope.Error(
          key, absl::StrCat("has ", factors->size(), " entries, it must have ", rotary_size / 2,
                            ", one per pair of the ", rotary_size, " rotated columns; a head has ",
                            context.head_dim, " columns"));
    }
    for (const double factor : *factors) {
      if (factor > 0 && factor <= kMaxFactor) continue;
      return rope.Error(key, absl::StrCat("has the entry ", factor,
                                          ", each must be above 0 and at most ", kMaxFactor));
    }
    *list = *factors;
  }
  if (result->original_max_position < 2) {
    return rope.Error("original_max_position_embeddings",
                      absl::StrCat("is ", result->original_max_position, ", it must be above 1"));
  }
  return ReadAttentionFactor(rope, result);
}

absl::Status ReadProportional(const ConfigReader& rope, RopeConfig* result) {
  QUIRE_RETURN_IF_ERROR(ReadOptionalPositive(rope, "factor", &result->factor));
  QUIRE_RETURN_IF_ERROR(ReadOptionalPositive(rope, "partial_rotary_factor", &result->partial));
  if (result->partial <= 1) return absl::OkStatus();
  return rope.Error("partial_rotary_factor",
                    absl::StrCat("is ", result->partial, ", it must be at most 1"));
}

// The top-level key of theta, which is read if the dictionary has no rope_theta. `absent` is theta
// if there is no such key.
struct ThetaSource {
  absl::string_view key;
  double absent;
};

absl::Status ReadTheta(const ConfigReader& config, const ConfigReader* rope,
                       const ThetaSource& source, const Family& family, RopeConfig* result,
                       std::vector<std::string>* warnings) {
  const std::pair<const ConfigReader*, absl::string_view> places[] = {{rope, "rope_theta"},
                                                                      {&config, source.key}};
  for (const auto& [reader, key] : places) {
    if (reader == nullptr || !reader->Has(key) || reader->IsNull(key)) continue;
    QUIRE_ASSIGN_OR_RETURN(result->theta, reader->Number(key));
    if (result->theta <= 1 || result->theta > 1e12) {
      return reader->Error(
          key, absl::StrCat("is ", result->theta, ", it must be above 1 and at most 1e12"));
    }
    return absl::OkStatus();
  }
  result->theta = source.absent;
  warnings->push_back(
      absl::StrCat("config.json has no ", source.key, "; ", family.name, " uses ", source.absent));
  return absl::OkStatus();
}

// Reads rotary_dim; nullopt if it is absent or the family does not read it.
absl::StatusOr<std::optional<std::uint32_t>> ReadRotaryDim(const ConfigReader& config,
                                                           const RopeContext& context) {
  constexpr absl::string_view kKey = "rotary_dim";
  if (!ReadsKey(context.family, kKey)) return std::optional<std::uint32_t>();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> columns,
                         config.OptionalInteger(kKey, 2, context.head_dim));
  if (!columns) return std::optional<std::uint32_t>();
  if (*columns % 2 != 0) {
    return config.Error(kKey, absl::StrCat("is ", *columns, ", it must be even"));
  }
  return std::optional(static_cast<std::uint32_t>(*columns));
}

// Computes rotary_size from partial_rotary_factor of the dictionary, else of the top level, else
// from rotary_dim, else from the default of the family.
absl::StatusOr<std::uint32_t> ReadRotarySize(const ConfigReader& config, const ConfigReader* rope,
                                             const RopeContext& context) {
  constexpr absl::string_view kKey = "partial_rotary_factor";
  const ConfigReader* source = &config;
  std::optional<double> partial;
  for (const ConfigReader* reader : {rope, &config}) {
    if (reader == nullptr || partial) continue;
    QUIRE_ASSIGN_OR_RETURN(partial, reader->OptionalNumber(kKey));
    if (partial) source = reader;
  }
  if (partial && !ReadsKey(context.family, kKey) && *partial != 1) {
    return source->Unsupported(kKey, absl::StrCat("by ", context.family.name, " (supported: 1)"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::uint32_t> dim, ReadRotaryDim(config, context));
  if (dim && !partial) return *dim;
  const double factor = partial.value_or(context.family.defaults.partial_rotary_factor);
  const double columns = std::floor(factor * context.head_dim);
  if (!(factor > 0 && factor <= 1) || columns < 2 || std::fmod(columns, 2) != 0) {
    return source->Error(
        kKey,
        absl::StrCat("is ", factor, ", which rotates ", columns,
                     " columns of a head; this number must be even and 2 to ", context.head_dim));
  }
  if (dim && *dim != columns) {
    return source->Error(kKey, absl::StrCat("is ", factor, ", which rotates ", columns,
                                            " columns of a head, but rotary_dim is ", *dim));
  }
  return static_cast<std::uint32_t>(columns);
}

// Reads the settings of one dictionary, or the defaults without one.
absl::StatusOr<RopeConfig> Interpret(const ConfigReader& config, const ConfigReader* rope,
                                     const RopeContext& context, const ThetaSource& theta,
                                     std::vector<std::string>* warnings) {
  RopeConfig result;
  if (rope != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(result.kind, ReadKind(*rope, context.family));
    QUIRE_RETURN_IF_ERROR(CheckKeys(*rope, result.kind, context.family, warnings));
  }
  QUIRE_RETURN_IF_ERROR(ReadTheta(config, rope, theta, context.family, &result, warnings));
  if (result.kind == RopeKind::kProportional) {
    QUIRE_RETURN_IF_ERROR(ReadProportional(*rope, &result));
    return result;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t rotary_size, ReadRotarySize(config, rope, context));
  if (result.kind == RopeKind::kDefault) return result;
  const bool is_longrope = result.kind == RopeKind::kLongrope;
  if (result.kind == RopeKind::kLlama3 || result.kind == RopeKind::kYarn || is_longrope) {
    QUIRE_RETURN_IF_ERROR(ReadOriginalLength(config, *rope, context, &result));
  }
  const bool has_factor = rope->Has("factor") && !rope->IsNull("factor");
  if (!has_factor && (is_longrope || (result.kind == RopeKind::kYarn && rope->IsNull("factor")))) {
    result.factor = static_cast<double>(context.max_position) / result.original_max_position;
  } else {
    QUIRE_ASSIGN_OR_RETURN(result.factor, ReadPositive(*rope, "factor"));
  }
  if (result.kind == RopeKind::kLlama3) QUIRE_RETURN_IF_ERROR(ReadLlama3(*rope, &result));
  if (result.kind == RopeKind::kYarn) QUIRE_RETURN_IF_ERROR(ReadYarn(*rope, &result));
  if (is_longrope) QUIRE_RETURN_IF_ERROR(ReadLongrope(*rope, context, rotary_size, &result));
  return result;
}

absl::Status ContradictionError(const ConfigReader& config, absl::string_view key,
                                absl::string_view other) {
  return config.Error(
      key, absl::StrCat(config.ValueText(key), " and ", other, " ", config.ValueText(other),
                        " contradict each other; remove one"));
}

ThetaSource FullTheta(const Family& family) {
  return {"rope_theta", family.defaults.rope_theta};
}

ThetaSource LocalTheta(const Family& family) {
  if (family.scales_full_layers_only) return FullTheta(family);
  return {"rope_local_base_freq", family.defaults.rope_local_base_freq};
}

// Returns a top-level dictionary, or nullopt if it is absent or empty.
absl::StatusOr<std::optional<ConfigReader>> FindNonEmpty(const ConfigReader& config,
                                                         absl::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(std::optional<ConfigReader> found, config.OptionalObject(key));
  if (found && found->Keys().empty()) found.reset();
  return found;
}

// Reads settings that apply to all layers.
absl::StatusOr<RopeSettings> ReadFlat(const ConfigReader& config, const RopeContext& context,
                                      std::vector<std::string>* warnings) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> scaling,
                         FindNonEmpty(config, "rope_scaling"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> parameters,
                         FindNonEmpty(config, "rope_parameters"));
  const ConfigReader* chosen = scaling ? &*scaling : parameters ? &*parameters : nullptr;
  const ThetaSource theta = FullTheta(context.family);
  RopeSettings settings;
  QUIRE_ASSIGN_OR_RETURN(settings.rope, Interpret(config, chosen, context, theta, warnings));
  QUIRE_ASSIGN_OR_RETURN(settings.rotary_size, ReadRotarySize(config, chosen, context));
  if (chosen == nullptr && context.family.default_rope != nullptr) {
    const double read_theta = settings.rope.theta;
    settings.rope = *context.family.default_rope;
    settings.rope.theta = read_theta;
    warnings->push_back(absl::StrCat("config.json has no rope_scaling; ", context.family.name,
                                     " uses ", RopeKindName(settings.rope.kind), " with factor ",
                                     settings.rope.factor));
  }
  if (!scaling || !parameters) return settings;
  QUIRE_ASSIGN_OR_RETURN(const RopeConfig other,
                         Interpret(config, &*parameters, context, theta, warnings));
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t other_size,
                         ReadRotarySize(config, &*parameters, context));
  if (!(settings.rope == other) || settings.rotary_size != other_size) {
    return ContradictionError(config, "rope_scaling", "rope_parameters");
  }
  return settings;
}

constexpr absl::string_view kFull = "full_attention";
constexpr absl::string_view kSliding = "sliding_attention";

// Returns the dictionary of one layer type. Settings at the top of rope_parameters are refused,
// because transformers does not read them in families with such dictionaries.
absl::StatusOr<ConfigReader> NestedEntry(const ConfigReader& parameters, absl::string_view entry,
                                         const Family& family) {
  for (const std::string& key : parameters.Keys()) {
    if (key == kFull || key == kSliding) continue;
    return parameters.Unsupported(key, absl::StrCat("by ", family.name, " (supported: ", kFull,
                                                    " and ", kSliding, ", each with settings)"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> found, parameters.OptionalObject(entry));
  if (!found) return parameters.Error(entry, "is missing");
  return *found;
}

// Reads nested rope_parameters. Checks that they agree with the old form in the same file.
absl::StatusOr<RopeSettings> ReadNestedParameters(const ConfigReader& config,
                                                  const ConfigReader& parameters,
                                                  const RopeContext& context,
                                                  std::vector<std::string>* warnings) {
  const Family& family = context.family;
  QUIRE_ASSIGN_OR_RETURN(const ConfigReader full, NestedEntry(parameters, kFull, family));
  QUIRE_ASSIGN_OR_RETURN(const ConfigReader sliding, NestedEntry(parameters, kSliding, family));
  RopeSettings settings{.rope = {}, .local = {}, .rotary_size = context.head_dim};
  QUIRE_ASSIGN_OR_RETURN(settings.rope,
                         Interpret(config, &full, context, FullTheta(family), warnings));
  QUIRE_ASSIGN_OR_RETURN(settings.local,
                         Interpret(config, &sliding, context, LocalTheta(family), warnings));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> scaling,
                         FindNonEmpty(config, "rope_scaling"));
  if (scaling) {
    QUIRE_ASSIGN_OR_RETURN(const RopeConfig old_form,
                           Interpret(config, &*scaling, context, FullTheta(family), warnings));
    if (!(old_form == settings.rope)) {
      return ContradictionError(config, "rope_scaling", "rope_parameters");
    }
  }
  const absl::string_view local_key = LocalTheta(family).key;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> local_base, config.OptionalNumber(local_key));
  if (local_base && *local_base != settings.local->theta) {
    return ContradictionError(config, local_key, "rope_parameters");
  }
  return settings;
}

// Reads separate settings for full and windowed layers.
absl::StatusOr<RopeSettings> ReadNested(const ConfigReader& config, const RopeContext& context,
                                        std::vector<std::string>* warnings) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> parameters,
                         FindNonEmpty(config, "rope_parameters"));
  if (parameters) return ReadNestedParameters(config, *parameters, context, warnings);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> scaling,
                         FindNonEmpty(config, "rope_scaling"));
  RopeSettings settings{.rope = {}, .local = {}, .rotary_size = context.head_dim};
  QUIRE_ASSIGN_OR_RETURN(settings.rope, Interpret(config, scaling ? &*scaling : nullptr, context,
                                                  FullTheta(context.family), warnings));
  if (context.family.scales_full_layers_only) {
    settings.local = RopeConfig();
    settings.local->theta = settings.rope.theta;
    return settings;
  }
  QUIRE_ASSIGN_OR_RETURN(settings.local,
                         Interpret(config, nullptr, context, LocalTheta(context.family), warnings));
  if (!scaling && context.family.default_rope != nullptr) {
    const double theta = settings.rope.theta;
    settings.rope = *context.family.default_rope;
    settings.rope.theta = theta;
  }
  return settings;
}

}  // namespace

absl::StatusOr<RopeSettings> ReadRopeConfig(const ConfigReader& config, const RopeContext& context,
                                            std::vector<std::string>* warnings) {
  const Family& family = context.family;
  return ReadsKey(family, "rope_local_base_freq") || family.scales_full_layers_only ||
                 HasOwnFullHeads(family)
             ? ReadNested(config, context, warnings)
             : ReadFlat(config, context, warnings);
}

}  // namespace quire::models
