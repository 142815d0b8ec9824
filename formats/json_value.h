#pragma once

// The one reader of JSON that others wrote, files and requests: every error names the field.
//
// Place:      below the readers of files and of OpenAI's API, which add the file's name or the
//             error's reason. The writer is base/json_text.h. What a chat template is given is read
//             by text/chat/jinja/json.h, since its values keep the order of keys.
// Invariants: refused are text that is not UTF-8, half surrogate pairs, duplicate keys, more than
//             JsonLimits allows, NaN, infinities and whatever else RFC 8259 lacks. Nothing is
//             allocated to give a document back, nor one that memory did not suffice for.
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
  // Keys and values, numbers aside: lists of token ids are long, and a number takes little more
  // memory than text.
  std::int64_t max_nodes = std::numeric_limits<std::int64_t>::max();
};

// A value and the path at which the document has it, such as `model.merges[3]`.
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

  // Each returns INVALID_ARGUMENT that names the path and both kinds when the value is of another
  // kind.
  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<bool> AsBool() const;
  // An integer in [low, high].
  absl::StatusOr<std::int64_t> AsInteger(std::int64_t low, std::int64_t high) const;
  // Any number.
  absl::StatusOr<double> AsNumber() const;
  absl::Status CheckObject() const;
  absl::Status CheckArray() const;

  // Elements of an array. REQUIRES: is_array().
  std::size_t size() const;
  JsonValue At(std::size_t index) const;

  // Members of an object: absent, or present (null included). REQUIRES: is_object().
  std::optional<JsonValue> Find(absl::string_view key) const;
  // The same, where null means absent.
  std::optional<JsonValue> FindSet(absl::string_view key) const;
  // The same, but absent is an error that names `path.key`. Also fails if this is no object.
  absl::StatusOr<JsonValue> Get(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  // Absent and null both give the default.
  absl::StatusOr<bool> GetBoolOr(absl::string_view key, bool default_value) const;
  absl::StatusOr<std::optional<std::string>> GetOptionalString(absl::string_view key) const;

  // `path.key`, or `key` at the top.
  std::string PathOf(absl::string_view key) const;
  // INVALID_ARGUMENT "<path> <problem>".
  absl::Status Error(absl::string_view problem) const;

 private:
  absl::Status WrongKind(absl::string_view wanted) const;

  const nlohmann::json* value_;
  std::string path_;
};

class JsonDocument {
 public:
  // Errors: INVALID_ARGUMENT with the path of the innermost open value and the byte offset.
  static absl::StatusOr<JsonDocument> Parse(absl::string_view text, const JsonLimits& limits = {});

  ~JsonDocument();
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;

  JsonValue root() const;

 private:
  struct Deleter {
    void operator()(nlohmann::json* root) const;
  };
  using Root = std::unique_ptr<nlohmann::json, Deleter>;

  explicit JsonDocument(Root root);

  Root root_;
};

}  // namespace quire::formats
