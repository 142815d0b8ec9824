#include "text/chat/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::text::jinja {
namespace {

// Builds a value from parser events. A handler that returns false stops the parser.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const TextHook& text, JsonBudget* budget)
      : text_(text),
        budget_(budget),
        max_depth_(budget == nullptr ? kMaxJsonDepth : budget->limits.max_depth) {}

  absl::StatusOr<Value> Take() {
    if (!error_.ok()) return error_;
    return std::move(result_);
  }

  bool null() override { return AddLeaf(Value::None()); }
  bool boolean(bool value) override { return AddLeaf(Value::Bool(value)); }
  bool number_integer(std::int64_t value) override { return AddLeaf(Value::Int(value)); }
  bool number_unsigned(std::uint64_t value) override {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Stop(absl::StrCat("the number ", value, " does not fit 64 bits"));
    }
    return AddLeaf(Value::Int(static_cast<std::int64_t>(value)));
  }
  bool number_float(double value, const std::string& digits) override {
    if (digits.find_first_of(".eE") == std::string::npos) {
      return Stop(absl::StrCat("the number ", digits.substr(0, 40), " does not fit 64 bits"));
    }
    if (!std::isfinite(value)) return Stop("a number is not finite");
    return AddLeaf(Value::Float(value));
  }
  bool string(std::string& value) override {
    return AddLeaf(Value::String(text_ ? text_(std::move(value)) : std::move(value)));
  }
  bool binary(nlohmann::json::binary_t&) override { return Stop("binary data"); }
  bool start_object(std::size_t) override { return Open(true); }
  bool start_array(std::size_t) override { return Open(false); }
  bool key(std::string& value) override {
    if (!CountNode()) return false;
    open_.back().key = text_ ? text_(std::move(value)) : std::move(value);
    return true;
  }
  bool end_object() override {
    Value value = std::move(open_.back().map).Build();
    open_.pop_back();
    return Add(std::move(value));
  }
  bool end_array() override {
    absl::StatusOr<Value> list = MakeList(std::move(open_.back().items));
    open_.pop_back();
    return list.ok() ? Add(*std::move(list)) : Stop(list.status().message());
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return Stop(absl::StrCat("not JSON at byte ", position));
  }

 private:
  struct Container {
    bool is_map = false;
    std::string key;
    MapBuilder map;
    std::vector<Value> items;
  };

  bool Stop(absl::string_view problem) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(problem);
    return false;
  }

  bool CountNode() {
    if (budget_ == nullptr || --budget_->nodes_left >= 0) return true;
    return Stop(absl::StrCat("too large: the conversation has more than ",
                             budget_->limits.max_nodes,
                             " keys and values (limits.max_json_nodes)"));
  }

  bool Open(bool is_map) {
    if (!CountNode()) return false;
    if (open_.size() == static_cast<std::size_t>(max_depth_)) {
      return Stop(absl::StrCat("nested more than ", max_depth_, " deep (limits.max_json_depth)"));
    }
    open_.emplace_back();
    open_.back().is_map = is_map;
    return true;
  }

  bool AddLeaf(Value value) { return CountNode() && Add(std::move(value)); }

  bool Add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
      return true;
    }
    Container& container = open_.back();
    if (!container.is_map) {
      container.items.push_back(std::move(value));
      return true;
    }
    const absl::Status set = container.map.Set(container.key, std::move(value));
    return set.ok() || Stop(set.message());
  }

  const TextHook& text_;
  JsonBudget* const budget_;
  const int max_depth_;
  std::vector<Container> open_;
  Value result_;
  absl::Status error_;
};

class Writer {
 public:
  Writer(const JsonStyle& style, std::size_t limit) : style_(style), limit_(limit) {}

  absl::Status Write(const Value& value, std::size_t level) {
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        break;
      case Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
        absl::StrAppend(&out, value.as_int());
        break;
      case Kind::kFloat:
        WriteNumber(value.as_float());
        break;
      case Kind::kString:
        WriteText(value.as_string());
        break;
      case Kind::kMap:
        return WriteMap(*value.as_map(), level);
      case Kind::kSequence: {
        if (!IsListOrTuple(value)) return NotJson(value);
        const std::vector<Value>& items = value.as_sequence()->items;
        return WriteItems("[]", items.size(), level,
                          [&](std::size_t i) { return Write(items[i], level + 1); });
      }
      default:
        return NotJson(value);
    }
    return absl::OkStatus();
  }

  std::string out;

 private:
  static absl::Status NotJson(const Value& value) {
    if (value.is_undefined()) return value.UndefinedError();
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type '", TypeName(value), "' cannot be written as JSON"));
  }

  void WriteNumber(double value) {
    if (std::isnan(value)) {
      out += "NaN";
    } else if (std::isinf(value)) {
      out += value < 0 ? "-Infinity" : "Infinity";
    } else {
      out += FloatText(value);
    }
  }

  void WriteText(absl::string_view text) {
    out += '"';
    for (std::size_t i = 0; i < text.size();) {
      const Utf8Char c = DecodeUtf8At(text, i);
      WriteChar(c.code_point, text.substr(i, c.size_bytes));
      i += c.size_bytes;
    }
    out += '"';
  }

  void WriteChar(char32_t c, absl::string_view utf8) {
    constexpr absl::string_view kEscaped = "\"\\\n\r\t\f\b";
    constexpr absl::string_view kLetters = "\"\\nrtfb";
    const auto code = static_cast<std::uint32_t>(c);
    if (code < 0x20 || c == '"' || c == '\\') {
      const std::size_t known = kEscaped.find(static_cast<char>(c));
      if (known == absl::string_view::npos) {
        absl::StrAppendFormat(&out, "\\u%04x", code);
      } else {
        absl::StrAppend(&out, "\\", kLetters.substr(known, 1));
      }
      return;
    }
    // The noncharacters that chat_marker.h inserts stay unescaped, so that they are found again.
    const bool is_mark = c >= 0xFDD0 && c <= 0xFDEF;
    if (!style_.ascii_only || code <= 0x7E || is_mark) {
      out.append(utf8.data(), utf8.size());
    } else if (code <= 0xFFFF) {
      absl::StrAppendFormat(&out, "\\u%04x", code);
    } else {
      absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                            0xDC00 + ((code - 0x10000) & 0x3FF));
    }
  }

  void BreakLine(std::size_t level) {
    if (!style_.indent) return;
    out += '\n';
    for (std::size_t i = 0; i < level; ++i) out += *style_.indent;
  }

  absl::Status CheckSize() const {
    if (out.size() <= limit_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the template renders more than ", limit_, " bytes (chat.max_render_bytes)"));
  }

  // Calls `write_item(i)` for each item, with separators between the items and brackets around the
  // items.
  template <typename WriteItem>
  absl::Status WriteItems(absl::string_view brackets, std::size_t count, std::size_t level,
                          WriteItem write_item) {
    out += brackets[0];
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out += style_.item_separator;
      BreakLine(level + 1);
      QUIRE_RETURN_IF_ERROR(write_item(i));
      QUIRE_RETURN_IF_ERROR(CheckSize());
    }
    if (count > 0) BreakLine(level);
    out += brackets[1];
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<const std::pair<Value, Value>*>> Entries(const Map& map) const {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : map.entries) entries.push_back(&entry);
    if (!style_.sort_keys) return entries;
    absl::Status failure;
    std::stable_sort(entries.begin(), entries.end(), [&failure](const auto* a, const auto* b) {
      const absl::StatusOr<bool> less = Less(a->first, b->first, "<");
      failure.Update(less.status());
      return less.ok() && *less;
    });
    QUIRE_RETURN_IF_ERROR(failure);
    return entries;
  }

  absl::Status WriteKey(const Value& key) {
    if (key.is_string()) {
      WriteText(key.as_string());
    } else if (key.is_none() || key.is_bool() || key.is_int() || key.is_float()) {
      out += '"';
      QUIRE_RETURN_IF_ERROR(Write(key, 0));
      out += '"';
    } else {
      return NotJson(key);
    }
    return absl::OkStatus();
  }

  absl::Status WriteMap(const Map& map, std::size_t level) {
    QUIRE_ASSIGN_OR_RETURN(const auto entries, Entries(map));
    return WriteItems("{}", entries.size(), level, [&](std::size_t i) -> absl::Status {
      QUIRE_RETURN_IF_ERROR(WriteKey(entries[i]->first));
      out += style_.key_separator;
      return Write(entries[i]->second, level + 1);
    });
  }

  const JsonStyle& style_;
  const std::size_t limit_;
};

}  // namespace

absl::StatusOr<Value> FromJson(absl::string_view json, const TextHook& text, JsonBudget* budget) {
  const auto size = static_cast<std::int64_t>(json.size());
  if (budget != nullptr && (budget->bytes_left -= size) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("too large: with its ", size, " bytes the conversation has more than ",
                     budget->limits.max_bytes, " bytes of JSON (limits.max_json_bytes)"));
  }
  if (const auto offset = FirstInvalidUtf8(json)) {
    return absl::InvalidArgumentError(absl::StrCat("not UTF-8 at byte ", *offset));
  }
  Builder builder(text, budget);
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  absl::StatusOr<Value> value = builder.Take();
  if (!parsed && value.ok()) return absl::InvalidArgumentError("not JSON");
  return value;
}

absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Runtime& runtime) {
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(value));
  Writer writer(style, static_cast<std::size_t>(runtime.limits().max_bytes));
  QUIRE_RETURN_IF_ERROR(writer.Write(value, 0));
  QUIRE_RETURN_IF_ERROR(runtime.ChargeText(writer.out.size()));
  return std::move(writer.out);
}

}  // namespace quire::text::jinja
