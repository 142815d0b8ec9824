#include "engine/constraint/regex.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::engine {

namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // lengths saturate here

const CodePoints kDigits({{'0', '9'}});
const CodePoints kWord({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
// WhiteSpace and LineTerminator of ECMA-262.
const CodePoints kSpace({{0x09, 0x0D},
                         {0x20, 0x20},
                         {0xA0, 0xA0},
                         {0x1680, 0x1680},
                         {0x2000, 0x200A},
                         {0x2028, 0x2029},
                         {0x202F, 0x202F},
                         {0x205F, 0x205F},
                         {0x3000, 0x3000},
                         {0xFEFF, 0xFEFF}});
// Non-ASCII letters that match s and k if case is ignored, in ECMAScript and Python.
const CodePoints kLongS({{0x17F, 0x17F}}), kKelvin({{0x212A, 0x212A}});
// Non-ASCII blocks that contain letters with a case.
const CodePoints kCased({{0x80, 0x58F},
                         {0x10A0, 0x10FF},
                         {0x13A0, 0x13FF},
                         {0x1C80, 0x1FFF},
                         {0x2100, 0x218F},
                         {0x24B0, 0x24EF},
                         {0x2C00, 0x2DFF},
                         {0xA640, 0xA7FF},
                         {0xAB30, 0xABBF},
                         {0xFB00, 0xFB1F},
                         {0xFF20, 0xFF5F},
                         {0x10400, 0x10CFF},
                         {0x118A0, 0x118DF},
                         {0x16E40, 0x16E7F},
                         {0x1E900, 0x1E95F}});
const CodePoints kLineEnds({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});

Regex Character(CodePoints set) {
  return {.kind = Regex::Kind::kCharacter, .set = std::move(set)};
}

Regex MakeRegex(Regex::Kind kind, std::vector<Regex> parts) {
  return {.kind = kind, .parts = std::move(parts)};
}

Regex Repeat(Regex body, std::int64_t min, std::optional<std::int64_t> max) {
  return {.kind = Regex::Kind::kRepeat, .parts = {std::move(body)}, .min = min, .max = max};
}

// REQUIRES: `text` is UTF-8.
std::vector<char32_t> CodePointsOf(absl::string_view text) {
  std::vector<char32_t> out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8At(text, at);
    out.push_back(c.code_point);
    at += c.size_bytes;
  }
  return out;
}

// One alternative. Anchors are possible only at its start and end.
struct AnchoredSequence {
  std::vector<Regex> parts;
  bool has_start_anchor = false, has_end_anchor = false;
};

class Parser {
 public:
  Parser(absl::string_view pattern, RegexMeaning meaning)
      : meaning_(meaning), chars_(CodePointsOf(pattern)) {}

  absl::StatusOr<Regex> Parse() {
    if (Peek() == '(' && Peek(1) == '?' && IsFlag(Peek(2))) {
      at_ = 2;
      QUIRE_RETURN_IF_ERROR(ParseFlags(0));
      if (!Take(')')) {  // the flags belong to a group
        at_ = 0;
        ignores_case_ = false;
      }
    }
    QUIRE_ASSIGN_OR_RETURN(const std::vector<AnchoredSequence> options, ParseChoice(0));
    if (at_ < chars_.size()) return Error("\")\" has no matching \"(\"");
    std::vector<Regex> whole;
    for (const AnchoredSequence& option : options) {
      std::vector<Regex> parts;
      const bool contains = meaning_ == RegexMeaning::kContains;
      if (contains && !option.has_start_anchor) parts.push_back(AnyText(0, std::nullopt));
      parts.insert(parts.end(), option.parts.begin(), option.parts.end());
      if (contains && !option.has_end_anchor) parts.push_back(AnyText(0, std::nullopt));
      whole.push_back(MakeRegex(Regex::Kind::kSequence, std::move(parts)));
    }
    return MakeRegex(Regex::Kind::kChoice, std::move(whole));
  }

 private:
  absl::Status Error(absl::string_view what) const { return ErrorAt(at_, what); }
  static absl::Status ErrorAt(std::size_t at, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("at character ", at, ": ", what));
  }

  bool AtEnd() const { return at_ >= chars_.size(); }
  char32_t Peek(std::size_t offset = 0) const {
    return at_ + offset < chars_.size() ? chars_[at_ + offset] : U'\0';
  }
  bool Take(char32_t c) {
    if (AtEnd() || Peek() != c) return false;
    ++at_;
    return true;
  }

  static bool IsFlag(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z' && c != 'P' && c != 'R') || c == '-';
  }

  // Sets ignores_case_. REQUIRES: at_ is after "(?".
  absl::Status ParseFlags(std::size_t start) {
    bool is_on = true;
    for (; IsFlag(Peek()); ++at_) {
      if (Peek() == '-') {
        is_on = false;
      } else if (Peek() == 'i') {
        ignores_case_ = is_on;
      } else {
        return ErrorAt(start, absl::StrCat("the flag ", std::string(1, static_cast<char>(Peek())),
                                           " is not supported; the only supported flag is i"));
      }
    }
    return absl::OkStatus();
  }

  // Parses the kind of a group. REQUIRES: at_ is after "(?".
  absl::Status ParseGroupKind(std::size_t start) {
    if (Peek() == 'P' && Peek(1) == '<') ++at_;  // Python's syntax of a group name
    const char32_t next = Peek(1);
    if (Peek() == '<' && next != '=' && next != '!') {
      while (!AtEnd() && Peek() != '>') ++at_;
      return Take('>') ? absl::OkStatus() : ErrorAt(start, "the group name is not closed");
    }
    if (Take(':')) return absl::OkStatus();
    if (IsFlag(Peek())) {
      QUIRE_RETURN_IF_ERROR(ParseFlags(start));
      if (Take(':')) return absl::OkStatus();
      return ErrorAt(start,
                     "flags without a group are supported only at the beginning of an "
                     "expression; write (?i:...) to apply them to a part");
    }
    switch (Peek()) {
      case '=':
      case '!':
      case '<':
        return ErrorAt(start, "look-around is not supported");
      case '>':
        return ErrorAt(start, "an atomic group is not supported");
      case '(':
        return ErrorAt(start, "a conditional group is not supported");
      case '#':
        return ErrorAt(start, "a comment is not supported");
      case 'P':
        return ErrorAt(start, next == '=' ? "a back-reference is not supported"
                                          : "a call of a group is not supported");
      default:
        return ErrorAt(start, "a group of an unknown kind is not supported");
    }
  }

  // Returns the characters that match one of `chars` under the current flags. With `negated`, also
  // returns the non-ASCII variants of s and k, because the caller complements the set.
  absl::StatusOr<CodePoints> CaseVariants(std::size_t start, const CodePoints& chars,
                                          bool negated) const {
    if (!ignores_case_) return chars;
    if (!chars.Intersect(kCased).empty()) {
      return ErrorAt(start, "non-ASCII letters are not supported with the flag i");
    }
    CodePoints variants = chars;
    for (const auto& [first, last] : chars.ranges()) {
      for (char32_t c = first; c <= std::min<char32_t>(last, 0x7F); ++c) {
        const char32_t lower = c | 0x20;
        if (lower < 'a' || lower > 'z' || c < 'A') continue;
        variants = variants.Union(CodePoints({{lower, lower}, {lower - 0x20, lower - 0x20}}));
      }
    }
    if (negated && variants.Contains('s')) variants = variants.Union(kLongS);
    if (negated && variants.Contains('k')) variants = variants.Union(kKelvin);
    return variants;
  }

  absl::StatusOr<std::vector<AnchoredSequence>> ParseChoice(int depth) {
    if (depth > kMaxRegexDepth) {
      return Error(absl::StrCat("groups are nested deeper than ", kMaxRegexDepth));
    }
    std::vector<AnchoredSequence> options;
    do {
      QUIRE_ASSIGN_OR_RETURN(std::vector<AnchoredSequence> alternative, ParseAlternative(depth));
      std::move(alternative.begin(), alternative.end(), std::back_inserter(options));
    } while (Take('|'));
    return options;
  }

  // Parses an alternative. If it consists of one group with its own anchors, as in ^(a$|b), returns
  // the alternatives of the group.
  absl::StatusOr<std::vector<AnchoredSequence>> ParseAlternative(int depth) {
    AnchoredSequence here;
    // A group with anchors. Only other anchors are allowed next to it.
    std::vector<AnchoredSequence> group;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      const std::size_t start = at_;
      const bool is_first = here.parts.empty() && group.empty();
      if (Take('^')) {
        if (!is_first)
          return ErrorAt(start, "\"^\" is only supported at the beginning of an expression");
        here.has_start_anchor = true;
        continue;
      }
      if (Take('$')) {
        if (!AtEnd() && Peek() != '|' && Peek() != ')') {
          return ErrorAt(start, "\"$\" is only supported at the end of an expression");
        }
        here.has_end_anchor = true;
        continue;
      }
      if (!group.empty())
        return ErrorAt(start, "an anchor is not supported inside a group that is followed by text");
      QUIRE_ASSIGN_OR_RETURN(std::vector<AnchoredSequence> atom, ParseAtom(depth));
      const bool is_anchored = std::any_of(atom.begin(), atom.end(), [](const AnchoredSequence& a) {
        return a.has_start_anchor || a.has_end_anchor;
      });
      if (is_anchored) {
        if (!is_first)
          return ErrorAt(start,
                         "an anchor is not supported inside a group that is preceded by text");
        group = std::move(atom);
        continue;
      }
      std::vector<Regex> options;
      options.reserve(atom.size());
      for (AnchoredSequence& option : atom) {
        options.push_back(option.parts.size() == 1
                              ? std::move(option.parts[0])
                              : MakeRegex(Regex::Kind::kSequence, std::move(option.parts)));
      }
      Regex body = options.size() == 1 ? std::move(options[0])
                                       : MakeRegex(Regex::Kind::kChoice, std::move(options));
      QUIRE_ASSIGN_OR_RETURN(Regex repeated, ParseCount(std::move(body)));
      here.parts.push_back(std::move(repeated));
    }
    if (group.empty()) return std::vector<AnchoredSequence>{std::move(here)};
    for (AnchoredSequence& option : group) {
      option.has_start_anchor |= here.has_start_anchor;
      option.has_end_anchor |= here.has_end_anchor;
    }
    return group;
  }

  absl::StatusOr<std::vector<AnchoredSequence>> ParseAtom(int depth) {
    const auto one = [](CodePoints set) {
      return std::vector<AnchoredSequence>{{.parts = {Character(std::move(set))}}};
    };
    const std::size_t start = at_;
    if (++num_parts_ > kMaxRegexParts) {
      return Error(absl::StrCat("the expression has more than ", kMaxRegexParts,
                                " characters, classes and groups"));
    }
    const char32_t c = chars_[at_++];
    switch (c) {
      case '(': {
        const bool outer_ignores_case = ignores_case_;
        if (Take('?')) QUIRE_RETURN_IF_ERROR(ParseGroupKind(start));
        QUIRE_ASSIGN_OR_RETURN(std::vector<AnchoredSequence> options, ParseChoice(depth + 1));
        ignores_case_ = outer_ignores_case;
        if (!Take(')')) return ErrorAt(start, "\"(\" has no matching \")\"");
        return options;
      }
      case '[': {
        QUIRE_ASSIGN_OR_RETURN(CodePoints set, ParseClass(start));
        return one(std::move(set));
      }
      case '.':
        return one(kLineEnds.Complement());
      case '\\': {
        const bool is_class = IsClassEscape(Peek());
        QUIRE_ASSIGN_OR_RETURN(CodePoints set, ParseEscape(start, /*in_class=*/false));
        if (is_class) return one(std::move(set));
        QUIRE_ASSIGN_OR_RETURN(set, CaseVariants(start, set, /*negated=*/false));
        return one(std::move(set));
      }
      case '*':
      case '+':
      case '?':
        return ErrorAt(start, "there is nothing to repeat");
      case '{':
      case '}':
      case ']':
        return ErrorAt(start, "a bracket must be escaped here");
      default: {
        QUIRE_ASSIGN_OR_RETURN(CodePoints set,
                               CaseVariants(start, CodePoints({{c, c}}), /*negated=*/false));
        return one(std::move(set));
      }
    }
  }

  static bool IsClassEscape(char32_t c) {
    return c <= 0x7F && absl::StrContains("dDwWsS", static_cast<char>(c));
  }

  // Parses an escape: a class such as \d, or a single character. REQUIRES: at_ is after the
  // backslash.
  absl::StatusOr<CodePoints> ParseEscape(std::size_t start, bool in_class) {
    if (AtEnd()) return ErrorAt(start, "the expression ends with \"\\\"");
    const char32_t c = chars_[at_++];
    const auto character = [](char32_t code_point) {
      return CodePoints({{code_point, code_point}});
    };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return kDigits.Complement();
      case 'w':
        return kWord;
      case 'W':
        return ignores_case_ ? kWord.Union(kLongS).Union(kKelvin).Complement() : kWord.Complement();
      case 's':
        return kSpace;
      case 'S':
        return kSpace.Complement();
      case 't':
        return character('\t');
      case 'n':
        return character('\n');
      case 'v':
        return character('\v');
      case 'f':
        return character('\f');
      case 'r':
        return character('\r');
      case 'b':
        if (in_class) return character('\b');
        return ErrorAt(start, "\\b is not supported");
      case '0':
        if (Peek() >= '0' && Peek() <= '9')
          return ErrorAt(start, "octal escapes are not supported");
        return character(0);
      case 'c': {
        const char32_t letter = Peek() | 0x20;
        if (letter < 'a' || letter > 'z') return ErrorAt(start, "\\c must be followed by a letter");
        ++at_;
        return character(letter - 'a' + 1);
      }
      case 'x':
      case 'u': {
        QUIRE_ASSIGN_OR_RETURN(const char32_t code_point, ParseHex(start, c));
        return character(code_point);
      }
      default:
        break;
    }
    if (c == 'k' || (c >= '1' && c <= '9')) {
      return ErrorAt(start, "a back-reference is not supported");
    }
    if (c <= 0x7F && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return ErrorAt(start,
                     absl::StrCat("\\", std::string(1, static_cast<char>(c)), " is not supported"));
    }
    return character(c);
  }

  absl::StatusOr<char32_t> ParseHex(std::size_t start, char32_t kind) {
    const auto digits = [&](std::size_t count, char32_t* value) {
      *value = 0;
      for (std::size_t i = 0; i < count; ++i, ++at_) {
        const char32_t digit = Peek();
        if (digit >= '0' && digit <= '9') {
          *value = *value * 16 + (digit - '0');
        } else if ((digit | 0x20) >= 'a' && (digit | 0x20) <= 'f') {
          *value = *value * 16 + ((digit | 0x20) - 'a' + 10);
        } else {
          return false;
        }
      }
      return true;
    };
    char32_t value = 0;
    if (kind == 'u' && Take('{')) {
      std::size_t count = 0;
      while (count < 6 && Peek(count) != '}' && at_ + count < chars_.size()) ++count;
      if (count == 0 || !digits(count, &value) || !Take('}')) {
        return ErrorAt(start, "\\u{} needs 1 to 6 hexadecimal digits");
      }
    } else if (!digits(kind == 'x' ? 2 : 4, &value)) {
      return ErrorAt(start, "the escape has too few hexadecimal digits");
    }
    if (value >= 0xD800 && value <= 0xDBFF && Peek() == '\\' && Peek(1) == 'u') {
      at_ += 2;
      char32_t low = 0;
      if (!digits(4, &low) || low < 0xDC00 || low > 0xDFFF) {
        return ErrorAt(start, "a surrogate pair is incomplete");
      }
      value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    if ((value >= 0xD800 && value <= 0xDFFF) || value > 0x10FFFF) {
      return ErrorAt(start, "the number is not a valid code point");
    }
    return value;
  }

  // Parses a character class. REQUIRES: at_ is after the bracket.
  absl::StatusOr<CodePoints> ParseClass(std::size_t start) {
    const bool negated = Take('^');
    std::vector<CodePoints::Range> ranges;
    // Parses a member. Sets `single` if it is one character, which can start or end a range.
    const auto member = [&](bool* single) -> absl::StatusOr<CodePoints> {
      const std::size_t at = at_;
      const char32_t c = chars_[at_++];
      if (c != '\\') {
        *single = true;
        return CodePoints({{c, c}});
      }
      const char32_t kind = Peek();
      if (kind == '-') {
        ++at_;
        *single = true;
        return CodePoints({{'-', '-'}});
      }
      *single = !IsClassEscape(kind);
      return ParseEscape(at, /*in_class=*/true);
    };
    while (!AtEnd() && Peek() != ']') {
      const std::size_t at = at_;
      bool single = false, last_single = false;
      QUIRE_ASSIGN_OR_RETURN(CodePoints first, member(&single));
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < chars_.size()) {
        ++at_;
        QUIRE_ASSIGN_OR_RETURN(const CodePoints last, member(&last_single));
        if (!single || !last_single) return ErrorAt(at, "a class cannot be the end of a range");
        const char32_t low = first.ranges()[0].first, high = last.ranges()[0].first;
        if (low > high) return ErrorAt(at, "the range is out of order");
        first = CodePoints({{low, high}});
      }
      if (single) {
        QUIRE_ASSIGN_OR_RETURN(first, CaseVariants(at, first, negated));
      } else if (negated && ignores_case_ && first.Contains('s') && first.Contains('k')) {
        first = first.Union(kLongS).Union(kKelvin);  // the other case variants of s and k
      }
      ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
    }
    if (!Take(']')) return ErrorAt(start, "\"[\" has no matching \"]\"");
    CodePoints set(std::move(ranges));
    if (negated) set = set.Complement();
    if (set.empty()) return ErrorAt(start, "the class has no characters");
    return set;
  }

  absl::StatusOr<Regex> ParseCount(Regex body) {
    const std::size_t start = at_;
    std::int64_t min = 0;
    std::optional<std::int64_t> max;
    if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Take('{')) {
      const auto number = [&]() -> std::optional<std::int64_t> {
        if (Peek() < '0' || Peek() > '9') return std::nullopt;
        std::int64_t value = 0;
        for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
          value = std::min<std::int64_t>(value * 10 + (Peek() - '0'), kLongest);
        }
        return value;
      };
      const std::optional<std::int64_t> low = number();
      if (!low) return ErrorAt(start, "\"{\" must be followed by a count");
      min = *low;
      max = min;
      if (Take(',')) max = number();
      if (!Take('}')) return ErrorAt(start, "\"{\" has no matching \"}\"");
      if (max && *max < min) return ErrorAt(start, "the counts are out of order");
      if (std::max(min, max.value_or(0)) > kMaxRegexCount) {
        return ErrorAt(start, absl::StrCat("counts must be at most ", kMaxRegexCount));
      }
    } else if (!Take('*')) {
      return body;
    }
    if (++num_repeats_ > kMaxRegexRepeats) {
      return ErrorAt(start, absl::StrCat("there are more than ", kMaxRegexRepeats, " repetitions"));
    }
    Take('?');  // laziness is ignored
    if (!AtEnd() && (Peek() == '*' || Peek() == '+' || Peek() == '?' || Peek() == '{')) {
      return Error("a repetition cannot be repeated; use a group");
    }
    return Repeat(std::move(body), min, max);
  }

  const RegexMeaning meaning_;
  const std::vector<char32_t> chars_;
  std::size_t at_ = 0;
  bool ignores_case_ = false;
  int num_parts_ = 0;
  int num_repeats_ = 0;
};

std::int64_t Bounded(std::int64_t value) {
  return std::min(value, kLongest);
}

// Returns the positions where matches that begin at one of `starts` end. The result is invalid if
// the steps run out.
std::set<std::size_t> EndsFrom(const Regex& regex, const std::vector<char32_t>& text,
                               const std::set<std::size_t>& starts, std::int64_t* steps) {
  std::set<std::size_t> ends;
  // A visit here takes as long as four steps elsewhere.
  *steps -= 4 * (1 + static_cast<std::int64_t>(starts.size()));
  if (*steps < 0) return ends;
  switch (regex.kind) {
    case Regex::Kind::kCharacter:
      for (const std::size_t at : starts) {
        if (at < text.size() && regex.set.Contains(text[at])) ends.insert(at + 1);
      }
      return ends;
    case Regex::Kind::kSequence:
      ends = starts;
      for (const Regex& part : regex.parts) ends = EndsFrom(part, text, ends, steps);
      return ends;
    case Regex::Kind::kChoice:
      for (const Regex& part : regex.parts) ends.merge(EndsFrom(part, text, starts, steps));
      return ends;
    case Regex::Kind::kRepeat: {
      std::set<std::size_t> at = starts;
      std::int64_t count = 0;
      // The loops stop when a repetition adds no new end, so `count` is at most the text length.
      for (; count < regex.min && !at.empty(); ++count) {
        std::set<std::size_t> next = EndsFrom(regex.parts[0], text, at, steps);
        if (next == at) break;
        at = std::move(next);
      }
      ends = at;
      for (; !regex.max || count < *regex.max; ++count) {
        at = EndsFrom(regex.parts[0], text, at, steps);
        const std::size_t before = ends.size();
        ends.insert(at.begin(), at.end());
        if (ends.size() == before) break;
      }
      return ends;
    }
  }
  return ends;
}

}  // namespace

absl::StatusOr<Regex> ParseRegex(absl::string_view pattern, RegexMeaning meaning) {
  if (FirstInvalidUtf8(pattern))
    return absl::InvalidArgumentError("the expression is not valid UTF-8");
  return Parser(pattern, meaning).Parse();
}

Regex AnyText(std::int64_t min, std::optional<std::int64_t> max) {
  return Repeat(Character(CodePoints::All()), min, max);
}

GrammarText::Expression WriteRegex(const Regex& regex, Spelling spelling, GrammarText* grammar) {
  std::vector<GrammarText::Expression> parts;
  if (grammar->is_refused()) return GrammarText::Empty();
  switch (regex.kind) {
    case Regex::Kind::kCharacter:
      return grammar->Character(regex.set, spelling);
    case Regex::Kind::kRepeat: {
      const Regex& body = regex.parts[0];
      if (regex.max_chars) {
        // The last repetition may exceed the limit by at most `once` - 1 characters.
        const std::int64_t once = LengthOf(body).max.value_or(0);
        return grammar->RepeatWithinChars(WriteRegex(body, spelling, grammar),
                                          *regex.max_chars - once + 1);
      }
      if (body.kind == Regex::Kind::kCharacter) {
        return grammar->RepeatCharacter(body.set, spelling, regex.min, regex.max);
      }
      return grammar->Repeat(WriteRegex(body, spelling, grammar), regex.min, regex.max);
    }
    case Regex::Kind::kSequence:
    case Regex::Kind::kChoice:
      break;
  }
  for (const Regex& part : regex.parts) parts.push_back(WriteRegex(part, spelling, grammar));
  return regex.kind == Regex::Kind::kSequence ? GrammarText::Sequence(parts)
                                              : GrammarText::Choice(parts);
}

TextLength LengthOf(const Regex& regex) {
  switch (regex.kind) {
    case Regex::Kind::kCharacter:
      return {1, 1};
    case Regex::Kind::kSequence: {
      TextLength sum{0, 0};
      for (const Regex& part : regex.parts) {
        const TextLength length = LengthOf(part);
        sum.min = Bounded(sum.min + length.min);
        sum.max =
            sum.max && length.max ? std::optional(Bounded(*sum.max + *length.max)) : std::nullopt;
      }
      return sum;
    }
    case Regex::Kind::kChoice: {
      TextLength either{kLongest, 0};
      for (const Regex& part : regex.parts) {
        const TextLength length = LengthOf(part);
        either.min = std::min(either.min, length.min);
        either.max = either.max && length.max ? std::optional(std::max(*either.max, *length.max))
                                              : std::nullopt;
      }
      return either;
    }
    case Regex::Kind::kRepeat: {
      const TextLength once = LengthOf(regex.parts[0]);
      TextLength length{Bounded(once.min * regex.min), std::nullopt};
      if (regex.max_chars) {
        length.max = regex.max_chars;
      } else if (once.max == 0) {
        length.max = 0;
      } else if (once.max && regex.max) {
        length.max = Bounded(*once.max * *regex.max);
      }
      return length;
    }
  }
  return {};
}

namespace {

std::optional<Regex> SequenceWithoutFirst(const Regex& regex, const CodePoints& excluded,
                                          bool may_be_empty) {
  constexpr std::size_t kMaxEmptyParts = 16;  // each part copies the parts after it
  std::vector<Regex> options;
  std::size_t at = 0;
  for (; at < regex.parts.size() && at < kMaxEmptyParts; ++at) {
    if (auto first = ExcludeFirst(regex.parts[at], excluded, /*may_be_empty=*/false)) {
      std::vector<Regex> parts = {*std::move(first)};
      parts.insert(parts.end(), regex.parts.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                   regex.parts.end());
      options.push_back(MakeRegex(Regex::Kind::kSequence, std::move(parts)));
    }
    if (LengthOf(regex.parts[at]).min > 0) break;
  }
  if (at == regex.parts.size() && may_be_empty)
    options.push_back(MakeRegex(Regex::Kind::kSequence, {}));
  if (options.empty()) return std::nullopt;
  return MakeRegex(Regex::Kind::kChoice, std::move(options));
}

std::optional<Regex> RepeatWithoutFirst(const Regex& regex, const CodePoints& excluded,
                                        bool may_be_empty) {
  const Regex& body = regex.parts[0];
  std::vector<Regex> options;
  if (may_be_empty && LengthOf(regex).min == 0)
    options.push_back(MakeRegex(Regex::Kind::kSequence, {}));
  std::optional<Regex> first;
  if (regex.max != 0) first = ExcludeFirst(body, excluded, /*may_be_empty=*/false);
  Regex rest = regex;
  rest.min = std::max<std::int64_t>(regex.min - 1, 0);
  if (regex.max) rest.max = *regex.max - 1;
  if (regex.max_chars) {
    rest.max_chars = *regex.max_chars - LengthOf(body).max.value_or(0);
    if (*rest.max_chars < LengthOf(body).max.value_or(0)) first.reset();
  }
  if (first) {
    options.push_back(MakeRegex(Regex::Kind::kSequence, {*std::move(first), std::move(rest)}));
  }
  if (options.empty()) return std::nullopt;
  return MakeRegex(Regex::Kind::kChoice, std::move(options));
}

}  // namespace

std::optional<Regex> ExcludeFirst(const Regex& regex, const CodePoints& excluded,
                                  bool may_be_empty) {
  switch (regex.kind) {
    case Regex::Kind::kCharacter: {
      CodePoints others = regex.set.Minus(excluded);
      if (others.empty()) return std::nullopt;
      return Character(std::move(others));
    }
    case Regex::Kind::kSequence:
      return SequenceWithoutFirst(regex, excluded, may_be_empty);
    case Regex::Kind::kRepeat:
      return RepeatWithoutFirst(regex, excluded, may_be_empty);
    case Regex::Kind::kChoice:
      break;
  }
  std::vector<Regex> options;
  for (const Regex& part : regex.parts) {
    if (auto others = ExcludeFirst(part, excluded, may_be_empty)) {
      options.push_back(*std::move(others));
    }
  }
  if (options.empty()) return std::nullopt;
  return MakeRegex(Regex::Kind::kChoice, std::move(options));
}

std::optional<bool> Matches(const Regex& regex, absl::string_view text, std::int64_t* steps) {
  const std::vector<char32_t> chars = CodePointsOf(text);
  *steps -= static_cast<std::int64_t>(chars.size());
  const bool matches = EndsFrom(regex, chars, {0}, steps).contains(chars.size());
  return *steps < 0 ? std::nullopt : std::optional(matches);
}

}  // namespace quire::engine
