#pragma once

// Parses untrusted JSON of files and requests. Every error names the field.
//
// Place:      below the readers of files and of the OpenAI API, which add the file's name or the
//             error reason. base/json_text.h writes JSON. text/chat/jinja/json.h reads the values
//             of chat templates, because it keeps the order of keys.
// Invariants: rejects invalid UTF-8, unpaired surrogates, duplicate keys, documents that exceed
//             JsonLimits, NaN, infinities and everything else that RFC 8259 forbids.
// Threads:    a parsed document is immutable.
// Lifetime:   a JsonValue is a view; the JsonDocument must outlive it.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::formats {

inline constexpr int kMaxJsonDepth = 64;

struct JsonLimits {
  int max_depth = kMaxJsonDepth;  // nested containers; at most kMaxJsonDepth
  // Maximum number of keys and values other than numbers. Numbers are not counted, because lists of
  // token ids are long and a number takes little more memory than its text.
  std::int64_t max_nodes = std::numeric_limits<std::int64_t>::max();
};

// A value and its path in the document, such as `model.merges[3]`.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& raw() const { return *value_; }
  const std::string& path() const { return path_; }

  bool is_null() const;
  bool is_string() const;
  bool is_object() const;
  bool is_array() const;
  bool is_number() const;

  // If the value has another type, each returns INVALID_ARGUMENT with the path and both types.
  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<bool> AsBool() const;
  // Accepts an integer in [low, high].
  absl::StatusOr<std::int64_t> AsInteger(std::int64_t low, std::int64_t high) const;
  // Accepts any number.
  absl::StatusOr<double> AsNumber() const;
  absl::Status CheckObject() const;
  absl::Status CheckArray() const;

  // Access to the elements of an array. REQUIRES: is_array().
  std::size_t size() const;
  JsonValue At(std::size_t index) const;

  // Returns the member, which may be a JSON null, or nullopt if the member is absent. REQUIRES:
  // is_object().
  std::optional<JsonValue> Find(absl::string_view key) const;
  // Like Find, but returns nullopt also for a null member.
  std::optional<JsonValue> FindNonNull(absl::string_view key) const;
  // Like Find, but an absent member is an error that names `path.key`. Also fails if this value is
  // not an object.
  absl::StatusOr<JsonValue> Get(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  // Return the default (or nullopt) for absent and null members.
  absl::StatusOr<bool> GetBoolOr(absl::string_view key, bool default_value) const;
  absl::StatusOr<std::optional<std::string>> GetOptionalString(absl::string_view key) const;

  // Returns `path.key`, or `key` at the top level.
  std::string PathOf(absl::string_view key) const;
  // Returns INVALID_ARGUMENT "<path> <problem>".
  absl::Status Error(absl::string_view problem) const;

 private:
  absl::Status WrongKind(absl::string_view wanted) const;

  const nlohmann::json* value_;
  std::string path_;
};

class JsonDocument {
 public:
  // If `text` is not valid or exceeds a limit, returns INVALID_ARGUMENT with the path of the
  // innermost open value and the byte offset.
  static absl::StatusOr<JsonDocument> Parse(absl::string_view text, const JsonLimits& limits = {});

  ~JsonDocument();
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;

  JsonValue root() const;

 private:
  // Frees a document without additional memory.
  struct Deleter {
    void operator()(nlohmann::json* root) const;
  };
  using Root = std::unique_ptr<nlohmann::json, Deleter>;

  explicit JsonDocument(Root root);

  Root root_;  // on the heap, so that moves keep JsonValues valid
};

}  // namespace quire::formats
