#include "server/chat_templates.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/tensors/gguf_tensors.h"

namespace quire::server {
namespace {

absl::StatusOr<std::optional<std::string>> ReadIfThere(const formats::ModelFiles& files,
                                                       absl::string_view name) {
  if (!files.Has(name)) return std::optional<std::string>();
  const absl::StatusOr<formats::ModelFile> file = files.Open(name);
  // An empty file is no reason not to serve the model.
  if (absl::IsInvalidArgument(file.status())) return std::optional<std::string>("");
  if (!file.ok()) return file.status();
  return std::optional<std::string>(std::string(file->text()));
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
  QUIRE_ASSIGN_OR_RETURN(found.chat_template_jinja, ReadIfThere(files, "chat_template.jinja"));
  QUIRE_ASSIGN_OR_RETURN(found.tokenizer_config_json, ReadIfThere(files, "tokenizer_config.json"));
  QUIRE_ASSIGN_OR_RETURN(found.chat_template_json, ReadIfThere(files, "chat_template.json"));
  return found;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const text::ChatTemplates>> LoadChatTemplates(
    const ChatTemplateOptions& options, const formats::ModelFiles& files,
    const text::Tokenizer& tokenizer) {
  text::TemplateFiles found;
  if (options.template_file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(found, ReadFiles(files));
  } else {
    const absl::StatusOr<MappedFile> file = MappedFile::Open(options.template_file);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat("chat.template_file: ", file.status().message()));
    }
    found.template_file = std::string(file->text());
  }
  const text::FoundTemplates sources = text::FindTemplates(found);
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const text::ChatTemplates> templates,
                         text::ChatTemplates::Create(sources, tokenizer, options.rendering));
  if (sources.templates.empty() && sources.problem.empty()) {
    log::Debug("model", "no chat template", {});
  } else if (!templates->problem().empty()) {
    log::Warn("model", "chat template cannot be used", {{"problem", templates->problem()}});
  } else {
    log::Debug("model", "chat template",
               {{"origin", sources.origin}, {"names", absl::StrJoin(templates->names(), ", ")}});
  }
  return templates;
}

}  // namespace quire::server
