#include "engine/constraint/grammar_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/utf8.h"

namespace quire::engine {

namespace {

using Expression = GrammarText::Expression;

constexpr absl::string_view kShortEscapes = "\b\f\n\r\t\\";
constexpr absl::string_view kShortLetters = "bfnrt\\";

// Writes escapes of a fixed length, because the library reads \x with any number of digits.
void AppendCodePoint(char32_t code_point, std::string* out) {
  const bool plain = (code_point >= '0' && code_point <= '9') ||
                     (code_point >= 'A' && code_point <= 'Z') ||
                     (code_point >= 'a' && code_point <= 'z');
  if (plain) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point <= 0xFFFF) {
    absl::StrAppendFormat(out, "\\u%04x", static_cast<std::uint32_t>(code_point));
  } else {
    absl::StrAppendFormat(out, "\\U%08x", static_cast<std::uint32_t>(code_point));
  }
}

std::string ClassText(const CodePoints& set) {
  std::string out = "[";
  for (const auto& [first, last] : set.ranges()) {
    AppendCodePoint(first, &out);
    if (last > first) {
      out += "-";
      AppendCodePoint(last, &out);
    }
  }
  return out + "]";
}

// Returns the ways to write one character of the set.
std::vector<Expression> Spellings(const CodePoints& set, Spelling spelling) {
  QUIRE_CHECK(!set.empty());
  if (spelling == Spelling::kPlain) return {ClassText(set)};
  const char32_t quote = spelling == Spelling::kJsonString ? '"' : '\'';
  const CodePoints escaped({{0, 0x1F}, {quote, quote}, {'\\', '\\'}});
  std::vector<Expression> options;
  if (const CodePoints raw = set.Minus(escaped); !raw.empty()) options.push_back(ClassText(raw));
  std::vector<CodePoints::Range> letters;
  if (set.Contains(quote)) letters.emplace_back(quote, quote);
  CodePoints controls = set.Intersect(CodePoints({{0, 0x1F}}));
  for (std::size_t i = 0; i < kShortEscapes.size(); ++i) {
    const auto c = static_cast<char32_t>(kShortEscapes[i]);
    if (!set.Contains(c)) continue;
    letters.emplace_back(kShortLetters[i], kShortLetters[i]);
    controls = controls.Minus(CodePoints({{c, c}}));
  }
  if (!letters.empty()) {
    options.push_back(GrammarText::Sequence(
        {GrammarText::Literal("\\"), ClassText(CodePoints(std::move(letters)))}));
  }
  for (char32_t high = 0; high < 2; ++high) {
    std::vector<CodePoints::Range> digits;
    for (char32_t low = 0; low < 16; ++low) {
      if (!controls.Contains(high * 16 + low)) continue;
      if (low < 10) {
        digits.emplace_back('0' + low, '0' + low);
      } else {
        digits.emplace_back('a' + low - 10, 'a' + low - 10);
        digits.emplace_back('A' + low - 10, 'A' + low - 10);
      }
    }
    if (digits.empty()) continue;
    options.push_back(GrammarText::Sequence({GrammarText::Literal(high == 0 ? "\\u000" : "\\u001"),
                                             ClassText(CodePoints(std::move(digits)))}));
  }
  return options;
}

}  // namespace

GrammarText::Expression GrammarText::Literal(absl::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8At(text, at);
    AppendCodePoint(c.code_point, &out);
    at += c.size_bytes;
  }
  return out + "\"";
}

GrammarText::Expression GrammarText::Token(std::int32_t id) {
  return absl::StrCat("Token(", id, ")");
}

GrammarText::Expression GrammarText::Sequence(const std::vector<Expression>& parts) {
  return parts.empty() ? Empty() : absl::StrJoin(parts, " ");
}

GrammarText::Expression GrammarText::Choice(const std::vector<Expression>& options) {
  QUIRE_CHECK(!options.empty());
  return options.size() == 1 ? options[0] : absl::StrCat("(", absl::StrJoin(options, " | "), ")");
}

CodePoints GrammarText::KeepAllowed(const CodePoints& set) const {
  CodePoints allowed = set.Minus(omitted_);
  return allowed.empty() ? set : allowed;
}

GrammarText::Expression GrammarText::Character(const CodePoints& set, Spelling spelling) {
  const std::vector<Expression> options = Spellings(KeepAllowed(set), spelling);
  return options.size() == 1 ? options[0] : Share(Choice(options));
}

GrammarText::Expression GrammarText::RepeatCharacter(const CodePoints& set, Spelling spelling,
                                                     std::int64_t min,
                                                     std::optional<std::int64_t> max) {
  const Expression once = Character(set, spelling);
  if (max && *max - min <= kMaxCounted) return Repeat(once, min, max);
  if (min <= 1 && !max) return Repeat(once, min, max);
  const Expression free = max ? RepeatWithinChars(once, *max - min) : Repeat(once, 0, std::nullopt);
  if (min == 0) return free;
  const Expression counted = Repeat(once, min, min);
  return Sequence(min <= kMaxCounted ? std::vector{free, counted} : std::vector{counted, free});
}

GrammarText::Expression GrammarText::CharactersBefore(const Expression& end, const CodePoints& set,
                                                      Spelling spelling, std::int64_t min,
                                                      std::int64_t max) {
  const std::vector<Expression> spellings = Spellings(KeepAllowed(set), spelling);
  Expression rest = end;
  for (std::int64_t before = max; before-- > 0;) {
    std::vector<Expression> options;
    if (before >= min) options.push_back(end);
    for (const Expression& once : spellings) options.push_back(Sequence({once, rest}));
    rest = Share(Choice(options));
  }
  return rest;
}

GrammarText::Expression GrammarText::Repeat(const Expression& body, std::int64_t min,
                                            std::optional<std::int64_t> max) {
  QUIRE_CHECK(min >= 0 && (!max || *max >= min));
  if (max == 0) return Empty();
  if (min == 1 && max == 1) return body;
  const Expression rule = Share(body);
  if (!max) {
    if (min <= 1) return absl::StrCat(rule, min == 0 ? "*" : "+");
    return Sequence({absl::StrCat(rule, "{", min, "}"), absl::StrCat(rule, "*")});
  }
  if (min == 0 && max == 1) return absl::StrCat(rule, "?");
  return absl::StrCat(rule, "{", min, ",", *max, "}");
}

GrammarText::Expression GrammarText::RepeatWithinChars(const Expression& body,
                                                       std::int64_t max_chars) {
  const Rule rule = Reserve();
  const Expression once = Share(body);
  if (!is_refused()) {
    absl::StrAppend(&text_, Reference(rule), "[max_chars=", max_chars, "] ::= ", once, "*\n");
  }
  return Reference(rule);
}

GrammarText::Rule GrammarText::Reserve() {
  return num_rules_++;
}

void GrammarText::Define(Rule rule, const Expression& body, const Expression& followed_by) {
  if (is_refused()) return;
  absl::StrAppend(&text_, Reference(rule), " ::= ", body);
  if (!followed_by.empty()) absl::StrAppend(&text_, " (=(", followed_by, "))");
  text_ += '\n';
  if (text_.size() > kMaxBytes) RefuseLength();
}

GrammarText::Expression GrammarText::Share(const Expression& body) {
  // A body that is already a rule keeps its name. A second name would prevent the library from
  // recognizing the rule and make masks hundreds of times slower.
  if (body[0] == 'q' && body.find_first_not_of("0123456789", 1) == std::string::npos) return body;
  const auto found = shared_expressions_.find(body);
  if (found != shared_expressions_.end()) return found->second;
  const Rule rule = Reserve();
  Define(rule, body);
  return shared_expressions_.emplace(body, Reference(rule)).first->second;
}

GrammarText::Expression GrammarText::Reference(Rule rule) {
  return absl::StrCat("q", rule);
}

void GrammarText::Refuse(std::string why) {
  if (!is_refused()) refusal_reason_ = std::move(why);
}

void GrammarText::RefuseLength() {
  Refuse(absl::StrCat("the grammar of the constraint exceeds ", kMaxBytes, " bytes"));
}

absl::StatusOr<std::string> GrammarText::Finish(const Expression& root) {
  std::string grammar = absl::StrCat("root ::= ", root, "\n", text_);
  if (grammar.size() > kMaxBytes) RefuseLength();
  if (is_refused()) return absl::InvalidArgumentError(refusal_reason_);
  return grammar;
}

}  // namespace quire::engine
