#include "text/chat/template_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "formats/tensors/gguf_tensors.h"

namespace quire::text {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
constexpr absl::string_view kDefaultFiles[] = {"chat_template.jinja", "tokenizer_config.json",
                                               "chat_template.json"};

// Directory of further templates; each file is named after its template.
constexpr absl::string_view kNamedFolder = "additional_chat_templates";
constexpr absl::string_view kNamedSuffix = ".jinja";
constexpr absl::string_view kGgufTemplate = "tokenizer.chat_template";

// Returns the sorted paths, relative to the model's directory, of the named templates. If their
// directory is missing or cannot be read, there are none.
std::vector<std::string> NamedTemplateFiles(const formats::ModelFiles& files) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator it(files.LabelOf(kNamedFolder), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (absl::EndsWith(name, kNamedSuffix)) paths.push_back(absl::StrCat(kNamedFolder, "/", name));
  }
  if (error) paths.clear();
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<std::vector<TemplateSource>> ReadNamed(const formats::ModelFiles& files) {
  std::vector<TemplateSource> named;
  for (const std::string& path : NamedTemplateFiles(files)) {
    TemplateSource source{.origin = path};
    QUIRE_ASSIGN_OR_RETURN(source.text, files.ReadText(path, kMaxFileBytes));
    absl::string_view name = absl::string_view(path).substr(kNamedFolder.size() + 1);
    absl::ConsumeSuffix(&name, kNamedSuffix);
    source.name = std::string(name);
    named.push_back(std::move(source));
  }
  return named;
}

absl::StatusOr<TemplateFiles> ReadGguf(const formats::ModelFiles& files) {
  TemplateFiles found;
  QUIRE_ASSIGN_OR_RETURN(const formats::OpenedGguf opened, formats::OpenGguf(files));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text,
                         opened.gguf.OptionalString(kGgufTemplate));
  if (text) found.gguf_template = std::string(*text);
  const std::string prefix = absl::StrCat(kGgufTemplate, ".");
  for (const absl::string_view key : opened.gguf.keys()) {
    if (!absl::StartsWith(key, prefix) || key.size() == prefix.size()) continue;
    QUIRE_ASSIGN_OR_RETURN(const absl::string_view value, opened.gguf.String(key));
    found.named.push_back({.name = std::string(key.substr(prefix.size())),
                           .text = std::string(value),
                           .origin = std::string(key)});
  }
  return found;
}

absl::StatusOr<std::optional<std::string>> ReadIfExists(const formats::ModelFiles& files,
                                                        absl::string_view name) {
  if (!files.Has(name)) return std::optional<std::string>();
  QUIRE_ASSIGN_OR_RETURN(std::string text, files.ReadText(name, kMaxFileBytes));
  return std::optional<std::string>(std::move(text));
}

}  // namespace

absl::StatusOr<TemplateFiles> ReadTemplateFiles(const formats::ModelFiles& files) {
  if (!files.gguf().empty()) return ReadGguf(files);
  TemplateFiles found;
  QUIRE_ASSIGN_OR_RETURN(found.chat_template_jinja, ReadIfExists(files, kDefaultFiles[0]));
  QUIRE_ASSIGN_OR_RETURN(found.tokenizer_config_json, ReadIfExists(files, kDefaultFiles[1]));
  QUIRE_ASSIGN_OR_RETURN(found.chat_template_json, ReadIfExists(files, kDefaultFiles[2]));
  QUIRE_ASSIGN_OR_RETURN(found.named, ReadNamed(files));
  return found;
}

std::vector<std::string> TemplateFileNames(const formats::ModelFiles& files) {
  std::vector<std::string> names;
  if (!files.gguf().empty()) return names;
  for (const absl::string_view name : kDefaultFiles) names.emplace_back(name);
  for (std::string& path : NamedTemplateFiles(files)) names.push_back(std::move(path));
  return names;
}

}  // namespace quire::text
