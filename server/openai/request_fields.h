#pragma once

// The table of all fields of request bodies, and the check of a body against it.
//
//   QUIRE_RETURN_IF_ERROR(CheckFields(RequestFields(), body, kChatBody, limits.on_unknown_field));
//   {"temperture": 1}  -> "temperture is not a known field; did you mean temperature?"
//   {"audio": {}}  -> "audio is not supported; the model reads and writes text only"
//
// Place:      below the readers of bodies, which read only supported fields.
// Invariants: every field is supported, refused by name, or accepted without a meaning for this
//             server. docs/openai.md lists the table, and a test compares the two.
// Threads:    pure functions, except for the caller's handler of unknown fields.
// Sources:    openai 3.54.0 (PyPI); vLLM, llama.cpp and Ollama at the commits named in
//             tests/testdata/request_fields.json.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"

namespace quire::server {

// The objects whose members the table lists, as bits.
enum FieldOwner : std::uint32_t {
  kCompletionBody = 1U << 0,
  kChatBody = 1U << 1,
  kEmbeddingBody = 1U << 2,
  kScoreBody = 1U << 3,
  kRerankBody = 1U << 4,
  kClassifyBody = 1U << 5,
  kStreamOptions = 1U << 6,
  kResponseFormat = 1U << 7,
  kSchemaWrapper = 1U << 8,  // response_format.json_schema, if it has the member schema
  kStructuredOutputs = 1U << 9,
  kMessage = 1U << 10,
  kContentPart = 1U << 11,
  kToolCall = 1U << 12,
  kCalledFunction = 1U << 13,  // {"name", "arguments"}
  kTool = 1U << 14,
  kFunction = 1U << 15,  // {"name", "description", "parameters", "strict"}
  kToolChoice = 1U << 16,
  kAllowedTools = 1U << 17,
  kNamedTool = 1U << 18,  // {"type": "function", "function": {"name"}}
  kName = 1U << 19,       // {"name"}
  kDocument = 1U << 20,   // {"text"}
};

enum class FieldOutcome : std::uint8_t { kSupported, kRefused, kNoMeaning };

// JSON types, as bits.
enum FieldType : std::uint8_t {
  kBoolean = 1U << 0,
  kNumber = 1U << 1,
  kString = 1U << 2,
  kArray = 1U << 3,
  kObject = 1U << 4,
};

struct RequestField {
  absl::string_view name;
  std::uint32_t owners = 0;  // FieldOwner bits
  FieldOutcome outcome = FieldOutcome::kSupported;
  // Supported fields: the owner of the members of this object, or of each object in this list. 0:
  // the reader checks the value.
  std::uint32_t members = 0;
  // Supported fields: an object without this member is not checked.
  absl::string_view members_if = "";
  // Fields without meaning: the accepted types.
  std::uint8_t types = 0;
  // Refused fields: the end of the error message, and a JSON list of values that are accepted
  // because they turn the feature off.
  absl::string_view remedy = "";
  absl::string_view neutral = "[]";
};

constexpr RequestField Supported(absl::string_view name, std::uint32_t owners,
                                 std::uint32_t members = 0, absl::string_view members_if = "") {
  return {.name = name, .owners = owners, .members = members, .members_if = members_if};
}

constexpr RequestField NoMeaning(absl::string_view name, std::uint32_t owners, unsigned types) {
  return {.name = name,
          .owners = owners,
          .outcome = FieldOutcome::kNoMeaning,
          .types = static_cast<std::uint8_t>(types)};
}

constexpr RequestField Refused(absl::string_view name, std::uint32_t owners,
                               absl::string_view remedy, absl::string_view neutral = "[]") {
  return {.name = name,
          .owners = owners,
          .outcome = FieldOutcome::kRefused,
          .remedy = remedy,
          .neutral = neutral};
}

// The fields of one API, by name.
class FieldTable {
 public:
  explicit FieldTable(std::span<const RequestField> fields);

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  // Returns null if `owner` has no such field.
  const RequestField* Find(std::uint32_t owner, absl::string_view name) const;

 private:
  const std::span<const RequestField> fields_;
  absl::flat_hash_map<absl::string_view, std::vector<const RequestField*>> by_name_;
};

// The fields of the bodies that FieldOwner lists. Other APIs have other tables and owners.
const FieldTable& RequestFields();

// The fields of one body, which are the fields of `owner` in a table.
struct BodyFields {
  const FieldTable& (*table)() = nullptr;  // null: not described
  std::uint32_t owner = 0;
};

// Called with the path of an unknown field, if unknown fields are accepted.
using UnknownFieldHandler = std::function<void(absl::string_view path)>;

// Checks all members of `object` and of the objects in it that the table describes. Null members
// count as absent. Unknown members are refused, or passed to `on_unknown` if it is set. Errors are
// INVALID_ARGUMENT / BAD_PARAMETER with the metadata `field` and `param`, the path of the member.
// REQUIRES: object.is_object().
absl::Status CheckFields(const FieldTable& table, const formats::JsonValue& object,
                         std::uint32_t owner, const UnknownFieldHandler& on_unknown);

}  // namespace quire::server
