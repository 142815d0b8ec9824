#include "engine/constraint/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::engine {

namespace {

using Expression = GrammarText::Expression;

bool IsNameChar(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class GbnfParser {
 public:
  GbnfParser(absl::string_view text, GrammarText* grammar) : text_(text), grammar_(*grammar) {}

  absl::StatusOr<Expression> Parse() {
    SkipSpace(/*newlines=*/true);
    while (!AtEnd()) {
      QUIRE_RETURN_IF_ERROR(ParseRule());
      if (num_names_ > kMaxGbnfRules) {
        return Error(absl::StrCat("the grammar has more than ", kMaxGbnfRules, " rules"));
      }
      SkipSpace(/*newlines=*/true);
    }
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined)
        return ErrorAt(rule.seen_at, absl::StrCat("there is no rule \"", name, "\""));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return Error("there is no rule \"root\"");
    if (const std::string* unmatchable = FindUnmatchable()) {
      const bool group = (*unmatchable)[0] == '(';
      return ErrorAt(rules_.at(*unmatchable).seen_at,
                     group ? "no text matches the group"
                           : absl::StrCat("no text matches the rule \"", *unmatchable, "\""));
    }
    return GrammarText::Reference(root->second.id);
  }

 private:
  struct Rule {
    GrammarText::Rule id = 0;
    bool defined = false;
    std::size_t seen_at = 0;
    std::vector<std::set<std::string>> alternatives;  // the rules that each alternative needs
  };

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(std::size_t offset = 0) const {
    return at_ + offset < text_.size() ? text_[at_ + offset] : '\0';
  }
  bool Take(absl::string_view word) {
    if (!absl::StartsWith(text_.substr(at_), word)) return false;
    at_ += word.size();
    return true;
  }

  absl::Status Error(absl::string_view what) const { return ErrorAt(at_, what); }
  absl::Status ErrorAt(std::size_t at, absl::string_view what) const {
    const absl::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t start = before.rfind('\n');
    const std::size_t column = at - (start == absl::string_view::npos ? 0 : start + 1) + 1;
    return absl::InvalidArgumentError(absl::StrCat("line ", line, ", column ", column, ": ", what));
  }

  // Skips spaces and comments, and with `newlines` also newlines.
  void SkipSpace(bool newlines) {
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '#') {
        while (!AtEnd() && Peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  absl::StatusOr<std::string> ParseName() {
    const std::size_t start = at_;
    while (!AtEnd() && IsNameChar(static_cast<unsigned char>(Peek()))) ++at_;
    if (at_ == start) return Error("expected a name");
    return std::string(text_.substr(start, at_ - start));
  }

  Rule& RuleNamed(const std::string& name, std::size_t at) {
    const auto [entry, added] = rules_.try_emplace(name);
    if (added) {
      entry->second = {.id = grammar_.Reserve(), .seen_at = at, .alternatives = {}};
      ++num_names_;
    }
    return entry->second;
  }

  // Returns whether a rule definition, rather than an element, begins here.
  bool AtRule() {
    const std::size_t start = at_;
    while (!AtEnd() && IsNameChar(static_cast<unsigned char>(Peek()))) ++at_;
    const bool has_name = at_ > start;
    SkipSpace(/*newlines=*/false);
    const bool is_rule = has_name && absl::StartsWith(text_.substr(at_), "::=");
    at_ = start;
    return is_rule;
  }

  absl::Status ParseRule() {
    const std::size_t start = at_;
    QUIRE_ASSIGN_OR_RETURN(const std::string name, ParseName());
    SkipSpace(/*newlines=*/false);
    if (!Take("::=")) return Error("expected \"::=\"");
    if (RuleNamed(name, start).defined) {
      return ErrorAt(start, absl::StrCat("there is a second rule \"", name, "\""));
    }
    RuleNamed(name, start).defined = true;
    std::vector<std::set<std::string>> alternatives;
    QUIRE_ASSIGN_OR_RETURN(const Expression body, ParseChoice(0, &alternatives));
    Rule& rule = RuleNamed(name, start);
    rule.alternatives = std::move(alternatives);
    grammar_.Define(rule.id, body);
    if (!AtEnd() && !AtRule()) return Error("unexpected character");
    return absl::OkStatus();
  }

  absl::StatusOr<Expression> ParseChoice(int depth,
                                         std::vector<std::set<std::string>>* alternatives) {
    if (depth > kMaxGbnfDepth) {
      return Error(absl::StrCat("groups are nested deeper than ", kMaxGbnfDepth));
    }
    std::vector<Expression> options;
    do {
      std::set<std::string> needs;
      QUIRE_ASSIGN_OR_RETURN(Expression option, ParseSequence(depth, &needs));
      options.push_back(std::move(option));
      alternatives->push_back(std::move(needs));
    } while (Take("|"));
    return GrammarText::Choice(options);
  }

  absl::StatusOr<Expression> ParseSequence(int depth, std::set<std::string>* needs) {
    std::vector<Expression> parts;
    for (;;) {
      SkipSpace(/*newlines=*/true);
      if (AtEnd() || Peek() == '|' || Peek() == ')' || AtRule()) break;
      if (parts.size() == kMaxGbnfElements) {
        return Error(absl::StrCat("an alternative has more than ", kMaxGbnfElements, " elements"));
      }
      const std::size_t start = at_;
      std::vector<std::set<std::string>> alternatives;
      QUIRE_ASSIGN_OR_RETURN(const Expression element, ParseElement(depth, &alternatives));
      bool optional = false;
      QUIRE_ASSIGN_OR_RETURN(Expression repeated, ParseCount(element, &optional));
      parts.push_back(std::move(repeated));
      // A group with several alternatives does not need the rules of any single alternative. The
      // group is therefore recorded as a rule with a name that the grammar cannot contain.
      if (optional || alternatives.empty()) continue;
      if (alternatives.size() == 1) {
        needs->insert(alternatives[0].begin(), alternatives[0].end());
      } else {
        const std::string name = absl::StrCat("(", rules_.size());
        rules_[name] = {.defined = true, .seen_at = start, .alternatives = std::move(alternatives)};
        needs->insert(name);
      }
    }
    return GrammarText::Sequence(parts);
  }

  absl::StatusOr<Expression> ParseElement(int depth,
                                          std::vector<std::set<std::string>>* alternatives) {
    const std::size_t start = at_;
    if (Take("(")) {
      QUIRE_ASSIGN_OR_RETURN(Expression group, ParseChoice(depth + 1, alternatives));
      if (!Take(")")) return ErrorAt(start, "\"(\" has no matching \")\"");
      return absl::StrCat("(", group, ")");
    }
    if (Take("\"")) return ParseLiteral(start);
    if (Take("[")) return ParseClass(start);
    if (Take(".")) return grammar_.Character(CodePoints::All(), Spelling::kPlain);
    if (Peek() == '<' || Peek() == '!') return Error("tokens by name or id are not supported");
    if (!IsNameChar(static_cast<unsigned char>(Peek()))) return Error("unexpected character");
    QUIRE_ASSIGN_OR_RETURN(const std::string name, ParseName());
    alternatives->push_back({name});
    return GrammarText::Reference(RuleNamed(name, start).id);
  }

  absl::StatusOr<char32_t> ParseChar(std::size_t start) {
    if (AtEnd() || Peek() == '\n') return ErrorAt(start, "the literal or class is not closed");
    if (Peek() != '\\') {
      const Utf8Char c = DecodeUtf8At(text_, at_);
      at_ += c.size_bytes;
      return c.code_point;
    }
    const std::size_t at = at_++;
    const char kind = Peek();
    ++at_;
    static constexpr absl::string_view kLetters = "nrt\\\"[]-^/'";
    static constexpr absl::string_view kMeanings = "\n\r\t\\\"[]-^/'";
    if (const std::size_t i = kLetters.find(kind); i != absl::string_view::npos && kind != '\0') {
      return static_cast<unsigned char>(kMeanings[i]);
    }
    const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) return ErrorAt(at, "the escape is not supported");
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const auto c = static_cast<unsigned char>(Peek());
      const char32_t digit = c >= '0' && c <= '9'                     ? c - '0'
                             : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                      : 16;
      if (digit == 16) return ErrorAt(at, "the escape has too few hexadecimal digits");
      value = value * 16 + digit;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      return ErrorAt(at, "the number is not a valid code point");
    }
    return value;
  }

  absl::StatusOr<Expression> ParseLiteral(std::size_t start) {
    std::string text;
    while (!Take("\"")) {
      QUIRE_ASSIGN_OR_RETURN(const char32_t c, ParseChar(start));
      AppendUtf8(c, text);
    }
    return GrammarText::Literal(text);
  }

  absl::StatusOr<Expression> ParseClass(std::size_t start) {
    const bool negated = Take("^");
    std::vector<CodePoints::Range> ranges;
    while (!Take("]")) {
      const std::size_t at = at_;
      QUIRE_ASSIGN_OR_RETURN(const char32_t first, ParseChar(start));
      char32_t last = first;
      if (Peek() == '-' && Peek(1) != ']') {
        ++at_;
        QUIRE_ASSIGN_OR_RETURN(last, ParseChar(start));
        if (last < first) return ErrorAt(at, "the range is out of order");
      }
      ranges.emplace_back(first, last);
    }
    CodePoints set(std::move(ranges));
    if (negated) set = set.Complement();
    if (set.empty()) return ErrorAt(start, "the class has no characters");
    return grammar_.Character(set, Spelling::kPlain);
  }

  absl::StatusOr<Expression> ParseCount(const Expression& element, bool* optional) {
    const std::size_t start = at_;
    std::int64_t min = 0;
    std::optional<std::int64_t> max;
    if (Take("+")) {
      min = 1;
    } else if (Take("?")) {
      max = 1;
    } else if (Take("{")) {
      const auto number = [&]() -> std::optional<std::int64_t> {
        SkipSpace(/*newlines=*/false);
        if (Peek() < '0' || Peek() > '9') return std::nullopt;
        std::int64_t value = 0;
        for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
          value = std::min(value * 10 + (Peek() - '0'), kMaxGbnfCount + 1);
        }
        SkipSpace(/*newlines=*/false);
        return value;
      };
      const auto low = number();
      min = low.value_or(0);
      if (Take(",")) {
        max = number();
      } else {
        max = low;
        if (!low) return ErrorAt(start, "\"{\" must be followed by a count");
      }
      if (!Take("}")) return ErrorAt(start, "\"{\" has no matching \"}\"");
      if (max && *max < min) return ErrorAt(start, "the counts are out of order");
      if (std::max(min, max.value_or(0)) > kMaxGbnfCount) {
        return ErrorAt(start, absl::StrCat("counts must be at most ", kMaxGbnfCount));
      }
    } else if (!Take("*")) {
      return element;
    }
    if (Peek() == '*' || Peek() == '+' || Peek() == '?' || Peek() == '{') {
      return Error("a repetition cannot be repeated; use a group");
    }
    if (++num_repeats_ > kMaxGbnfRepeats) {
      return ErrorAt(start, absl::StrCat("there are more than ", kMaxGbnfRepeats, " repetitions"));
    }
    *optional = min == 0;
    return grammar_.Repeat(element, min, max);
  }

  // Returns a rule that matches no text, or null if there is none. Every alternative of such a rule
  // needs a rule that matches no text. Linear in the size of the grammar.
  const std::string* FindUnmatchable() const {
    struct Alternative {
      const std::string* rule;
      std::size_t missing;  // number of needed rules that are not known to match a text yet
    };
    std::vector<Alternative> alternatives;
    // For each rule, the indices of the alternatives that need it.
    std::map<std::string, std::vector<std::size_t>> alternatives_with;
    std::set<std::string> matchable;
    std::vector<const std::string*> pending;
    const auto add = [&](const std::string& name) {
      if (matchable.insert(name).second) pending.push_back(&name);
    };
    for (const auto& [name, rule] : rules_) {
      for (const std::set<std::string>& alternative : rule.alternatives) {
        for (const std::string& other : alternative)
          alternatives_with[other].push_back(alternatives.size());
        alternatives.push_back({&name, alternative.size()});
        if (alternative.empty()) add(name);
      }
    }
    while (!pending.empty()) {
      const std::string& name = *pending.back();
      pending.pop_back();
      for (const std::size_t alternative : alternatives_with[name]) {
        if (--alternatives[alternative].missing == 0) add(*alternatives[alternative].rule);
      }
    }
    for (const auto& [name, rule] : rules_) {
      if (!matchable.contains(name)) return &name;
    }
    return nullptr;
  }

  const absl::string_view text_;
  GrammarText& grammar_;
  std::size_t at_ = 0;
  std::map<std::string, Rule> rules_;  // rules, and the groups that ParseSequence records
  int num_names_ = 0;                  // number of rules, without these groups
  int num_repeats_ = 0;
};

}  // namespace

absl::StatusOr<Expression> WriteGbnf(absl::string_view text, GrammarText* grammar) {
  if (const auto at = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", *at, " is not valid UTF-8"));
  }
  return GbnfParser(text, grammar).Parse();
}

}  // namespace quire::engine
