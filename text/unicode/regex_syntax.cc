#include "text/unicode/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

// All code points except the 25 of kSpaceClass, for \S inside brackets.
constexpr absl::string_view kNotSpaceClass =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// Outside brackets, Oniguruma's \w and \b also match these six Latin-1 numbers, because Oniguruma
// uses its ISO 8859-1 table there (observed with tokenizers 0.23.3).
constexpr absl::string_view kLatin1Numbers = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

// Word characters of Oniguruma. PCRE2's \w under UCP lacks marks, but contains all of \p{N}.
constexpr absl::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

constexpr absl::string_view kHexClass = "0-9A-Fa-f";

// General categories whose short names mean the same in all engines.
constexpr std::array<absl::string_view, 38> kCategories = {
    "Any", "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu",
    "M",   "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf",
    "Pi",  "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

// Binary properties. All engines use the same sets, apart from differences between Unicode
// versions.
constexpr std::array<absl::string_view, 6> kBinaryProperties = {
    "Alphabetic", "Uppercase", "Lowercase", "White_Space", "Emoji", "Ideographic"};

// Property names that Oniguruma treats as POSIX brackets. PCRE2 lacks these sets.
constexpr std::array<absl::string_view, 14> kPosixNames = {
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph",
    "lower", "print", "punct", "space", "upper", "word",  "xdigit"};

template <typename Array>
bool Contains(const Array& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The dialects differ in the meaning of + after an interval, and in the word characters of \w and
// \b.
enum class Dialect { kOniguruma, kRust };

class Translator {
 public:
  Translator(absl::string_view pattern, Dialect dialect) : pattern_(pattern), dialect_(dialect) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < pattern_.size()) QUIRE_RETURN_IF_ERROR(Next());
    return std::move(result_);
  }

 private:
  absl::Status Unsupported(absl::string_view what, std::size_t offset) const {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression: ", what, " at offset ", offset, " is not supported"));
  }

  char Peek(std::size_t offset = 0) const {
    return pos_ + offset < pattern_.size() ? pattern_[pos_ + offset] : '\0';
  }

  void Copy(std::size_t bytes) {
    absl::StrAppend(&result_, pattern_.substr(pos_, bytes));
    pos_ += std::min(bytes, pattern_.size() - pos_);
  }

  void BeginAtom() { atom_begin_ = result_.size(); }

  absl::Status Next() {
    const char c = pattern_[pos_];
    switch (c) {
      case '\\':
        BeginAtom();
        return EscapeOutsideClass();
      case '[':
        BeginAtom();
        return Class();
      case '(':
        return OpenGroup();
      case ')':
        // The last atom is now the whole group.
        if (!groups_.empty()) {
          atom_begin_ = groups_.back();
          groups_.pop_back();
        }
        Copy(1);
        return absl::OkStatus();
      case '{':
        return Interval();
      case '*':
      case '+':
      case '?':
        Copy(1);
        // Possessive and lazy quantifiers mean the same in all engines.
        if (Peek() == '+' || Peek() == '?') Copy(1);
        return absl::OkStatus();
      default:
        BeginAtom();
        Copy(Utf8Length(c));
        return absl::OkStatus();
    }
  }

  absl::Status OpenGroup() {
    const std::size_t begin = pos_;
    groups_.push_back(result_.size());
    if (Peek(1) != '?') {
      if (Peek(1) == '*') return Unsupported("a verb (*...)", begin);
      Copy(1);
      return absl::OkStatus();
    }
    const char kind = Peek(2);
    if (kind == '<' && Peek(3) != '=' && Peek(3) != '!') {
      return Unsupported("a named group", begin);
    }
    if (absl::StrContains(":=!><", kind)) {
      Copy(kind == '<' ? 4 : 3);
      return absl::OkStatus();
    }
    // (?i) and (?i:...): i is the only option letter that means the same in all engines.
    std::size_t end = pos_ + 2;
    while (end < pattern_.size() &&
           (pattern_[end] == 'i' || pattern_[end] == 'x' || pattern_[end] == '-'))
      ++end;
    if (end > pos_ + 2 && end < pattern_.size() && (pattern_[end] == ':' || pattern_[end] == ')')) {
      if (absl::StrContains(pattern_.substr(pos_, end - pos_), "x")) {
        return Unsupported("the option x", begin);
      }
      if (pattern_[end] == ')') groups_.pop_back();
      Copy(end + 1 - pos_);
      return absl::OkStatus();
    }
    return Unsupported("this kind of group", begin);
  }

  // {n}, {n,} and {n,m} are quantifiers; other text in braces is literal. A + after such a
  // quantifier repeats the quantified atom in Oniguruma, but makes the quantifier possessive in
  // PCRE2.
  absl::Status Interval() {
    const std::size_t begin = pos_;
    std::size_t end = pos_ + 1;
    while (end < pattern_.size() &&
           (pattern_[end] == ',' || (pattern_[end] >= '0' && pattern_[end] <= '9'))) {
      ++end;
    }
    const absl::string_view body = pattern_.substr(begin + 1, end - begin - 1);
    const bool closed = end < pattern_.size() && pattern_[end] == '}';
    const bool is_interval = closed && body.size() <= 11 &&
                             std::count(body.begin(), body.end(), ',') <= 1 && body != ",";
    if (!is_interval || body.empty()) {
      BeginAtom();
      result_ += "\\{";
      ++pos_;
      return absl::OkStatus();
    }
    if (body[0] == ',') return Unsupported("an interval without lower bound", begin);
    Copy(end + 1 - begin);
    if (Peek() == '?' && !absl::StrContains(body, ",")) {
      return Unsupported("a lazy interval {n}?", begin);
    }
    if (Peek() == '?' || (Peek() == '+' && dialect_ == Dialect::kRust)) {
      Copy(1);
    } else if (Peek() == '+') {
      result_.insert(atom_begin_, "(?:");
      result_ += ")+";
      ++pos_;
    }
    return absl::OkStatus();
  }

  absl::Status EscapeOutsideClass() {
    switch (Peek(1)) {
      case 's':
        return Replace(2, absl::StrCat("[", kSpaceClass, "]"));
      case 'S':
        return Replace(2, absl::StrCat("[^", kSpaceClass, "]"));
      case 'w':
        return Replace(2, absl::StrCat("[", WordClass(), "]"));
      case 'W':
        return Replace(2, absl::StrCat("[^", WordClass(), "]"));
      case 'h':
        return Replace(2, absl::StrCat("[", kHexClass, "]"));
      case 'H':
        return Replace(2, absl::StrCat("[^", kHexClass, "]"));
      case 'b':
        return Replace(2, WordBoundary());
      case 'B':
        return Replace(2, absl::StrCat("(?!", WordBoundary(), ")"));
      case 'A':
      case 'z':
      case 'Z':
        Copy(2);
        return absl::OkStatus();
      default:
        return CommonEscape();
    }
  }

  // Returns the word characters of \w outside brackets.
  std::string WordClass() const {
    if (dialect_ == Dialect::kRust) return std::string(kRustWordClass);
    return absl::StrCat(kWordClass, kLatin1Numbers);
  }

  std::string WordBoundary() const {
    const std::string word = absl::StrCat("[", WordClass(), "]");
    return absl::StrCat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
  }

  absl::Status EscapeInClass() {
    switch (Peek(1)) {
      case 's':
        return Replace(2, kSpaceClass);
      case 'S':
        return Replace(2, kNotSpaceClass);
      case 'w':
        return Replace(2, dialect_ == Dialect::kRust ? kRustWordClass : kWordClass);
      case 'h':
        return Replace(2, kHexClass);
      case 'b':
        return Replace(2, "\\x{8}");
      default:
        return CommonEscape();
    }
  }

  // Translates escapes that mean the same inside and outside brackets.
  absl::Status CommonEscape() {
    const char c = Peek(1);
    if (pos_ + 1 >= pattern_.size()) return Unsupported("a backslash at the end", pos_);
    switch (c) {
      case 'd':
        return Replace(2, "\\p{Nd}");
      case 'D':
        return Replace(2, "\\P{Nd}");
      case 'v':
        return Replace(2, "\\x{b}");
      case 'p':
      case 'P':
        return Property();
      case 'u':
        return UnicodeEscape();
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
      case 'x':
        Copy(2);
        return absl::OkStatus();
      default:
        break;
    }
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return Unsupported(absl::StrCat("the escape \\", absl::string_view(&c, 1)), pos_);
    }
    Copy(1 + Utf8Length(c));
    return absl::OkStatus();
  }

  absl::Status Replace(std::size_t bytes, absl::string_view text) {
    absl::StrAppend(&result_, text);
    pos_ += bytes;
    return absl::OkStatus();
  }

  absl::Status UnicodeEscape() {
    const absl::string_view digits = pattern_.substr(pos_ + 2, 4);
    if (digits.size() < 4 || !std::all_of(digits.begin(), digits.end(), [](char d) {
          return absl::ascii_isxdigit(static_cast<unsigned char>(d));
        })) {
      return Unsupported("\\u without four hexadecimal digits", pos_);
    }
    return Replace(6, absl::StrCat("\\x{", digits, "}"));
  }

  // A script name needs the prefix sc:, because plain \p{Han} means Script_Extensions in PCRE2.
  absl::Status Property() {
    const std::size_t begin = pos_;
    const std::size_t close = pattern_.find('}', pos_);
    if (Peek(2) != '{' || close == absl::string_view::npos) {
      return Unsupported("\\p without {name}", begin);
    }
    absl::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    const absl::string_view whole = pattern_.substr(begin, close + 1 - begin);
    absl::string_view negation;
    if (!name.empty() && name[0] == '^') {
      negation = "^";
      name.remove_prefix(1);
    }
    const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char d) {
      return absl::ascii_isalnum(static_cast<unsigned char>(d)) || d == '_';
    });
    if (!is_name || Contains(kPosixNames, absl::AsciiStrToLower(name))) {
      return Unsupported(absl::StrCat("the property ", whole), begin);
    }
    const bool is_script = !Contains(kCategories, name) && !Contains(kBinaryProperties, name);
    return Replace(whole.size(), absl::StrCat(pattern_.substr(begin, 3), negation,
                                              is_script ? "sc:" : "", name, "}"));
  }

  absl::Status Class() {
    const std::size_t begin = pos_;
    Copy(1);
    if (Peek() == '^') Copy(1);
    if (Peek() == ']') return Unsupported("a class that begins with ]", begin);
    while (pos_ < pattern_.size() && pattern_[pos_] != ']') {
      if (pattern_[pos_] == '\\') {
        QUIRE_RETURN_IF_ERROR(EscapeInClass());
      } else if (absl::StartsWith(pattern_.substr(pos_), "[:space:]")) {
        QUIRE_RETURN_IF_ERROR(Replace(9, kSpaceClass));
      } else if (pattern_[pos_] == '[') {
        return Unsupported("a bracket or POSIX name inside a class", pos_);
      } else if (absl::StartsWith(pattern_.substr(pos_), "&&")) {
        return Unsupported("the intersection &&", pos_);
      } else {
        Copy(Utf8Length(pattern_[pos_]));
      }
    }
    if (pos_ >= pattern_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("regular expression: missing ] for the class at offset ", begin));
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::string_view pattern_;
  Dialect dialect_;
  std::size_t pos_ = 0;
  std::string result_;
  std::size_t atom_begin_ = 0;       // start of the last atom in result_
  std::vector<std::size_t> groups_;  // starts of the open groups in result_
};

}  // namespace

absl::StatusOr<std::string> OnigurumaToPcre(absl::string_view pattern) {
  return Translator(pattern, Dialect::kOniguruma).Run();
}

absl::StatusOr<std::string> RustToPcre(absl::string_view pattern) {
  return Translator(pattern, Dialect::kRust).Run();
}

}  // namespace quire::text
