#pragma once

// Regular expressions: the subset of ECMAScript (with the `u` flag) that describes a regular
// language.
//
// Place:      below the reader of schemas (`pattern`, formats) and the writers of constraints;
//             above grammar_text.
// Invariants: unsupported syntax is rejected with its position in characters: \b, look-around,
//             back-references, \p, anchors inside an expression, flags other than i. Laziness and
//             group names are ignored, because they do not affect the language. With the flag i,
//             ASCII letters match in either case, and other letters that have a case are rejected.
// Threads:    pure functions.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/code_points.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

inline constexpr std::int64_t kMaxRegexCount = 4096;  // maximum m and n of {m,n}
inline constexpr int kMaxRegexDepth = 100;            // nesting of groups
inline constexpr int kMaxRegexParts = 8192;           // number of characters, classes and groups
inline constexpr int kMaxRegexRepeats = 1024;

struct Regex {
  enum class Kind : std::uint8_t { kCharacter, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CodePoints set = {};            // kCharacter
  std::vector<Regex> parts = {};  // for kSequence and kChoice; one for kRepeat
  std::int64_t min = 0;           // kRepeat
  std::optional<std::int64_t> max = std::nullopt;
  // Maximum number of characters of all repetitions together. Only for kRepeat with a bounded body
  // and without `min` and `max`. Matches() does not enforce it.
  std::optional<std::int64_t> max_chars = std::nullopt;
};

// Whether an expression without anchors matches whole texts, or texts that contain a match.
enum class RegexMeaning : std::uint8_t { kWhole, kContains };

// Returns INVALID_ARGUMENT with the position for invalid or unsupported syntax.
absl::StatusOr<Regex> ParseRegex(absl::string_view pattern, RegexMeaning meaning);

// Returns an expression for all texts of `min` to `max` characters; nullopt means no maximum.
Regex AnyText(std::int64_t min, std::optional<std::int64_t> max);

GrammarText::Expression WriteRegex(const Regex& regex, Spelling spelling, GrammarText* grammar);

// Minimum and maximum number of characters of the strings that match; `max` is nullopt if there is
// no maximum.
struct TextLength {
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
};
TextLength LengthOf(const Regex& regex);

// Returns an expression for those matches of `regex` whose first character is not in `excluded`.
// The result matches "" if `regex` does and `may_be_empty` is set. If many leading parts can be
// empty, matches that begin with a later part are excluded too. Returns nullopt if no match
// remains.
std::optional<Regex> ExcludeFirst(const Regex& regex, const CodePoints& excluded,
                                  bool may_be_empty);

// Returns whether the expression matches the whole text. Subtracts the used steps from `steps`;
// their number is about the product of the sizes of expression and text. Returns nullopt if the
// steps run out.
std::optional<bool> Matches(const Regex& regex, absl::string_view text, std::int64_t* steps);

}  // namespace quire::engine
