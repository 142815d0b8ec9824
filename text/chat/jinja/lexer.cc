#include "text/chat/jinja/lexer.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kNone = absl::string_view::npos;

bool IsDecimalDigit(char c) {
  return c >= '0' && c <= '9';
}
bool StartsName(char c) {
  return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool ContinuesName(char c) {
  return StartsName(c) || IsDecimalDigit(c);
}

// Converts line ends to "\n", and removes a line end at the end of the template.
std::string Normalize(absl::string_view source) {
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (absl::EndsWith(text, "\n")) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), text_(source_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < text_.size()) QUIRE_RETURN_IF_ERROR(LexData());
    tokens_.push_back({.type = TokenType::kEnd, .position = PositionOf(text_.size()), .text = ""});
    return std::move(tokens_);
  }

 private:
  // Moves to `end`. If the character before `end` is a newline, a line starts at `end`.
  void MoveTo(std::size_t end) {
    is_at_line_start_ = end > 0 && text_[end - 1] == '\n';
    at_ = end;
  }

  // REQUIRES: offsets of successive calls do not decrease.
  Position PositionOf(std::size_t offset) {
    for (; counted_bytes_ < offset && counted_bytes_ < text_.size(); ++counted_bytes_) {
      if (text_[counted_bytes_] == '\n') {
        ++counted_position_.line;
        counted_position_.column = 1;
      } else if ((static_cast<unsigned char>(text_[counted_bytes_]) & 0xC0) != 0x80) {
        ++counted_position_.column;
      }
    }
    return counted_position_;
  }

  absl::Status Error(std::size_t offset, absl::string_view problem) {
    counted_bytes_ = 0;
    counted_position_ = {.line = 1, .column = 1};
    return ErrorAt(PositionOf(offset), problem);
  }

  std::size_t SkipSpace(std::size_t at) const {
    while (at < text_.size()) {
      const Utf8Char c = DecodeUtf8At(text_, at);
      if (!IsPythonSpace(c.code_point)) break;
      at += c.size_bytes;
    }
    return at;
  }

  bool Has(std::size_t at, absl::string_view wanted) const {
    return at <= text_.size() && absl::StartsWith(text_.substr(at), wanted);
  }

  // `close` is the closing delimiter of a block or comment. `at` is the offset of the delimiter, or
  // of a sign before it. Returns the offset after the delimiter and the white space that a '-'
  // removes, or kNone if there is no delimiter at `at`.
  std::size_t EndOfTag(std::size_t at, absl::string_view close) const {
    if (Has(at, absl::StrCat("+", close))) return at + 1 + close.size();
    if (Has(at, absl::StrCat("-", close))) return SkipSpace(at + 1 + close.size());
    if (!Has(at, close)) return kNone;
    const std::size_t end = at + close.size();
    return Has(end, "\n") ? end + 1 : end;
  }

  // Adds the text before a tag. `sign` is the character after the opening of the tag.
  void AddData(std::size_t begin, std::size_t end, char sign, bool is_output) {
    absl::string_view data = text_.substr(begin, end - begin);
    if (sign == '-') {
      data = StripChars(data, Side::kRight, std::nullopt);
    } else if (sign != '+' && !is_output) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t line = newline == kNone ? 0 : newline + 1;
      const bool begins_line = newline != kNone || is_at_line_start_;
      if (begins_line && StripChars(data.substr(line), Side::kBoth, std::nullopt).empty()) {
        data = data.substr(0, line);
      }
    }
    if (data.empty()) return;
    tokens_.push_back(
        {.type = TokenType::kData, .position = PositionOf(begin), .text = std::string(data)});
  }

  // Reads text up to the next tag, and then the tag.
  absl::Status LexData() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == kNone || tag + 1 >= text_.size()) break;
      const char kind = text_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    if (tag == kNone || tag + 1 >= text_.size()) {
      AddData(at_, text_.size(), '+', /*is_output=*/false);
      MoveTo(text_.size());
      return absl::OkStatus();
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    AddData(at_, tag, sign, kind == '{');
    const std::size_t inside = tag + 2 + (has_sign ? 1 : 0);
    if (kind == '#') return LexComment(tag, inside);
    if (kind == '%') {
      const std::size_t raw = EndOfRawTag(inside);
      if (raw != kNone) return LexRaw(tag, raw);
    }
    const bool is_output = kind == '{';
    tokens_.push_back({.type = is_output ? TokenType::kOutputBegin : TokenType::kBlockBegin,
                       .position = PositionOf(tag),
                       .text = ""});
    MoveTo(inside);
    return LexTag(is_output);
  }

  absl::Status LexComment(std::size_t tag, std::size_t inside) {
    const std::size_t close = text_.find("#}", inside);
    if (close == kNone) return Error(tag, "the comment is not closed");
    const bool has_sign = close > inside && (text_[close - 1] == '-' || text_[close - 1] == '+');
    MoveTo(EndOfTag(has_sign ? close - 1 : close, "#}"));
    return absl::OkStatus();
  }

  // If a tag whose content starts at `inside` opens a raw block, returns the offset of the content
  // of the block. Otherwise returns kNone.
  std::size_t EndOfRawTag(std::size_t inside) const {
    std::size_t at = SkipSpace(inside);
    if (!Has(at, "raw")) return kNone;
    at = SkipSpace(at + 3);
    if (Has(at, "-%}")) return SkipSpace(at + 3);
    return Has(at, "%}") ? at + 2 : kNone;
  }

  absl::Status LexRaw(std::size_t tag, std::size_t begin) {
    MoveTo(begin);
    for (std::size_t end = text_.find("{%", begin); end != kNone; end = text_.find("{%", end + 1)) {
      const char sign = end + 2 < text_.size() ? text_[end + 2] : '\0';
      std::size_t at = SkipSpace(end + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (!Has(at, "endraw")) continue;
      at = EndOfTag(SkipSpace(at + 6), "%}");
      if (at == kNone) continue;
      AddData(begin, end, sign, /*is_output=*/false);
      MoveTo(at);
      return absl::OkStatus();
    }
    return Error(tag, "the raw block is not closed");
  }

  // Reads tokens up to the end of the tag.
  absl::Status LexTag(bool is_output) {
    const std::size_t tag = at_;
    std::string open;  // closing brackets still expected; inside brackets a tag cannot end
    for (;;) {
      at_ = SkipSpace(at_);
      if (at_ >= text_.size()) return Error(tag, "the tag is not closed");
      if (open.empty()) {
        const std::size_t end = is_output ? EndOfOutput(at_) : EndOfTag(at_, "%}");
        if (end != kNone) {
          tokens_.push_back({.type = is_output ? TokenType::kOutputEnd : TokenType::kBlockEnd,
                             .position = PositionOf(at_),
                             .text = ""});
          MoveTo(end);
          return absl::OkStatus();
        }
      }
      QUIRE_RETURN_IF_ERROR(LexToken(&open));
    }
  }

  std::size_t EndOfOutput(std::size_t at) const {
    if (Has(at, "-}}")) return SkipSpace(at + 3);
    return Has(at, "}}") ? at + 2 : kNone;
  }

  absl::Status LexToken(std::string* open) {
    const char c = text_[at_];
    if (IsDecimalDigit(c)) return LexNumber();
    if (c == '\'' || c == '"') return LexString(c);
    if (!StartsName(c)) return LexOperator(open);
    std::size_t end = at_;
    while (end < text_.size() && ContinuesName(text_[end])) ++end;
    Add(TokenType::kName, end);
    return absl::OkStatus();
  }

  void Add(TokenType type, std::size_t end) {
    tokens_.push_back({.type = type,
                       .position = PositionOf(at_),
                       .text = std::string(text_.substr(at_, end - at_))});
    at_ = end;
  }

  // Returns the end of a run of digits with single underscores between them.
  template <typename IsDigitChar>
  std::size_t SkipDigits(std::size_t at, IsDigitChar is_digit) const {
    while (at < text_.size()) {
      if (is_digit(text_[at])) {
        ++at;
      } else if (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  absl::Status LexNumber() {
    const std::size_t begin = at_;
    std::size_t end = SkipDigits(at_, IsDecimalDigit);
    bool is_float = false;
    const bool after_dot = begin > 0 && text_[begin - 1] == '.';
    if (!after_dot) {
      if (Has(end, ".") && end + 1 < text_.size() && IsDecimalDigit(text_[end + 1])) {
        end = SkipDigits(end + 1, IsDecimalDigit);
        is_float = true;
      }
      std::size_t exponent = end;
      if (Has(end, "e") || Has(end, "E")) {
        exponent = end + 1;
        if (Has(exponent, "+") || Has(exponent, "-")) ++exponent;
        if (exponent < text_.size() && IsDecimalDigit(text_[exponent])) {
          end = SkipDigits(exponent, IsDecimalDigit);
          is_float = true;
        }
      }
    }
    if (!is_float) return LexInteger(end);
    Add(TokenType::kFloat, end);
    const std::string digits = absl::StrReplaceAll(tokens_.back().text, {{"_", ""}});
    tokens_.back().number = std::strtod(digits.c_str(), nullptr);
    return absl::OkStatus();
  }

  // `end` is the end of the decimal digits.
  absl::Status LexInteger(std::size_t end) {
    int base = 10;
    std::size_t first = at_;
    const char prefix = at_ + 1 < text_.size() && text_[at_] == '0'
                            ? absl::ascii_tolower(static_cast<unsigned char>(text_[at_ + 1]))
                            : '\0';
    const int wanted = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    if (wanted != 10) {
      const auto is_digit = [wanted](char c) {
        const int digit = IsDecimalDigit(c) ? c - '0'
                          : absl::ascii_isxdigit(static_cast<unsigned char>(c))
                              ? absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10
                              : 99;
        return digit < wanted;
      };
      const std::size_t digits_end = SkipDigits(at_ + 2, is_digit);
      if (digits_end > at_ + 2) {
        base = wanted;
        first = at_ + 2;
        end = digits_end;
      }
    }
    const std::string digits = absl::StrReplaceAll(text_.substr(first, end - first), {{"_", ""}});
    std::int64_t value = 0;
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc()) return Error(at_, "the number does not fit 64 bits");
    Add(TokenType::kInteger, end);
    tokens_.back().integer = value;
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return Error(at_, "the string is not closed");
    Token token{.type = TokenType::kString, .position = PositionOf(at_), .text = ""};
    QUIRE_RETURN_IF_ERROR(Unescape(at_ + 1, end, &token.text));
    tokens_.push_back(std::move(token));
    at_ = end + 1;
    return absl::OkStatus();
  }

  // Decodes the escapes of Python's string literals.
  absl::Status Unescape(std::size_t at, std::size_t end, std::string* out) {
    while (at < end) {
      if (text_[at] != '\\') {
        *out += text_[at++];
        continue;
      }
      const char c = text_[at + 1];
      constexpr absl::string_view kNames = "\\'\"abfnrtv";
      constexpr absl::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
      const std::size_t simple = kNames.find(c);
      if (simple != kNone) {
        *out += kValues[simple];
        at += 2;
      } else if (c == '\n') {
        at += 2;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        QUIRE_RETURN_IF_ERROR(UnescapeHex(at, end, digits, out));
        at += 2 + digits;
      } else if (c >= '0' && c <= '7') {
        std::uint32_t code = 0;
        std::size_t next = at + 1;
        for (; next < at + 4 && next < end && text_[next] >= '0' && text_[next] <= '7'; ++next) {
          code = code * 8 + static_cast<std::uint32_t>(text_[next] - '0');
        }
        AppendUtf8(code, *out);
        at = next;
      } else if (c == 'N') {
        return Error(at, "character names (\\N) are not supported");
      } else {
        *out += '\\';  // not an escape: both characters are kept
        ++at;
        *out += text_[at++];
      }
    }
    return absl::OkStatus();
  }

  absl::Status UnescapeHex(std::size_t at, std::size_t end, std::size_t digits, std::string* out) {
    std::uint32_t code = 0;
    const bool fits = at + 2 + digits <= end;
    const char* first = text_.data() + at + 2;
    const auto [stop, error] = fits ? std::from_chars(first, first + digits, code, 16)
                                    : std::from_chars_result{first, std::errc::invalid_argument};
    if (error != std::errc() || stop != first + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code <= 0xDFFF)) {
      return Error(at, "the escape is not a valid character");
    }
    AppendUtf8(code, *out);
    return absl::OkStatus();
  }

  absl::Status LexOperator(std::string* open) {
    constexpr absl::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const absl::string_view two : kTwo) {
      if (!Has(at_, two)) continue;
      Add(TokenType::kOperator, at_ + 2);
      return absl::OkStatus();
    }
    const char c = text_[at_];
    constexpr absl::string_view kOne = "+-/*%~[](){}><=.:|,;";
    if (kOne.find(c) == kNone) {
      return Error(
          at_, absl::StrCat("unexpected character '", absl::CHexEscape(text_.substr(at_, 1)), "'"));
    }
    if (c == '(') *open += ')';
    if (c == '[') *open += ']';
    if (c == '{') *open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c) {
        return Error(at_, absl::StrCat("unexpected '", text_.substr(at_, 1), "'"));
      }
      open->pop_back();
    }
    Add(TokenType::kOperator, at_ + 1);
    return absl::OkStatus();
  }

  const std::string source_;
  const absl::string_view text_;
  std::size_t at_ = 0;
  bool is_at_line_start_ = true;
  std::size_t counted_bytes_ = 0;
  Position counted_position_{.line = 1, .column = 1};  // position after counted_bytes_ bytes
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status ErrorAt(Position position, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", position.line, ", column ", position.column, ": ", problem));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  return Lexer(Normalize(source)).Run();
}

}  // namespace quire::text::jinja
