#include "models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr RopeKind kKinds[] = {RopeKind::kDefault, RopeKind::kLinear, RopeKind::kDynamic,
                               RopeKind::kYarn, RopeKind::kLlama3};
constexpr absl::string_view kSupportedKinds = "default, linear, dynamic, yarn, llama3";
constexpr double kMaxFactor = 1e6;
constexpr std::uint32_t kMaxPositions = 1u << 30;

// Keys that a rope dictionary may hold; "finetuned" is a remark of some publishers.
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

absl::Status CheckKeys(const ConfigReader& rope, absl::string_view family) {
  for (const std::string& key : rope.Keys()) {
    const bool known =
        std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
    if (!known && !rope.IsNull(key)) {
      return rope.Unsupported(key, absl::StrCat("by ", family));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeKind> ReadKind(const ConfigReader& rope, absl::string_view family) {
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
  for (const RopeKind kind : kKinds) {
    if (given == RopeKindName(kind)) return kind;
  }
  return absl::UnimplementedError(absl::StrCat(rope.label(), ": ", rope.PathOf("rope_type"), " \"",
                                               given, "\" is not supported by ", family,
                                               " (supported: ", kSupportedKinds, ")"));
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
  if (result->high_freq_factor <= result->low_freq_factor) {
    return rope.Error("high_freq_factor",
                      absl::StrCat("is ", result->high_freq_factor, ", it must be above ",
                                   rope.PathOf("low_freq_factor"), " ", result->low_freq_factor));
  }
  return absl::OkStatus();
}

absl::Status ReadYarn(const ConfigReader& rope, RopeConfig* result) {
  QUIRE_RETURN_IF_ERROR(ReadOptionalPositive(rope, "beta_fast", &result->beta_fast));
  QUIRE_RETURN_IF_ERROR(ReadOptionalPositive(rope, "beta_slow", &result->beta_slow));
  if (result->beta_fast < result->beta_slow) {
    return rope.Error("beta_fast", absl::StrCat("is ", result->beta_fast, ", it must be at least ",
                                                rope.PathOf("beta_slow"), " ", result->beta_slow));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> truncate, rope.OptionalBool("truncate"));
  result->truncate = truncate.value_or(true);
  const std::pair<absl::string_view, std::optional<double>*> factors[] = {
      {"attention_factor", &result->attention_factor},
      {"mscale", &result->mscale},
      {"mscale_all_dim", &result->mscale_all_dim}};
  for (const auto& [key, value] : factors) {
    QUIRE_ASSIGN_OR_RETURN(*value, rope.OptionalNumber(key));
    if (*value && (**value < 0 || **value > kMaxFactor)) {
      return rope.Error(key, absl::StrCat("is ", **value, ", it must be 0 to ", kMaxFactor));
    }
  }
  if (result->attention_factor == 0.0) {
    return rope.Error("attention_factor", "is 0, it must be above 0");
  }
  return absl::OkStatus();
}

absl::Status ReadTheta(const ConfigReader& config, const ConfigReader* rope,
                       const RopeContext& context, RopeConfig* result,
                       std::vector<std::string>* warnings) {
  for (const ConfigReader* reader : {rope, &config}) {
    if (reader == nullptr || !reader->Has("rope_theta") || reader->IsNull("rope_theta")) continue;
    QUIRE_ASSIGN_OR_RETURN(result->theta, reader->Number("rope_theta"));
    if (result->theta <= 1 || result->theta > 1e12) {
      return reader->Error("rope_theta", absl::StrCat("is ", result->theta,
                                                      ", it must be above 1 and at most 1e12"));
    }
    return absl::OkStatus();
  }
  result->theta = context.default_theta;
  warnings->push_back(absl::StrCat("config.json states no rope_theta; ", context.family, " takes ",
                                   context.default_theta));
  return absl::OkStatus();
}

absl::Status CheckPartial(const ConfigReader& reader, absl::string_view family) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> partial,
                         reader.OptionalNumber("partial_rotary_factor"));
  if (partial && *partial != 1) {
    return reader.Unsupported("partial_rotary_factor",
                              absl::StrCat("by ", family, " (supported: 1)"));
  }
  return absl::OkStatus();
}

// One dictionary, or none, as settings.
absl::StatusOr<RopeConfig> Interpret(const ConfigReader& config, const ConfigReader* rope,
                                     const RopeContext& context,
                                     std::vector<std::string>* warnings) {
  RopeConfig result;
  QUIRE_RETURN_IF_ERROR(CheckPartial(config, context.family));
  if (rope != nullptr) {
    QUIRE_RETURN_IF_ERROR(CheckKeys(*rope, context.family));
    QUIRE_RETURN_IF_ERROR(CheckPartial(*rope, context.family));
    QUIRE_ASSIGN_OR_RETURN(result.kind, ReadKind(*rope, context.family));
  }
  QUIRE_RETURN_IF_ERROR(ReadTheta(config, rope, context, &result, warnings));
  if (result.kind == RopeKind::kDefault) return result;
  if (result.kind == RopeKind::kLlama3 || result.kind == RopeKind::kYarn) {
    QUIRE_RETURN_IF_ERROR(ReadOriginalLength(config, *rope, context, &result));
  }
  if (result.kind == RopeKind::kYarn && rope->IsNull("factor")) {
    result.factor = static_cast<double>(context.max_position) / result.original_max_position;
  } else {
    QUIRE_ASSIGN_OR_RETURN(result.factor, ReadPositive(*rope, "factor"));
  }
  if (result.kind == RopeKind::kLlama3) QUIRE_RETURN_IF_ERROR(ReadLlama3(*rope, &result));
  if (result.kind == RopeKind::kYarn) QUIRE_RETURN_IF_ERROR(ReadYarn(*rope, &result));
  return result;
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRopeConfig(const ConfigReader& config, const RopeContext& context,
                                          std::vector<std::string>* warnings) {
  QUIRE_ASSIGN_OR_RETURN(std::optional<ConfigReader> scaling,
                         config.OptionalObject("rope_scaling"));
  QUIRE_ASSIGN_OR_RETURN(std::optional<ConfigReader> parameters,
                         config.OptionalObject("rope_parameters"));
  if (scaling && scaling->Keys().empty()) scaling.reset();
  if (parameters && parameters->Keys().empty()) parameters.reset();
  if (!scaling || !parameters) {
    const ConfigReader* rope = scaling ? &*scaling : parameters ? &*parameters : nullptr;
    return Interpret(config, rope, context, warnings);
  }
  QUIRE_ASSIGN_OR_RETURN(const RopeConfig old_form,
                         Interpret(config, &*scaling, context, warnings));
  QUIRE_ASSIGN_OR_RETURN(const RopeConfig new_form,
                         Interpret(config, &*parameters, context, warnings));
  if (!(old_form == new_form)) {
    return config.Error(
        "rope_scaling",
        absl::StrCat(config.ValueText("rope_scaling"), " and rope_parameters ",
                     config.ValueText("rope_parameters"), " mean different things"));
  }
  return old_form;
}

}  // namespace quire::models
