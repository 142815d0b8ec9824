#include "formats/json_value.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::formats {
namespace {

using nlohmann::json;

// Returns the kind of a value for messages, such as "a string".
std::string KindName(const json& value) {
  if (value.is_null()) return "null";
  return absl::StrCat(value.is_structured() ? "an " : "a ", value.type_name());
}

// Builds the tree from parser events. Unlike nlohmann's own builder, it rejects duplicate keys,
// limits the depth, and tracks the current path for error messages.
class TreeBuilder : public json::json_sax_t {
 public:
  // REQUIRES: `root` is null.
  TreeBuilder(const JsonLimits& limits, json* root) : limits_(limits), root_(*root) {}

  const std::string& error() const { return error_; }

  bool null() override { return Count() && Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Count() && Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) override { return Count() && Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override {
    return Fail("has a binary value, which JSON does not support");
  }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (!Count()) return false;
    Level& level = open_.back();
    level.key = std::move(name);
    if (level.container->contains(level.key)) {
      const std::string key_name = std::move(level.key);
      level.key.clear();
      return Fail(absl::StrCat("has the key \"", key_name, "\" twice"));
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text starts with "[json.exception.parse_error.101] ", which is removed.
    absl::string_view reason = error.what();
    const std::size_t bracket = reason.find("] ");
    if (bracket != absl::string_view::npos) reason.remove_prefix(bracket + 2);
    return Fail(absl::StrCat("is not JSON at byte ", position, ": ", reason));
  }

 private:
  struct Level {
    json* container;
    std::string key;  // key of the member that is being read
  };

  // Returns the path of the innermost open container.
  std::string Path() const {
    std::string path;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i].container->is_array()) {
        absl::StrAppend(&path, "[", open_[i].container->size() - 1, "]");
      } else {
        absl::StrAppend(&path, path.empty() ? "" : ".", open_[i].key);
      }
    }
    return path;
  }

  bool Fail(absl::string_view problem) {
    if (!error_.empty()) return false;
    std::string path = Path();
    if (path.size() > kMaxPathBytes) path = path.substr(0, kMaxPathBytes) + "...";
    error_ =
        path.empty() ? absl::StrCat("the document ", problem) : absl::StrCat(path, " ", problem);
    return false;
  }

  bool Count() {
    if (++nodes_ <= limits_.max_nodes) return true;
    return Fail(absl::StrCat("exceeds the limit of ", limits_.max_nodes,
                             " keys and values in the document, numbers not counted"));
  }

  template <typename T>
  json* Add(T&& value) {
    if (open_.empty()) {
      root_ = json(std::forward<T>(value));
      return &root_;
    }
    Level& level = open_.back();
    if (level.container->is_array()) {
      level.container->push_back(json(std::forward<T>(value)));
      return &level.container->back();
    }
    json& member = (*level.container)[level.key];
    member = json(std::forward<T>(value));
    return &member;
  }

  bool Open(json container) {
    if (!Count()) return false;
    json* added = Add(std::move(container));
    open_.push_back({added, {}});
    if (open_.size() > static_cast<std::size_t>(limits_.max_depth)) {
      return Fail(absl::StrCat("nests more than ", limits_.max_depth, " containers"));
    }
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  static constexpr std::size_t kMaxPathBytes = 200;

  const JsonLimits limits_;
  json& root_;
  std::int64_t nodes_ = 0;
  std::vector<Level> open_;
  std::string error_;
};

// Empties the containers of `value` from the inside out. The destructor of nlohmann::json first
// moves the elements of a non-empty container to a new vector. A document of token ids would
// therefore need twice its memory while it is freed. Recursion is at most kMaxJsonDepth deep.
void FreeContainers(json& value) {
  if (value.is_array()) {
    for (json& element : value) FreeContainers(element);
    value.clear();
  } else if (value.is_object()) {
    for (auto& member : value.get_ref<json::object_t&>()) FreeContainers(member.second);
    value.clear();
  }
}

}  // namespace

bool JsonValue::is_null() const {
  return value_->is_null();
}
bool JsonValue::is_string() const {
  return value_->is_string();
}
bool JsonValue::is_object() const {
  return value_->is_object();
}
bool JsonValue::is_array() const {
  return value_->is_array();
}
bool JsonValue::is_number() const {
  return value_->is_number();
}

absl::Status JsonValue::Error(absl::string_view problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_.empty() ? "the document" : path_, " ", problem));
}

absl::Status JsonValue::WrongKind(absl::string_view wanted) const {
  return Error(absl::StrCat("is ", KindName(*value_), ", must be ", wanted));
}

absl::StatusOr<std::string> JsonValue::AsString() const {
  if (!value_->is_string()) return WrongKind("a string");
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonValue::AsBool() const {
  if (!value_->is_boolean()) return WrongKind("true or false");
  return value_->get_ref<const bool&>();
}

absl::StatusOr<std::int64_t> JsonValue::AsInteger(std::int64_t low, std::int64_t high) const {
  if (!value_->is_number_integer()) return WrongKind("an integer");
  const bool too_large =
      value_->is_number_unsigned() &&
      value_->get_ref<const json::number_unsigned_t&>() > static_cast<std::uint64_t>(high);
  const std::int64_t value = too_large ? 0 : value_->get<std::int64_t>();
  if (too_large || value < low || value > high) {
    return Error(absl::StrCat("is ", JsonText(*value_), ", must be in [", low, ", ", high, "]"));
  }
  return value;
}

absl::StatusOr<double> JsonValue::AsNumber() const {
  if (!value_->is_number()) return WrongKind("a number");
  return value_->get<double>();
}

absl::Status JsonValue::CheckObject() const {
  return value_->is_object() ? absl::OkStatus() : WrongKind("an object");
}

absl::Status JsonValue::CheckArray() const {
  return value_->is_array() ? absl::OkStatus() : WrongKind("an array");
}

std::size_t JsonValue::size() const {
  return value_->size();
}

JsonValue JsonValue::At(std::size_t index) const {
  return JsonValue((*value_)[index], absl::StrCat(path_, "[", index, "]"));
}

std::string JsonValue::PathOf(absl::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

std::optional<JsonValue> JsonValue::Find(absl::string_view key) const {
  const auto it = value_->find(std::string(key));
  if (it == value_->end()) return std::nullopt;
  return JsonValue(*it, PathOf(key));
}

std::optional<JsonValue> JsonValue::FindNonNull(absl::string_view key) const {
  std::optional<JsonValue> member = Find(key);
  if (member && member->is_null()) member.reset();
  return member;
}

absl::StatusOr<JsonValue> JsonValue::Get(absl::string_view key) const {
  QUIRE_RETURN_IF_ERROR(CheckObject());
  std::optional<JsonValue> member = Find(key);
  if (!member) return absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is missing"));
  return *std::move(member);
}

absl::StatusOr<std::string> JsonValue::GetString(absl::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const JsonValue member, Get(key));
  return member.AsString();
}

absl::StatusOr<bool> JsonValue::GetBool(absl::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const JsonValue member, Get(key));
  return member.AsBool();
}

absl::StatusOr<bool> JsonValue::GetBoolOr(absl::string_view key, bool default_value) const {
  QUIRE_RETURN_IF_ERROR(CheckObject());
  const std::optional<JsonValue> member = FindNonNull(key);
  if (!member) return default_value;
  return member->AsBool();
}

absl::StatusOr<std::optional<std::string>> JsonValue::GetOptionalString(
    absl::string_view key) const {
  QUIRE_RETURN_IF_ERROR(CheckObject());
  const std::optional<JsonValue> member = FindNonNull(key);
  if (!member) return std::optional<std::string>();
  QUIRE_ASSIGN_OR_RETURN(std::string text, member->AsString());
  return std::optional<std::string>(std::move(text));
}

absl::StatusOr<JsonDocument> JsonDocument::Parse(absl::string_view text, const JsonLimits& limits) {
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("the document is not UTF-8 at byte ", *offset));
  }
  Root root(new json());
  TreeBuilder builder(limits, root.get());
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.error());
  }
  return JsonDocument(std::move(root));
}

void JsonDocument::Deleter::operator()(json* root) const {
  FreeContainers(*root);
  delete root;
}

JsonDocument::JsonDocument(Root root) : root_(std::move(root)) {}
JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;

JsonValue JsonDocument::root() const {
  return JsonValue(*root_, "");
}

}  // namespace quire::formats
