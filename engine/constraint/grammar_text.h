#pragma once

// Writes a grammar in the EBNF of the grammar library, in the forms of it whose masks are exact.
//
//   GrammarText grammar;
//   const std::string digit = grammar.Class(CodePoints({{'0', '9'}}));
//   grammar.DefineRoot(GrammarText::Sequence({grammar.Literal("["), digit, grammar.Literal("]")}));
//
// Place:      below what turns specs into grammars; above nothing. Expressions are texts.
// Invariants: every name is made here, so no name of a client meets one of the library's macros. A
//             counted repetition is always one of a rule: of a character class in place the
//             library (0.2.8) allows tokens that it then refuses.
// Threads:    one at a time.
// Lifetime:   expressions are of use to the object that made them alone.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/code_points.h"

namespace quire::engine {

// How text of the language is spelled in the output.
enum class Spelling : std::uint8_t {
  kPlain,         // as it is
  kJsonString,    // as within the quotes of a JSON string: `"`, `\` and controls escaped
  kSingleQuoted,  // as within single quotes of a string of Python: `'`, `\` and controls escaped
};

class GrammarText {
 public:
  using Expression = std::string;
  using Rule = std::int32_t;

  static constexpr std::int64_t kMaxCounted = 16;
  static constexpr std::size_t kMaxBytes = 512 << 10;

  // Matches the empty text; matches nothing at all.
  static Expression Empty() { return "\"\""; }
  // REQUIRES: `text` is UTF-8.
  static Expression Literal(absl::string_view text);
  // One token, whatever its text is.
  static Expression Token(std::int32_t id);
  static Expression Sequence(const std::vector<Expression>& parts);
  // REQUIRES: `options` is not empty.
  static Expression Choice(const std::vector<Expression>& options);

  // Characters that no character of a set is from now on, unless the set has no others.
  void Omit(CodePoints set) { omitted_ = std::move(set); }

  // One character of the set. REQUIRES: it is not empty.
  Expression Character(const CodePoints& set, Spelling spelling);
  // `max` absent: without limit. REQUIRES: min <= max.
  Expression Repeat(const Expression& body, std::int64_t min, std::optional<std::int64_t> max);
  // One character of the set so many times. More than kMaxCounted times beyond `min` they are
  // counted as RepeatWithinChars does, an escape as several: texts may then be left out that are as
  // long as `max` allows, and none is let in that is longer.
  Expression RepeatCharacter(const CodePoints& set, Spelling spelling, std::int64_t min,
                             std::optional<std::int64_t> max);
  // The same, exactly, with what follows: the form whose masks are fast, and that takes the library
  // long to prepare, about 10 ms for each of `max` with a large set and 128 000 tokens.
  Expression CharactersBefore(const Expression& end, const CodePoints& set, Spelling spelling,
                              std::int64_t min, std::int64_t max);
  // The body any number of times, with at most about `max_chars` characters of output altogether:
  // the last repetition may end beyond. REQUIRES: every repetition may be the last.
  Expression RepeatWithinChars(const Expression& body, std::int64_t max_chars);

  // A rule may be named before it is defined.
  Rule Reserve();
  // `followed_by`: what text goes on with wherever the rule ends, or nothing comes; empty: not
  // known. Masks that are made beforehand are exact without it, and take longer to be completed.
  void Define(Rule rule, const Expression& body, const Expression& followed_by = {});
  // A rule for the body; equal bodies share one.
  Expression Share(const Expression& body);
  static Expression Reference(Rule rule);

  // The grammar will not be finished; the first reason counts.
  void Refuse(std::string why);
  bool is_refused() const { return !refused_.empty(); }

  // Empty until set, for an expression that several writers into this grammar have in common;
  // another one while something is omitted.
  Expression& Kept(absl::string_view name) {
    return kept_[std::pair(omitted_.empty(), std::string(name))];
  }

  // The grammar. INVALID_ARGUMENT with the reason if it was refused or has more than kMaxBytes.
  absl::StatusOr<std::string> Finish(const Expression& root);

 private:
  // The set without what is omitted, unless it has no others.
  CodePoints Allowed(const CodePoints& set) const;

  void RefuseLength();

  std::string text_;
  std::string refused_;
  Rule num_rules_ = 0;
  CodePoints omitted_;
  std::map<std::pair<bool, std::string>, Expression> kept_;
  std::map<std::string, Expression, std::less<>> shared_;
};

}  // namespace quire::engine
