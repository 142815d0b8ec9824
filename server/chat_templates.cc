#include "server/chat_templates.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/small_file.h"
#include "base/status.h"
#include "formats/tensors/gguf_tensors.h"
#include "text/tools/format_text.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
constexpr absl::string_view kModelFiles[] = {"chat_template.jinja", "tokenizer_config.json",
                                             "chat_template.json"};

absl::StatusOr<std::optional<std::string>> ReadIfThere(const formats::ModelFiles& files,
                                                       absl::string_view name) {
  if (!files.Has(name)) return std::optional<std::string>();
  QUIRE_ASSIGN_OR_RETURN(std::string text, files.ReadText(name, kMaxFileBytes));
  return std::optional<std::string>(std::move(text));
}

absl::StatusOr<text::TemplateFiles> ReadFiles(const formats::ModelFiles& files) {
  text::TemplateFiles found;
  if (!files.gguf().empty()) {
    QUIRE_ASSIGN_OR_RETURN(const formats::OpenedGguf opened, formats::OpenGguf(files));
    QUIRE_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text,
                           opened.gguf.OptionalString("tokenizer.chat_template"));
    if (text) found.gguf_template = std::string(*text);
    return found;
  }
  QUIRE_ASSIGN_OR_RETURN(found.chat_template_jinja, ReadIfThere(files, kModelFiles[0]));
  QUIRE_ASSIGN_OR_RETURN(found.tokenizer_config_json, ReadIfThere(files, kModelFiles[1]));
  QUIRE_ASSIGN_OR_RETURN(found.chat_template_json, ReadIfThere(files, kModelFiles[2]));
  return found;
}

absl::StatusOr<std::string> ReadTemplateFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
  if (text.ok() && text->empty()) text = absl::InvalidArgumentError(path + " is empty");
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat("chat.template_file: ", text.status().message()));
}

// Of several templates one alone may know tools.
absl::StatusOr<const text::ToolFormat*> ChooseToolFormat(const std::string& name,
                                                         const text::FoundTemplates& sources) {
  if (name == "none") return nullptr;
  if (name != "auto") {
    const text::ToolFormat* const format = text::FindToolFormat(name);
    if (format != nullptr) return format;
    std::string names = "auto, none";
    for (const text::ToolFormat& known : text::ToolFormats())
      absl::StrAppend(&names, ", ", known.name);
    return absl::InvalidArgumentError(
        absl::StrCat("chat.tool_format is \"", name, "\", not one of ", names));
  }
  const text::ToolFormat* without_calls = nullptr;
  for (const text::TemplateSource& source : sources.templates) {
    const text::ToolFormat* const format = text::DetectToolFormat(source.text);
    if (format == nullptr) continue;
    if (format->shape != text::CallShape::kNone) return format;
    without_calls = format;
  }
  return without_calls;
}

}  // namespace

std::vector<NamedFile> ChatTemplateFiles(const ChatTemplateOptions& options,
                                         const std::string& model_path) {
  if (!options.template_file.empty()) return {{"chat.template_file", options.template_file}};
  std::vector<NamedFile> files;
  if (model_path == "embedded") return files;
  for (const absl::string_view name : kModelFiles) {
    files.push_back({"model.path", absl::StrCat(model_path, "/", name)});
  }
  return files;
}

absl::StatusOr<LoadedChat> LoadChatTemplates(const ChatTemplateOptions& options,
                                             const formats::ModelFiles& files,
                                             const text::Tokenizer& tokenizer) {
  text::TemplateFiles found;
  if (options.template_file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(found, ReadFiles(files));
  } else {
    QUIRE_ASSIGN_OR_RETURN(found.template_file, ReadTemplateFile(options.template_file));
  }
  const text::FoundTemplates sources = text::FindTemplates(found);
  LoadedChat loaded;
  QUIRE_ASSIGN_OR_RETURN(loaded.tool_format, ChooseToolFormat(options.tool_format, sources));
  loaded.has_reasoning =
      loaded.tool_format != nullptr &&
      std::ranges::any_of(sources.templates, [&](const text::TemplateSource& source) {
        return text::HasReasoning(*loaded.tool_format, source.text);
      });
  QUIRE_ASSIGN_OR_RETURN(loaded.templates,
                         text::ChatTemplates::Create(sources, tokenizer, options.rendering));
  const text::ChatTemplates* const templates = loaded.templates.get();
  if (sources.templates.empty() && sources.problem.empty()) {
    log::Debug("model", "no chat template", {});
  } else if (!templates->problem().empty()) {
    log::Warn("model", "chat template cannot be used", {{"problem", templates->problem()}});
  } else {
    log::Debug(
        "model", "chat template",
        {{"origin", sources.origin},
         {"names", absl::StrJoin(templates->names(), ", ")},
         {"tool_format", loaded.tool_format == nullptr ? "none" : loaded.tool_format->name}});
  }
  return loaded;
}

}  // namespace quire::server
