#include "text/tools/python_call.h"

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/tools/json_object_writer.h"

namespace quire::text {
namespace {

constexpr int kMaxDepth = 64;

// Parses one whole call from left to right.
class PythonReader {
 public:
  explicit PythonReader(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::pair<std::string, std::string>> Call();

 private:
  absl::Status Unexpected() const {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected text at byte ", at_, ": ",
                     JsonQuoted(text_.substr(std::min(at_, text_.size()), 20))));
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void SkipSpace() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Take(char byte) {
    SkipSpace();
    if (Peek() != byte) return false;
    ++at_;
    return true;
  }
  std::string Name() {
    SkipSpace();
    const std::size_t begin = at_;
    while (at_ < text_.size() && IsPythonNameByte(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  // Returns a literal as JSON.
  absl::StatusOr<std::string> Value(int depth);
  absl::StatusOr<std::string> Sequence(char end, int depth);
  absl::StatusOr<std::string> Dictionary(int depth);
  absl::StatusOr<std::string> Number();
  absl::StatusOr<std::string> String();
  absl::Status Escape(std::string* out);

  const absl::string_view text_;
  std::size_t at_ = 0;
};

absl::StatusOr<std::pair<std::string, std::string>> PythonReader::Call() {
  std::string name = Name();
  if (name.empty() || !Take('(')) return Unexpected();
  JsonObjectWriter arguments;
  while (!Take(')')) {
    const std::string key = Name();
    if (key.empty() || !Take('=')) return Unexpected();
    QUIRE_ASSIGN_OR_RETURN(std::string value, Value(0));
    if (!arguments.Set(JsonQuoted(key), std::move(value))) {
      return absl::InvalidArgumentError(absl::StrCat("the argument ", key, " occurs twice"));
    }
    if (Take(',')) continue;
    if (!Take(')')) return Unexpected();
    break;
  }
  SkipSpace();
  if (at_ != text_.size()) return Unexpected();
  return std::pair(std::move(name), arguments.Text());
}

absl::StatusOr<std::string> PythonReader::Value(int depth) {
  if (depth > kMaxDepth) return absl::InvalidArgumentError("literals are nested too deeply");
  SkipSpace();
  const char first = Peek();
  if (Take('[')) return Sequence(']', depth);
  if (Take('(')) return Sequence(')', depth);
  if (Take('{')) return Dictionary(depth);
  if (absl::ascii_isdigit(static_cast<unsigned char>(first)) || first == '-' || first == '+' ||
      first == '.') {
    return Number();
  }
  const absl::string_view rest = text_.substr(at_);
  constexpr std::pair<absl::string_view, absl::string_view> kWords[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [word, json] : kWords) {
    if (!absl::StartsWith(rest, word)) continue;
    at_ += word.size();
    if (IsPythonNameByte(Peek())) return Unexpected();
    return std::string(json);
  }
  return String();
}

absl::StatusOr<std::string> PythonReader::Sequence(char end, int depth) {
  std::string json = "[";
  while (!Take(end)) {
    QUIRE_ASSIGN_OR_RETURN(const std::string value, Value(depth + 1));
    absl::StrAppend(&json, json.size() > 1 ? ", " : "", value);
    if (Take(',')) continue;
    if (!Take(end)) return Unexpected();
    break;
  }
  return json + "]";
}

absl::StatusOr<std::string> PythonReader::Dictionary(int depth) {
  JsonObjectWriter members;
  while (!Take('}')) {
    SkipSpace();
    QUIRE_ASSIGN_OR_RETURN(std::string key, String());
    if (!Take(':')) return Unexpected();
    QUIRE_ASSIGN_OR_RETURN(std::string value, Value(depth + 1));
    members.Set(std::move(key), std::move(value));
    if (Take(',')) continue;
    if (!Take('}')) return Unexpected();
    break;
  }
  return members.Text();
}

// Rejects the number formats of Python that JSON lacks (1_000, 0x10), with two exceptions. A plus
// sign is removed (+1), and a missing digit next to the point is added (.5, 5.).
absl::StatusOr<std::string> PythonReader::Number() {
  if (Peek() == '+') ++at_;
  const std::size_t begin = at_;
  if (Peek() == '-') ++at_;
  while (at_ < text_.size() &&
         (absl::ascii_isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.' ||
          text_[at_] == '_' ||
          ((text_[at_] == '-' || text_[at_] == '+') &&
           absl::ascii_tolower(static_cast<unsigned char>(text_[at_ - 1])) == 'e'))) {
    ++at_;
  }
  std::string number(text_.substr(begin, at_ - begin));
  const std::size_t point = number.find('.');
  if (point != std::string::npos) {
    const auto is_digit = [&](std::size_t i) {
      return i < number.size() && absl::ascii_isdigit(static_cast<unsigned char>(number[i]));
    };
    if (!is_digit(point + 1)) number.insert(point + 1, 1, '0');
    if (point == 0 || !is_digit(point - 1)) number.insert(point, 1, '0');
  }
  if (!nlohmann::json::accept(number)) {
    at_ = begin;
    return Unexpected();
  }
  return number;
}

absl::StatusOr<std::string> PythonReader::String() {
  bool is_raw = false;
  if (Peek() == 'r' || Peek() == 'R') {
    is_raw = true;
    ++at_;
  }
  const char quote = Peek();
  if (quote != '"' && quote != '\'') return Unexpected();
  const std::string triple(3, quote);
  const bool is_long = absl::StartsWith(text_.substr(at_), triple);
  at_ += is_long ? 3 : 1;
  std::string value;
  while (true) {
    if (at_ >= text_.size()) return Unexpected();
    if (is_long ? absl::StartsWith(text_.substr(at_), triple) : text_[at_] == quote) break;
    if (text_[at_] == '\n' && !is_long) return Unexpected();
    if (text_[at_] != '\\') {
      value += text_[at_++];
    } else if (is_raw) {
      absl::StrAppend(&value, text_.substr(at_, 2));
      at_ += 2;
    } else {
      QUIRE_RETURN_IF_ERROR(Escape(&value));
    }
  }
  at_ += is_long ? 3 : 1;
  SkipSpace();
  if (Peek() == '"' || Peek() == '\'') return Unexpected();  // adjacent strings are an expression
  return JsonQuoted(value);
}

// Decodes an escape at the current backslash. As in Python, an unknown escape keeps its backslash.
absl::Status PythonReader::Escape(std::string* out) {
  const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  if (digits > 0) {
    const std::string hex(text_.substr(at_ + 2, static_cast<std::size_t>(digits)));
    const bool is_hex = hex.size() == static_cast<std::size_t>(digits) &&
                        hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    const auto code = is_hex ? std::strtoul(hex.c_str(), nullptr, 16) : 0xd800;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return Unexpected();
    AppendUtf8(static_cast<char32_t>(code), *out);
    at_ += 2 + static_cast<std::size_t>(digits);
    return absl::OkStatus();
  }
  constexpr absl::string_view kKinds = "nrtabfv0\\'\"";
  constexpr absl::string_view kBytes("\n\r\t\a\b\f\v\0\\'\"", 11);
  const std::size_t known = kKinds.find(kind);
  if (kind == '\0') return Unexpected();
  if (kind == '\n') {
    // A backslash before a newline continues the line and adds nothing.
  } else if (known != absl::string_view::npos) {
    *out += kBytes[known];
  } else {
    absl::StrAppend(out, text_.substr(at_, 2));
  }
  at_ += 2;
  return absl::OkStatus();
}

}  // namespace

bool IsPythonNameByte(char byte) {
  return absl::ascii_isalnum(static_cast<unsigned char>(byte)) || byte == '_' || byte == '.' ||
         byte == '-';
}

bool PythonTracker::Push(char byte) {
  if (quote_ == 0) {
    if (byte == '"' || byte == '\'') {
      quote_ = byte;
      num_quotes_ = 1;
      is_opening_ = true;
      is_triple_quoted_ = false;
    } else if (byte == '(' || byte == '[' || byte == '{') {
      ++depth_;
    } else if (byte == ')' || byte == ']' || byte == '}') {
      return --depth_ == 0;
    }
    return false;
  }
  if (is_opening_) {
    if (byte == quote_) {
      is_triple_quoted_ = ++num_quotes_ == 3;
      if (!is_triple_quoted_) return false;
      is_opening_ = false;
      num_quotes_ = 0;
      return false;
    }
    is_opening_ = false;
    const bool is_empty = num_quotes_ == 2;
    num_quotes_ = 0;
    if (is_empty) {
      quote_ = 0;
      return Push(byte);
    }
  }
  if (is_escape_) {
    is_escape_ = false;
    num_quotes_ = 0;
  } else if (byte == '\\') {
    is_escape_ = true;
    num_quotes_ = 0;
  } else if (byte != quote_) {
    num_quotes_ = 0;
  } else if (!is_triple_quoted_ || ++num_quotes_ == 3) {
    quote_ = 0;
    num_quotes_ = 0;
  }
  return false;
}

absl::StatusOr<std::pair<std::string, std::string>> ReadPythonCall(absl::string_view call) {
  return PythonReader(call).Call();
}

}  // namespace quire::text
