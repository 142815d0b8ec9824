#include "server/config/layered_config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/small_file.h"
#include "quire/config/v1/config.pb.h"
#include "quire/config/v1/options.pb.h"
#include "server/config/validator.h"

namespace quire::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::size_t kMaxErrors = 50;
constexpr std::size_t kMaxFileBytes = std::size_t{4} << 20;
constexpr absl::string_view kPrefix = "QUIRE__";
// A variable with kShortPrefix and "__" but without kPrefix is an error. Its author has probably
// misspelled kPrefix.
constexpr absl::string_view kShortPrefix = "QUIRE_";

// Returns true if a profile is given by the path of its file instead of by a name.
bool IsPath(const std::string& profile) {
  return absl::StrContains(profile, "/") || absl::EndsWith(profile, ".yaml");
}

// Returns the path of the file of a profile. If the profile is given by a name, searches `dirs`.
std::string FindProfile(const std::string& profile, const std::vector<std::string>& dirs) {
  if (IsPath(profile)) return profile;
  std::string path;
  for (const std::string& dir : dirs) {
    path = absl::StrCat(dir, "/", profile, ".yaml");
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return path.empty() ? absl::StrCat(profile, ".yaml") : path;
}

// Applies the files, the environment and the command line, in this order. Returns false if a file
// could not be read completely.
bool ApplyUpperLayers(const ConfigSources& sources, Message* config, Origins* origins,
                      std::vector<std::string>* errors) {
  bool is_complete = true;
  for (const std::string& file : sources.files) {
    const absl::StatusOr<std::string> text = ReadSmallFile(file, kMaxFileBytes);
    if (!text.ok()) {
      errors->push_back(absl::StrCat("--config: ", text.status().message()));
      is_complete = false;
      continue;
    }
    is_complete &= ReadYaml(*text, file, config, origins, errors);
  }
  for (const auto& [name, value] : sources.environment) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, kPrefix)) {
      if (absl::ConsumePrefix(&rest, kShortPrefix) && absl::StrContains(rest, "__")) {
        errors->push_back(absl::StrCat("env ", name,
                                       ": a variable of the configuration begins with ", kPrefix,
                                       "; did you mean ", kPrefix, rest, "?"));
      }
      continue;
    }
    const std::string path = absl::AsciiStrToLower(absl::StrReplaceAll(rest, {{"__", "."}}));
    ReadOverride(path, value, Origin{.layer = absl::StrCat("env ", name)}, config, origins, errors);
  }
  for (const std::string& set : sources.sets) {
    const std::size_t equals = set.find('=');
    if (equals == set.npos) {
      errors->push_back(absl::StrCat("--set ", set, ": has no value; write PATH=VALUE"));
      continue;
    }
    ReadOverride(set.substr(0, equals), set.substr(equals + 1), Origin{.layer = "--set"}, config,
                 origins, errors);
  }
  if (!sources.model.empty()) {
    ReadOverride("model.path", sources.model, Origin{.layer = "MODEL"}, config, origins, errors);
  }
  return is_complete;
}

// Applies the profile. Returns false if its file could not be read completely.
bool ApplyProfile(const std::string& profile, const ConfigSources& sources, Message* config,
                  Origins* origins, std::vector<std::string>* errors) {
  const std::string path = FindProfile(profile, sources.profile_dirs);
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
  if (!text.ok()) {
    const std::string searched =
        IsPath(profile)
            ? ""
            : absl::StrCat("; searched in ", sources.profile_dirs.empty()
                                                 ? "no directory"
                                                 : absl::StrJoin(sources.profile_dirs, ", "));
    errors->push_back(
        absl::StrCat("profile \"", profile, "\": ", text.status().message(), searched));
    return false;
  }
  const bool is_complete = ReadYaml(*text, path, config, origins, errors);
  const auto origin = origins->find("profile");
  if (origin != origins->end() && origin->second.layer == path) {
    errors->push_back(absl::StrCat(origin->second.ToString(),
                                   ": profile: a profile cannot name another profile"));
  }
  return is_complete;
}

// Adds `offset` to the ports of all listeners (see ShiftListenAddress).
void ApplyPortOffset(int offset, config::v1::Config* config, Origins* origins,
                     std::vector<std::string>* errors) {
  if (offset == 0) return;
  const auto shift = [&](const std::string& path, std::string* address) {
    Origin& origin = (*origins)[path];
    absl::StatusOr<std::string> shifted = ShiftListenAddress(*address, offset);
    if (!shifted.ok()) {
      errors->push_back(absl::StrCat(origin.ToString(), ": ", path, ": ", *address, ": ",
                                     shifted.status().message()));
      return;
    }
    if (*shifted == *address) return;
    *address = *std::move(shifted);
    if (origin.is_default()) origin.layer = "--port-offset";
  };
  auto* server = config->mutable_server();
  for (std::string& text : *server->mutable_grpc()->mutable_listen()) {
    shift("server.grpc.listen", &text);
  }
  for (std::string& text : *server->mutable_admin()->mutable_listen()) {
    shift("server.admin.listen", &text);
  }
  shift("server.http.listen", server->mutable_http()->mutable_listen());
  shift("openai.listen", config->mutable_openai()->mutable_listen());
}

bool IsDefault(const Origins& origins, const std::string& path) {
  const auto origin = origins.find(path);
  return origin == origins.end() || origin->second.is_default();
}

std::string PrintField(const Message& section, const FieldDescriptor* field, Spelling spelling);

// Prints one entry of a list whose entries are messages (see IsEntryList) on one line. In YAML flow
// style, unlike in JSON, keys need no quotes.
std::string PrintEntry(const Message& entry, Spelling spelling) {
  const char* const quote = spelling == Spelling::kJson ? "\"" : "";
  std::vector<std::string> keys;
  for (int i = 0; i < entry.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = entry.GetDescriptor()->field(i);
    keys.push_back(
        absl::StrCat(quote, field->name(), quote, ": ", PrintField(entry, field, spelling)));
  }
  return absl::StrCat("{", absl::StrJoin(keys, ", "), "}");
}

std::string PrintField(const Message& section, const FieldDescriptor* field, Spelling spelling) {
  if (!field->is_repeated()) {
    const std::string value = PrintScalar(section, field, -1, spelling);
    return RuleOf(field).sensitive() && value != "\"\"" ? "\"<redacted>\"" : value;
  }
  std::vector<std::string> elements;
  for (int i = 0; i < section.GetReflection()->FieldSize(section, field); ++i) {
    elements.push_back(
        IsEntryList(field)
            ? PrintEntry(section.GetReflection()->GetRepeatedMessage(section, field, i), spelling)
            : PrintScalar(section, field, i, spelling));
  }
  return absl::StrCat("[", absl::StrJoin(elements, ", "), "]");
}

// Appends one line for each key of the section to `out`. A section without printed keys has no
// line.
void PrintYaml(const Message& section, const std::string& prefix, int indent, bool include_defaults,
               const Origins& origins, std::string* out) {
  const std::string margin(static_cast<std::size_t>(indent) * 2, ' ');
  for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = section.GetDescriptor()->field(i);
    const std::string path = prefix + field->name();
    if (IsSection(field)) {
      std::string lines;
      PrintYaml(section.GetReflection()->GetMessage(section, field), path + ".", indent + 1,
                include_defaults, origins, &lines);
      if (!lines.empty()) absl::StrAppend(out, margin, field->name(), ":\n", lines);
      continue;
    }
    if (!include_defaults && IsDefault(origins, path)) continue;
    absl::StrAppend(out, margin, field->name(), ": ", PrintField(section, field, Spelling::kYaml),
                    "  # ", OriginOf(origins, path), "\n");
  }
}

std::string PrintJson(const Message& section, const std::string& prefix, int indent,
                      bool include_defaults, const Origins& origins) {
  const std::string margin(static_cast<std::size_t>(indent) * 2, ' ');
  std::vector<std::string> entries;
  for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = section.GetDescriptor()->field(i);
    const std::string path = prefix + field->name();
    std::string value;
    if (IsSection(field)) {
      value = PrintJson(section.GetReflection()->GetMessage(section, field), path + ".", indent + 1,
                        include_defaults, origins);
      if (value == "{}") continue;
    } else {
      if (!include_defaults && IsDefault(origins, path)) continue;
      value = PrintField(section, field, Spelling::kJson);
    }
    entries.push_back(absl::StrCat(margin, "  \"", field->name(), "\": ", value));
  }
  if (entries.empty()) return "{}";
  return absl::StrCat("{\n", absl::StrJoin(entries, ",\n"), "\n", margin, "}");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ConfigEnvironment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, kShortPrefix)) continue;
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    variables.push_back(parts);
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

std::vector<std::string> InstalledProfileDirs() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  return {(binary.parent_path().parent_path() / "share/quire/configs").string()};
}

LayeredConfig::LayeredConfig() : config_(std::make_unique<config::v1::Config>()) {}
LayeredConfig::~LayeredConfig() = default;

std::unique_ptr<LayeredConfig> LayeredConfig::Load(const ConfigSources& sources,
                                                   std::vector<std::string>* errors) {
  std::unique_ptr<LayeredConfig> result(new LayeredConfig());
  result->load_time_ = absl::Now();
  ApplyDefaults(result->config_.get(), &result->origins_, errors);
  const config::v1::Config defaults = *result->config_;
  const Origins default_origins = result->origins_;
  bool is_complete = ApplyUpperLayers(sources, result->config_.get(), &result->origins_, errors);

  // The layers that name the profile have priority over it, so they are applied again after the
  // profile.
  const std::string profile = result->config_->profile();
  if (is_complete && !profile.empty()) {
    errors->clear();  // applying the upper layers again reports the same errors again
    *result->config_ = defaults;
    result->origins_ = default_origins;
    is_complete = ApplyProfile(profile, sources, result->config_.get(), &result->origins_, errors);
    is_complete &= ApplyUpperLayers(sources, result->config_.get(), &result->origins_, errors);
  }
  // If a file was not read completely, the rules between keys are not checked, because they would
  // report false errors. A file with an invalid value counts as complete: the rules are checked
  // with the value of a lower layer instead.
  if (is_complete) {
    ApplyPortOffset(sources.port_offset, result->config_.get(), &result->origins_, errors);
    ValidateConfig(*result->config_, result->origins_, errors);
  }
  if (errors->empty()) return result;
  if (errors->size() > kMaxErrors) {
    const std::size_t num_omitted = errors->size() - kMaxErrors;
    errors->resize(kMaxErrors);
    errors->push_back(absl::StrCat("and ", num_omitted, " more errors"));
  }
  return nullptr;
}

std::string LayeredConfig::Print(Spelling spelling, bool include_defaults) const {
  if (spelling == Spelling::kJson) {
    return PrintJson(*config_, "", 0, include_defaults, origins_) + "\n";
  }
  std::string out;
  PrintYaml(*config_, "", 0, include_defaults, origins_, &out);
  return out;
}

std::string LayeredConfig::PrintValue(absl::string_view path, Spelling spelling) const {
  const Message* section = config_.get();
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    if (field != nullptr) section = &section->GetReflection()->GetMessage(*section, field);
    field = section->GetDescriptor()->FindFieldByName(std::string(name));
    QUIRE_CHECK(field != nullptr);
  }
  if (RuleOf(field).sensitive()) return "<redacted>";
  return PrintField(*section, field, spelling);
}

std::string LayeredConfig::Sha256() const {
  const std::string text = Print(Spelling::kJson);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

}  // namespace quire::server
