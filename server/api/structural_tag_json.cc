#include "server/api/structural_tag_json.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/ordered_json.h"
#include "server/api/status_mapping.h"

namespace quire::server {
namespace {

using formats::OrderedJson;

absl::Status BadValue(absl::string_view field, const OrderedJson& value, absl::string_view range) {
  return BadParameter(field, formats::OrderedText(value), range);
}

// Reads the members of a JSON object. Errors name a member by its path.
class JsonObjectReader {
 public:
  JsonObjectReader(const OrderedJson& json, std::string field)
      : json_(json), field_(std::move(field)) {}

  // Refuses members other than `known`.
  absl::Status CheckKnown(std::initializer_list<absl::string_view> known) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(known, key) == known.end()) {
        return BadValue(PathOf(key), value, "absent");
      }
    }
    return absl::OkStatus();
  }
  std::string PathOf(absl::string_view key) const { return absl::StrCat(field_, ".", key); }
  bool Has(const char* key) const { return json_.contains(key); }
  const OrderedJson& At(const char* key) const { return json_.at(key); }
  bool IsText(const char* key, absl::string_view text) const {
    return Has(key) && At(key) == std::string(text);
  }
  // Returns the error of a member that is missing or out of range.
  absl::Status BadMember(const char* key, absl::string_view range) const {
    return Has(key) ? BadValue(PathOf(key), At(key), range)
                    : BadParameter(PathOf(key), "absent", range);
  }

  absl::Status ReadText(const char* key, std::string* text) const {
    if (!Has(key) || !At(key).is_string()) return BadMember(key, "a string");
    *text = At(key).get<std::string>();
    return absl::OkStatus();
  }
  // Leaves `value` unchanged if the member is absent.
  absl::Status ReadBool(const char* key, bool* value) const {
    if (!Has(key)) return absl::OkStatus();
    if (!At(key).is_boolean()) return BadMember(key, "true or false");
    *value = At(key).get<bool>();
    return absl::OkStatus();
  }
  // Calls `read` with each element and its path.
  template <typename Read>
  absl::Status ForEach(const char* key, Read read) const {
    if (!Has(key) || !At(key).is_array()) return BadMember(key, "a list");
    for (std::size_t i = 0; i < At(key).size(); ++i) {
      QUIRE_RETURN_IF_ERROR(read(At(key)[i], absl::StrCat(PathOf(key), "[", i, "]")));
    }
    return absl::OkStatus();
  }
  // Calls `read` with each element, which must be an object.
  template <typename Read>
  absl::Status ForEachObject(const char* key, Read read) const {
    return ForEach(key, [&](const OrderedJson& value, const std::string& path) {
      if (!value.is_object()) return BadValue(path, value, "an object");
      return read(JsonObjectReader(value, path));
    });
  }

 private:
  const OrderedJson& json_;
  const std::string field_;
};

absl::Status ReadMarkers(const JsonObjectReader& tag, v1::StructuralTag* message) {
  QUIRE_RETURN_IF_ERROR(tag.ReadText("begin", message->mutable_begin()));
  return tag.ReadText("end", message->mutable_end());
}

// Reads {"begin", "schema", "end"}.
absl::Status ReadStructure(const JsonObjectReader& tag, v1::StructuralTag* message) {
  QUIRE_RETURN_IF_ERROR(tag.CheckKnown({"begin", "schema", "end"}));
  QUIRE_RETURN_IF_ERROR(ReadMarkers(tag, message));
  if (!tag.Has("schema")) return tag.BadMember("schema", "a schema");
  message->set_json_schema(formats::OrderedText(tag.At("schema")));
  return absl::OkStatus();
}

absl::Status ReadContent(const JsonObjectReader& content, v1::StructuralTag* message) {
  if (content.IsText("type", "json_schema")) {
    QUIRE_RETURN_IF_ERROR(content.CheckKnown({"type", "json_schema"}));
    if (!content.Has("json_schema")) return content.BadMember("json_schema", "a schema");
    message->set_json_schema(formats::OrderedText(content.At("json_schema")));
    return absl::OkStatus();
  }
  if (content.IsText("type", "regex")) {
    QUIRE_RETURN_IF_ERROR(content.CheckKnown({"type", "pattern"}));
    return content.ReadText("pattern", message->mutable_regex());
  }
  if (content.IsText("type", "grammar")) {
    QUIRE_RETURN_IF_ERROR(content.CheckKnown({"type", "grammar"}));
    return content.ReadText("grammar", message->mutable_ebnf_grammar());
  }
  return content.BadMember("type", "json_schema, regex or grammar");
}

// Reads {"type": "tag", "begin", "content", "end"}.
absl::Status ReadTag(const JsonObjectReader& tag, v1::StructuralTag* message) {
  QUIRE_RETURN_IF_ERROR(tag.CheckKnown({"type", "begin", "content", "end"}));
  if (tag.Has("type") && !tag.IsText("type", "tag")) return tag.BadMember("type", "tag");
  QUIRE_RETURN_IF_ERROR(ReadMarkers(tag, message));
  if (!tag.Has("content") || !tag.At("content").is_object()) {
    return tag.BadMember("content", "an object");
  }
  return ReadContent(JsonObjectReader(tag.At("content"), tag.PathOf("content")), message);
}

absl::Status ReadTriggers(const JsonObjectReader& object, v1::StructuralTags* tags) {
  return object.ForEach("triggers", [&](const OrderedJson& text, const std::string& path) {
    if (!text.is_string()) return BadValue(path, text, "a string");
    tags->add_triggers(text.get<std::string>());
    return absl::OkStatus();
  });
}

absl::Status ReadStructures(const JsonObjectReader& object, v1::StructuralTags* tags) {
  QUIRE_RETURN_IF_ERROR(object.CheckKnown({"type", "structures", "triggers"}));
  QUIRE_RETURN_IF_ERROR(ReadTriggers(object, tags));
  return object.ForEachObject("structures", [&](const JsonObjectReader& tag) {
    return ReadStructure(tag, tags->add_tags());
  });
}

absl::Status ReadTriggeredTags(const JsonObjectReader& format, v1::StructuralTags* tags) {
  QUIRE_RETURN_IF_ERROR(
      format.CheckKnown({"type", "triggers", "tags", "at_least_one", "stop_after_first"}));
  QUIRE_RETURN_IF_ERROR(ReadTriggers(format, tags));
  bool at_least_one = false, stop_after_first = false;
  QUIRE_RETURN_IF_ERROR(format.ReadBool("at_least_one", &at_least_one));
  QUIRE_RETURN_IF_ERROR(format.ReadBool("stop_after_first", &stop_after_first));
  tags->set_at_least_one(at_least_one);
  tags->set_stop_after_first(stop_after_first);
  return format.ForEachObject(
      "tags", [&](const JsonObjectReader& tag) { return ReadTag(tag, tags->add_tags()); });
}

}  // namespace

absl::Status ReadStructuralTagJson(absl::string_view text, absl::string_view field,
                                   v1::StructuralTags* tags) {
  // Limits depth and size, and refuses duplicate keys.
  const auto checked = formats::JsonDocument::Parse(text);
  if (!checked.ok()) {
    return BadParameter(field, text, absl::StrCat("JSON: ", checked.status().message()));
  }
  const auto json = OrderedJson::parse(text.begin(), text.end());
  if (!json.is_object()) return BadValue(field, json, "an object");
  const JsonObjectReader object(json, std::string(field));
  if (!object.IsText("type", "structural_tag")) return object.BadMember("type", "structural_tag");
  if (object.Has("structures")) return ReadStructures(object, tags);
  QUIRE_RETURN_IF_ERROR(object.CheckKnown({"type", "format"}));
  if (!object.Has("format") || !object.At("format").is_object()) {
    return object.BadMember("format", "an object, or absent beside structures");
  }
  const JsonObjectReader format(object.At("format"), object.PathOf("format"));
  if (!format.IsText("type", "triggered_tags")) return format.BadMember("type", "triggered_tags");
  return ReadTriggeredTags(format, tags);
}

}  // namespace quire::server
