#include "server/config/yaml_reader.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/closest_name.h"
#include "base/utf8.h"
#include "quire/config/v1/options.pb.h"
#include "server/config/quoting.h"
#include "server/config/scalar_value.h"

namespace quire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::size_t kMaxYamlBytes = std::size_t{1} << 20;

void CollectPaths(const Descriptor* section, const std::string& prefix,
                  std::vector<std::string>* paths) {
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    const std::string path = prefix + field->name();
    if (IsSection(field)) {
      CollectPaths(field->message_type(), path + ".", paths);
    } else {
      paths->push_back(path);
    }
  }
}

// Suggests a replacement for the unknown key `name`: a similar key of this section, or else a key
// with that name in another section. Returns "" if there is none.
std::string SuggestName(const Descriptor* root, const Descriptor* section, absl::string_view name) {
  std::vector<absl::string_view> names;
  names.reserve(static_cast<std::size_t>(section->field_count()));
  for (int i = 0; i < section->field_count(); ++i) names.emplace_back(section->field(i)->name());
  const absl::string_view closest = ClosestName(name, names);
  if (!closest.empty()) return std::string(closest);
  std::vector<std::string> paths;
  CollectPaths(root, "", &paths);
  for (const std::string& path : paths) {
    if (absl::EndsWith(path, absl::StrCat(".", name))) return path;
  }
  return "";
}

std::string DescribeUnknownField(const Descriptor* root, const Descriptor* section,
                                 const std::string& section_path, absl::string_view name) {
  const std::string where = section_path.empty() ? "" : absl::StrCat(" in ", section_path);
  const std::string unknown = absl::StrCat("unknown field \"", name, "\"", where);
  const std::string suggestion = SuggestName(root, section, name);
  return absl::StrCat(unknown, suggestion.empty()
                                   ? "; docs/reference/config.md lists the fields"
                                   : absl::StrCat("; did you mean \"", suggestion, "\"?"));
}

// Hint for errors in files, whose messages do not show the value.
constexpr absl::string_view kQuoteHint =
    "; write a text with brackets in quotes, as in [\"[::1]:50051\"]";

bool IsText(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

// Reads the values of one layer into one message.
class LayerReader {
 public:
  // If `is_file`, error messages contain the line, the column and the key. Otherwise the name of
  // the layer already contains the key.
  LayerReader(const Origin& layer, bool is_file, const Descriptor* root, Origins* origins,
              std::vector<std::string>* errors)
      : layer_(layer), is_file_(is_file), root_(root), origins_(origins), errors_(errors) {}

  void ReadSection(const YAML::Node& node, const std::string& path, Message* message) {
    std::map<std::string, int> lines;  // line of each key read so far
    for (const auto& entry : node) {
      const YAML::Mark mark = entry.first.Mark();
      if (!entry.first.IsScalar()) {
        Error(mark, "", "a key must be plain text");
        continue;
      }
      const std::string& name = entry.first.Scalar();
      const auto [first, is_new] = lines.emplace(name, mark.line + 1);
      if (!is_new) {
        Error(mark, "",
              absl::StrCat("duplicate key \"", name, "\" (first at line ", first->second,
                           "); remove one of them"));
        continue;
      }
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
      if (field == nullptr) {
        Error(mark, "", DescribeUnknownField(root_, message->GetDescriptor(), path, name));
        continue;
      }
      ReadField(entry.second, mark, path.empty() ? name : absl::StrCat(path, ".", name), field,
                message);
    }
  }

  void ReadField(const YAML::Node& node, const YAML::Mark& key_mark, const std::string& path,
                 const FieldDescriptor* field, Message* message) {
    if (node.IsNull()) {
      return Error(key_mark, path,
                   is_file_ ? "has no value; write a value or remove the line"
                            : "has no value; write \"\" for an empty text");
    }
    if (IsSection(field)) {
      if (!node.IsMap()) return Error(node.Mark(), path, "is a section; write keys below it");
      return ReadSection(node, path, message->GetReflection()->MutableMessage(message, field));
    }
    if (IsEntryList(field)) return ReadEntries(node, key_mark, path, field, message);
    if (field->is_repeated()) return ReadList(node, key_mark, path, field, message);
    if (!node.IsScalar()) {
      return Error(key_mark, path,
                   absl::StrCat("is one value, not a list or a section",
                                IsText(field) ? "; write a text with brackets in quotes, as in "
                                                "\"[::1]:9464\""
                                              : ""));
    }
    const absl::Status status = SetScalar(message, field, node.Scalar(), IsQuoted(node));
    if (!status.ok()) return Error(node.Mark(), path, status.message());
    SetOrigin(path, node.Mark());
  }

 private:
  static bool IsQuoted(const YAML::Node& node) { return node.Tag() == "!"; }

  void ReadList(const YAML::Node& node, const YAML::Mark& key_mark, const std::string& path,
                const FieldDescriptor* field, Message* message) {
    std::vector<YAML::Node> elements;
    if (node.IsSequence()) {
      for (const YAML::Node& element : node) elements.push_back(element);
    } else if (node.IsScalar() && !is_file_) {
      elements.push_back(node);
    } else {
      return Error(key_mark, path, "is a list; write [a, b]");
    }
    const int declared = RuleOf(field).max_items();
    const std::size_t limit = declared > 0 ? static_cast<std::size_t>(declared) : 64;
    if (elements.size() > limit) {
      return Error(
          key_mark, path,
          absl::StrCat("list has ", elements.size(), " elements, at most ", limit, " are allowed"));
    }
    const std::unique_ptr<Message> fresh(message->New());
    for (const YAML::Node& element : elements) {
      if (!element.IsScalar()) {
        return Error(element.Mark(), path,
                     absl::StrCat("element is not a plain value", IsText(field) ? kQuoteHint : ""));
      }
      const absl::Status status =
          SetScalar(fresh.get(), field, element.Scalar(), IsQuoted(element));
      if (!status.ok()) return Error(element.Mark(), path, status.message());
    }
    message->GetReflection()->ClearField(message, field);
    message->MergeFrom(*fresh);
    SetOrigin(path, node.Mark());
  }

  // Reads a list whose entries are messages, in flow style ([{id: a}, {id: b}]) or block style. The
  // list replaces the list of lower layers.
  void ReadEntries(const YAML::Node& node, const YAML::Mark& key_mark, const std::string& path,
                   const FieldDescriptor* field, Message* message) {
    if (!node.IsSequence()) return Error(key_mark, path, "is a list; write [{key: value}, ...]");
    const auto limit = static_cast<std::size_t>(RuleOf(field).max_items());
    if (node.size() > limit) {
      return Error(
          key_mark, path,
          absl::StrCat("list has ", node.size(), " elements, at most ", limit, " are allowed"));
    }
    Origins entry_origins;  // discarded: only whole lists have an origin
    LayerReader inner(layer_, is_file_, root_, &entry_origins, errors_);
    inner.in_entry_ = true;
    message->GetReflection()->ClearField(message, field);
    for (std::size_t i = 0; i < node.size(); ++i) {
      const std::string entry_path = absl::StrCat(path, "[", i, "]");
      const YAML::Node element = node[i];
      if (!element.IsMap()) {
        inner.Error(element.Mark(), entry_path, "is not a group of keys; write {key: value}");
        continue;
      }
      Message* entry = message->GetReflection()->AddMessage(message, field);
      inner.ReadSection(element, entry_path, entry);
      inner.CheckRequired(element.Mark(), entry_path, *entry);
    }
    SetOrigin(path, node.Mark());
  }

  // Reports required strings that `entry` lacks.
  void CheckRequired(const YAML::Mark& mark, const std::string& path, const Message& entry) {
    for (int i = 0; i < entry.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = entry.GetDescriptor()->field(i);
      if (!RuleOf(field).required() || !entry.GetReflection()->GetString(entry, field).empty()) {
        continue;
      }
      Error(mark, path, absl::StrCat("has no ", field->name()));
    }
  }

  void SetOrigin(const std::string& path, const YAML::Mark& mark) {
    Origin origin = layer_;
    if (is_file_) {
      origin.line = mark.line + 1;
      origin.column = mark.column + 1;
    }
    (*origins_)[path] = origin;
  }

  void Error(const YAML::Mark& mark, absl::string_view path, absl::string_view text) {
    if (is_file_) {
      errors_->push_back(absl::StrCat(layer_.layer, ":", mark.line + 1, ":", mark.column + 1, ": ",
                                      path, path.empty() ? "" : ": ", text));
    } else {
      // The layer names the list but not the key within an entry.
      const std::string inside = in_entry_ && !path.empty() ? absl::StrCat(path, ": ") : "";
      errors_->push_back(absl::StrCat(layer_.layer, ": ", inside, text));
    }
  }

  const Origin layer_;
  const bool is_file_;
  const Descriptor* const root_;
  Origins* const origins_;
  std::vector<std::string>* const errors_;
  bool in_entry_ = false;
};

void ApplySectionDefaults(Message* message, const std::string& prefix, const Origin& origin,
                          const Descriptor* root, Origins* origins,
                          std::vector<std::string>* errors) {
  const Descriptor* section = message->GetDescriptor();
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    const std::string path = prefix + field->name();
    if (IsSection(field)) {
      ApplySectionDefaults(message->GetReflection()->MutableMessage(message, field), path + ".",
                           origin, root, origins, errors);
      continue;
    }
    (*origins)[path] = origin;
    const std::string& text = RuleOf(field).default_value();
    if (text.empty()) continue;
    LayerReader(origin, /*is_file=*/false, root, origins, errors)
        .ReadField(YAML::Load(text), YAML::Mark(), path, field, message);
  }
}

// Returns the field of a dotted path and sets *message to its section. If there is no such field,
// reports an error and returns null.
const FieldDescriptor* FindPath(absl::string_view path, const std::string& layer, Message** message,
                                std::vector<std::string>* errors) {
  const Descriptor* root = (*message)->GetDescriptor();
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  std::string section_path;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = (*message)->GetDescriptor()->FindFieldByName(names[i]);
    if (field == nullptr) {
      errors->push_back(absl::StrCat(
          layer, ": ",
          DescribeUnknownField(root, (*message)->GetDescriptor(), section_path, names[i])));
      return nullptr;
    }
    const bool last = i + 1 == names.size();
    if (last != !IsSection(field)) {
      errors->push_back(absl::StrCat(
          layer, ": ", path,
          last ? " is a section; name one of its keys" : " names a key inside a single value"));
      return nullptr;
    }
    if (last) return field;
    section_path = section_path.empty() ? names[i] : absl::StrCat(section_path, ".", names[i]);
    *message = (*message)->GetReflection()->MutableMessage(*message, field);
  }
  return nullptr;
}

// Reports text that cannot be a YAML document. Returns true if there was no error.
bool CheckText(absl::string_view document, absl::string_view file_name,
               std::vector<std::string>* errors) {
  if (document.size() > kMaxYamlBytes) {
    errors->push_back(absl::StrCat(file_name, ":1:1: file has ", document.size(),
                                   " bytes, at most ", kMaxYamlBytes, " are read"));
    return false;
  }
  const std::optional<std::size_t> bad = FirstInvalidUtf8(document);
  if (bad) {
    const absl::string_view before = document.substr(0, *bad);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t start = before.rfind('\n');
    const std::size_t column = start == before.npos ? *bad + 1 : *bad - start;
    errors->push_back(absl::StrCat(file_name, ":", line, ":", column, ": invalid UTF-8"));
    return false;
  }
  return true;
}

// Records where a document starts: its `---` marker, if any, and its first node.
class DocumentStart final : public YAML::EventHandler {
 public:
  const YAML::Mark& start() const { return start_; }
  const YAML::Mark& node() const { return node_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    start_ = mark;
    has_node_ = false;
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { RecordNode(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { RecordNode(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    RecordNode(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    RecordNode(mark);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    RecordNode(mark);
  }
  void OnDocumentEnd() override {}
  void OnSequenceEnd() override {}
  void OnMapEnd() override {}

 private:
  void RecordNode(const YAML::Mark& mark) {
    if (!has_node_) node_ = mark;
    has_node_ = true;
  }

  YAML::Mark start_, node_;
  bool has_node_ = false;
};

// Returns the start of the second document, if there is one. YAML::LoadAll cannot be used: at a
// stray comma, yaml-cpp 0.7 returns empty documents forever, which would exhaust memory.
std::optional<DocumentStart> FindSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStart handler;
  if (!parser.HandleNextDocument(handler) || !parser.HandleNextDocument(handler))
    return std::nullopt;
  return handler;
}

// Returns true if `node` is a text, or a list of texts if `is_list`. Null is reported by
// LayerReader.
bool IsTextOrTextList(const YAML::Node& node, bool is_list) {
  if (node.IsScalar() || node.IsNull()) return true;
  return is_list && node.IsSequence() &&
         std::all_of(node.begin(), node.end(), [](const auto& item) { return item.IsScalar(); });
}

// Returns the error for an override that YAML does not read as text: `why`, followed by how to
// quote the value.
std::string QuotingError(absl::string_view path, absl::string_view value, const Origin& origin,
                         const FieldDescriptor* field, absl::string_view why) {
  constexpr std::size_t kMaxShownBytes = 256;
  if (!IsText(field) || RuleOf(field).sensitive() || value.size() > kMaxShownBytes) {
    return std::string(why);
  }
  const bool is_list = field->is_repeated();
  return absl::StrCat(why, "; quote ", is_list ? "each text: " : "the text: ",
                      WriteTexts(origin.layer, path, GuessTexts(value, is_list), is_list));
}

}  // namespace

std::string Origin::ToString() const {
  return line > 0 ? absl::StrCat(layer, ":", line, ":", column) : layer;
}

std::string OriginOf(const Origins& origins, const std::string& path) {
  const auto origin = origins.find(path);
  return origin == origins.end() ? "default" : origin->second.ToString();
}

void ApplyDefaults(Message* config, Origins* origins, std::vector<std::string>* errors) {
  ApplySectionDefaults(config, "", Origin{.layer = "default"}, config->GetDescriptor(), origins,
                       errors);
}

bool ReadYaml(absl::string_view text, absl::string_view file_name, Message* config,
              Origins* origins, std::vector<std::string>* errors) {
  if (!CheckText(text, file_name, errors)) return false;
  try {
    if (const std::optional<DocumentStart> second = FindSecondDocument(std::string(text))) {
      const bool has_start_marker = second->start().pos != second->node().pos;
      errors->push_back(absl::StrCat(
          file_name, ":", second->node().line + 1, ":", second->node().column + 1,
          has_start_marker ? ": second YAML document; a configuration file has exactly one"
                           : ": this text is after the end of the YAML document"));
      return false;
    }
    const YAML::Node document = YAML::Load(std::string(text));
    if (document.IsNull()) return true;
    if (!document.IsMap()) {
      const YAML::Mark mark = document.Mark();
      errors->push_back(absl::StrCat(file_name, ":", mark.line + 1, ":", mark.column + 1,
                                     ": the file is not a map of sections"));
      return false;
    }
    LayerReader(Origin{.layer = std::string(file_name)}, /*is_file=*/true, config->GetDescriptor(),
                origins, errors)
        .ReadSection(document, "", config);
    return true;
  } catch (const YAML::Exception& error) {
    errors->push_back(absl::StrCat(file_name, ":", error.mark.line + 1, ":", error.mark.column + 1,
                                   ": ", error.msg));
    return false;
  }
}

void ReadOverride(absl::string_view path, absl::string_view value, const Origin& origin,
                  Message* config, Origins* origins, std::vector<std::string>* errors) {
  // The layer name of --set does not contain the key, so the key is added.
  Origin place = origin;
  if (origin.layer == "--set") place.layer = absl::StrCat("--set ", path);
  const Descriptor* root = config->GetDescriptor();
  Message* message = config;
  const FieldDescriptor* field = FindPath(path, place.layer, &message, errors);
  if (field == nullptr) return;
  if (const std::optional<std::size_t> bad = FirstInvalidUtf8(value)) {
    errors->push_back(
        absl::StrCat(place.layer, ": the value is not valid UTF-8 at byte ", *bad + 1));
    return;
  }
  std::vector<std::string> found;
  Origins changed;
  const auto refuse = [&](absl::string_view why) {
    found.push_back(absl::StrCat(place.layer, ": ", QuotingError(path, value, origin, field, why)));
  };
  try {
    const YAML::Node node = YAML::Load(std::string(value));
    if (FindSecondDocument(std::string(value)).has_value()) {
      refuse("the value is more than one YAML value");
    } else if (IsText(field) && !IsTextOrTextList(node, field->is_repeated())) {
      refuse(field->is_repeated() ? "YAML reads the value as a list with elements that are not text"
                                  : "YAML reads the value as a list or a section, not as a text");
    } else {
      LayerReader(place, /*is_file=*/false, root, &changed, &found)
          .ReadField(node, YAML::Mark(), std::string(path), field, message);
    }
  } catch (const YAML::Exception& error) {
    refuse(absl::StrCat("the value is not YAML: ", error.msg));
  }
  if (!changed.empty()) (*origins)[std::string(path)] = origin;
  errors->insert(errors->end(), found.begin(), found.end());
}

std::vector<std::string> AllPaths(const Message& config) {
  std::vector<std::string> paths;
  CollectPaths(config.GetDescriptor(), "", &paths);
  return paths;
}

}  // namespace quire::server
