#pragma once

// Writes a grammar in the EBNF of the grammar library. Uses only constructs for which the library
// computes exact token masks.
//
//   GrammarText grammar;
//   const std::string digit = grammar.Character(CodePoints({{'0', '9'}}), Spelling::kPlain);
//   const auto text = grammar.Finish(GrammarText::Sequence({GrammarText::Literal("["), digit}));
//
// Place:      below the code that translates specs to grammars. An expression is a string of EBNF.
// Invariants: all names are generated here, so no name of a client equals one of the library's
//             macros. Only rules are repeated with a count, because with a repeated character class
//             the library (0.2.8) allows tokens that it then rejects.
// Threads:    one thread at a time.
// Lifetime:   only the object that created an expression can use it.

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

// How a character of a matched text is written in the output.
enum class Spelling : std::uint8_t {
  kPlain,         // unchanged
  kJsonString,    // as inside a JSON string: `"`, `\` and controls are escaped
  kSingleQuoted,  // as inside a single-quoted Python string: `'`, `\` and controls are escaped
};

class GrammarText {
 public:
  using Expression = std::string;
  using Rule = std::int32_t;

  static constexpr std::int64_t kMaxCounted = 16;
  static constexpr std::size_t kMaxBytes = 512 << 10;

  // Matches the empty text.
  static Expression Empty() { return "\"\""; }
  // REQUIRES: `text` is UTF-8.
  static Expression Literal(absl::string_view text);
  // Matches one token, regardless of its text.
  static Expression Token(std::int32_t id);
  static Expression Sequence(const std::vector<Expression>& parts);
  // REQUIRES: `options` is not empty.
  static Expression Choice(const std::vector<Expression>& options);

  // Removes these characters from all character sets passed later, except from sets that would
  // become empty.
  void Omit(CodePoints set) { omitted_ = std::move(set); }

  // Matches one character of the set. REQUIRES: the set is not empty.
  Expression Character(const CodePoints& set, Spelling spelling);
  // Matches `min` to `max` repetitions of the body. If `max` is nullopt, there is no upper limit.
  // REQUIRES: min <= max.
  Expression Repeat(const Expression& body, std::int64_t min, std::optional<std::int64_t> max);
  // Repeats a character of the set. If max - min exceeds kMaxCounted, characters are counted as in
  // RepeatWithinChars, where an escape counts as several. Texts with a length close to `max` may
  // then be excluded, but no text longer than `max` is allowed.
  Expression RepeatCharacter(const CodePoints& set, Spelling spelling, std::int64_t min,
                             std::optional<std::int64_t> max);
  // Like RepeatCharacter, but exact and followed by `end`. Masks are fast, but the library needs
  // about 10 ms per character of `max` to prepare them, with a large set and 128 000 tokens.
  Expression CharactersBefore(const Expression& end, const CodePoints& set, Spelling spelling,
                              std::int64_t min, std::int64_t max);
  // Repeats the body any number of times, with at most about `max_chars` characters of output in
  // total; the last repetition may exceed this. REQUIRES: every repetition may be the last.
  Expression RepeatWithinChars(const Expression& body, std::int64_t max_chars);

  // Creates a rule, which may be referenced before it is defined.
  Rule Reserve();
  // `followed_by` describes the text that follows every occurrence of the rule; empty if it is
  // unknown. Masks are exact in both cases, but take longer to compute without a description.
  void Define(Rule rule, const Expression& body, const Expression& followed_by = {});
  // Creates a rule for the body; equal bodies share one rule.
  Expression Share(const Expression& body);
  static Expression Reference(Rule rule);

  // Marks the grammar as rejected, so that Finish fails. Finish returns the first reason.
  void Refuse(std::string why);
  bool is_refused() const { return !refusal_reason_.empty(); }

  // Returns a slot, initially empty, for an expression that several writers of this grammar share.
  // While characters are omitted, separate slots are used.
  Expression& CachedExpression(absl::string_view name) {
    return cached_expressions_[std::pair(omitted_.empty(), std::string(name))];
  }

  // Returns the grammar. Returns INVALID_ARGUMENT with the reason if it was rejected or exceeds
  // kMaxBytes.
  absl::StatusOr<std::string> Finish(const Expression& root);

 private:
  // Returns the set without the omitted characters, unless it would become empty.
  CodePoints KeepAllowed(const CodePoints& set) const;

  void RefuseLength();

  std::string text_;
  std::string refusal_reason_;
  Rule num_rules_ = 0;
  CodePoints omitted_;
  std::map<std::pair<bool, std::string>, Expression> cached_expressions_;
  std::map<std::string, Expression, std::less<>> shared_expressions_;
};

}  // namespace quire::engine
