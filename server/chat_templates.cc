#include "server/chat_templates.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/small_file.h"
#include "base/status.h"
#include "text/chat/template_files.h"
#include "text/tools/format_text.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

absl::StatusOr<std::string> ReadTemplateFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
  if (text.ok() && text->empty()) text = absl::InvalidArgumentError(path + " is empty");
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat("chat.template_file: ", text.status().message()));
}

// Prefers a format with tool calls, because often only one of several templates supports tools.
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
  const absl::StatusOr<formats::ModelFiles> model = formats::ModelFiles::FromPath(model_path);
  if (!model.ok()) return files;
  for (const std::string& name : text::TemplateFileNames(*model)) {
    files.push_back({"model.path", absl::StrCat(model_path, "/", name)});
  }
  return files;
}

absl::StatusOr<LoadedChat> LoadChatTemplates(const ChatTemplateOptions& options,
                                             const formats::ModelFiles& files,
                                             const text::Tokenizer& tokenizer) {
  text::TemplateFiles found;
  if (options.template_file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(found, text::ReadTemplateFiles(files));
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
  text::ChatOptions rendering = options.rendering;
  rendering.generic_tools =
      loaded.tool_format != nullptr && loaded.tool_format->name == text::kGenericFormat;
  QUIRE_ASSIGN_OR_RETURN(loaded.templates,
                         text::ChatTemplates::Create(sources, tokenizer, rendering));
  const text::ChatTemplates* const templates = loaded.templates.get();
  if (!options.template_file.empty() && !templates->problem().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(templates->problem(), " (file ", options.template_file, ")"));
  }
  for (const std::string& warning : templates->warnings()) {
    log::Warn("model", "chat template uses an unsupported feature; chats that need it are refused",
              {{"template", warning}});
  }
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
