#include "models/config/pooling_config.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/model_files.h"
#include "models/config/config_reader.h"

namespace quire::models {
namespace {

constexpr absl::string_view kModules = "modules.json";
constexpr absl::string_view kDefaultPooling = "1_Pooling/config.json";

// A JSON file and the document that owns its values.
struct JsonFile {
  std::string label;
  formats::JsonDocument document;

  ConfigReader reader() const { return {label, document.root()}; }
};

absl::StatusOr<JsonFile> ReadJson(const formats::ModelFiles& files, absl::string_view name) {
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile file, files.Open(name));
  absl::StatusOr<formats::JsonDocument> document = formats::JsonDocument::Parse(file.text());
  if (!document.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.label(), ": ", document.status().message()));
  }
  return JsonFile{file.label(), *std::move(document)};
}

absl::StatusOr<JsonFile> ReadObject(const formats::ModelFiles& files, absl::string_view name) {
  QUIRE_ASSIGN_OR_RETURN(JsonFile file, ReadJson(files, name));
  if (file.document.root().is_object()) return file;
  return absl::InvalidArgumentError(absl::StrCat(file.label, ": not a JSON object"));
}

absl::StatusOr<PoolingMode> ParseMode(const ConfigReader& reader, absl::string_view name) {
  if (name == "lasttoken") return PoolingMode::kLast;
  if (name == "mean") return PoolingMode::kMean;
  if (name == "cls") return PoolingMode::kCls;
  return reader.Unsupported("pooling_mode", "(supported: lasttoken, mean, cls)");
}

// Reads a mode in the format of sentence-transformers 6: a name, or a list with one name.
absl::StatusOr<PoolingMode> ReadNewMode(const ConfigReader& reader,
                                        const formats::JsonValue& mode) {
  if (mode.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(const std::string name, mode.AsString());
    return ParseMode(reader, name);
  }
  if (!mode.is_array())
    return reader.Error("pooling_mode", "must be a string, or a list of strings");
  if (mode.size() != 1) return reader.Unsupported("pooling_mode", "(supported: one mode)");
  const absl::StatusOr<std::string> name = mode.At(0).AsString();
  if (!name.ok()) return reader.Error("pooling_mode", "must be a string, or a list of strings");
  return ParseMode(reader, *name);
}

// Reads the mode in the format of sentence-transformers 2 to 5: a flag per mode. No flag means
// kMean.
absl::StatusOr<PoolingMode> ReadOldMode(const ConfigReader& reader) {
  constexpr std::pair<absl::string_view, std::optional<PoolingMode>> kFlags[] = {
      {"pooling_mode_cls_token", PoolingMode::kCls},
      {"pooling_mode_mean_tokens", PoolingMode::kMean},
      {"pooling_mode_lasttoken", PoolingMode::kLast},
      {"pooling_mode_max_tokens", std::nullopt},
      {"pooling_mode_mean_sqrt_len_tokens", std::nullopt},
      {"pooling_mode_weightedmean_tokens", std::nullopt}};
  std::optional<PoolingMode> mode;
  for (const auto& [key, meant] : kFlags) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_set, reader.BoolOr(key, false));
    if (!is_set) continue;
    if (!meant) {
      return reader.Unsupported(key,
                                "(supported: pooling_mode_cls_token, "
                                "pooling_mode_mean_tokens, pooling_mode_lasttoken)");
    }
    if (mode) return reader.Unsupported(key, "beside another mode (supported: one mode)");
    mode = meant;
  }
  return mode.value_or(PoolingMode::kMean);
}

absl::StatusOr<PoolingMode> ReadMode(const formats::ModelFiles& files, absl::string_view name,
                                     std::uint32_t hidden_size) {
  QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadObject(files, name));
  const ConfigReader reader = file.reader();
  for (const absl::string_view key : {"word_embedding_dimension", "embedding_dimension"}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> width,
                           reader.OptionalInteger(key, 1, std::int64_t{1} << 31));
    if (width && *width != hidden_size) {
      return reader.Error(key, absl::StrCat("is ", *width, ", hidden_size is ", hidden_size));
    }
  }
  const std::optional<formats::JsonValue> mode = file.document.root().FindNonNull("pooling_mode");
  return mode ? ReadNewMode(reader, *mode) : ReadOldMode(reader);
}

absl::StatusOr<LogitScore> ReadLogitScore(const formats::ModelFiles& files, absl::string_view name,
                                          std::uint32_t vocab_size) {
  QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadObject(files, name));
  const ConfigReader reader = file.reader();
  LogitScore score;
  for (const auto& [key, id] : {std::pair("true_token_id", &score.true_token_id),
                                std::pair("false_token_id", &score.false_token_id)}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> token,
                           reader.OptionalInteger(key, 0, std::int64_t{vocab_size} - 1));
    if (!token) return reader.Unsupported(key, "(supported: the id of a token)");
    *id = static_cast<std::int32_t>(*token);
  }
  return score;
}

// A module of modules.json: its class and the path of its files.
struct Module {
  std::string type;  // as in the file
  std::string path;

  bool Is(absl::string_view name) const {
    return absl::StartsWith(type, "sentence_transformers.") &&
           absl::EndsWith(type, absl::StrCat(".", name));
  }
  std::string ConfigName() const { return absl::StrCat(path, "/config.json"); }
};

absl::StatusOr<std::vector<Module>> ReadModules(const formats::ModelFiles& files) {
  QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadJson(files, kModules));
  const formats::JsonValue root = file.document.root();
  const auto label = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(file.label, ": ", status.message()));
  };
  if (const absl::Status status = root.CheckArray(); !status.ok()) return label(status);
  std::vector<Module> modules;
  for (std::size_t i = 0; i < root.size(); ++i) {
    const absl::StatusOr<std::string> type = root.At(i).GetString("type");
    if (!type.ok()) return label(type.status());
    const absl::StatusOr<std::string> path = root.At(i).GetString("path");
    if (!path.ok()) return label(path.status());
    const Module module{*type, *path};
    const bool has_files = i > 0 && !module.Is("Normalize");
    if (has_files && !formats::IsNestedName(module.ConfigName())) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.label, ": path \"", module.path, "\" is not the name of a folder beside this file"));
    }
    modules.push_back(module);
  }
  return modules;
}

absl::Status UnsupportedModulesError(const formats::ModelFiles& files,
                                     const std::vector<Module>& modules) {
  std::vector<std::string> types;
  for (const Module& module : modules) types.push_back(module.type);
  return absl::UnimplementedError(absl::StrCat(
      files.LabelOf(kModules), ": the modules ", absl::StrJoin(types, ", "),
      " are not supported (supported: sentence_transformers' Transformer, then Pooling, with or "
      "without Normalize, or LogitScore)"));
}

absl::StatusOr<PoolingConfig> FromModules(const formats::ModelFiles& files,
                                          std::uint32_t hidden_size, std::uint32_t vocab_size) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(files));
  const bool is_known = modules.size() >= 2 && modules.size() <= 3 &&
                        modules[0].Is("Transformer") && modules[0].path.empty();
  if (!is_known) return UnsupportedModulesError(files, modules);
  PoolingConfig config;
  if (modules.size() == 2 && modules[1].Is("LogitScore")) {
    QUIRE_ASSIGN_OR_RETURN(config.logit_score,
                           ReadLogitScore(files, modules[1].ConfigName(), vocab_size));
    return config;
  }
  config.normalize = modules.size() == 3;
  if (!modules[1].Is("Pooling") || (config.normalize && !modules[2].Is("Normalize"))) {
    return UnsupportedModulesError(files, modules);
  }
  QUIRE_ASSIGN_OR_RETURN(config.mode, ReadMode(files, modules[1].ConfigName(), hidden_size));
  return config;
}

// Rejects settings that would change every text before tokenization.
absl::Status CheckTextSettings(const formats::ModelFiles& files, bool is_reranker) {
  constexpr absl::string_view kTransformer = "sentence_bert_config.json";
  if (files.Has(kTransformer)) {
    QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadObject(files, kTransformer));
    const ConfigReader reader = file.reader();
    QUIRE_ASSIGN_OR_RETURN(const bool lowers, reader.BoolOr("do_lower_case", false));
    if (lowers) return reader.Unsupported("do_lower_case", "");
    QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> modality,
                           reader.OptionalObject("modality_config"));
    if (!is_reranker && modality && modality->Has("message") && !modality->IsNull("message")) {
      return modality->Unsupported("message",
                                   "(texts are embedded as they are, not through a template)");
    }
  }
  constexpr absl::string_view kPrompts = "config_sentence_transformers.json";
  if (!files.Has(kPrompts)) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadObject(files, kPrompts));
  const ConfigReader reader = file.reader();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> prompt,
                         reader.OptionalString("default_prompt_name"));
  if (!prompt) return absl::OkStatus();
  return reader.Unsupported("default_prompt_name",
                            "(supported: null; clients put the prompt before the text)");
}

}  // namespace

absl::StatusOr<PoolingConfig> ReadPoolingConfig(const formats::ModelFiles& files,
                                                std::uint32_t hidden_size,
                                                std::uint32_t vocab_size) {
  PoolingConfig config;
  if (files.Has(kModules)) {
    QUIRE_ASSIGN_OR_RETURN(config, FromModules(files, hidden_size, vocab_size));
  } else if (files.Has(kDefaultPooling)) {
    QUIRE_ASSIGN_OR_RETURN(config.mode, ReadMode(files, kDefaultPooling, hidden_size));
  } else {
    return config;
  }
  QUIRE_RETURN_IF_ERROR(CheckTextSettings(files, config.logit_score.has_value()));
  return config;
}

}  // namespace quire::models
