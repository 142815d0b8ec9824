#pragma once

// Regular expressions: the subset of ECMAScript (with its `u` flag) that describes a regular
// language.
//
// Place:      below json_schema (`pattern`, formats) and what builds constraints; above
//             grammar_text.
// Invariants: what is not supported is refused by its position in characters: \b, look-around,
//             back-references, \p, anchors within an expression, flags but i. Marks of laziness and
//             names of groups say nothing about a language and are read over. Where case is
//             ignored, letters match as ASCII has them, and others that have a case are refused.
// Threads:    pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/code_points.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

inline constexpr std::int64_t kMaxRegexCount = 4096;  // of {m,n}
inline constexpr int kMaxRegexDepth = 100;            // of groups
inline constexpr int kMaxRegexParts = 8192;           // characters, classes and groups
inline constexpr int kMaxRegexRepeats = 1024;

struct Regex {
  enum class Kind : std::uint8_t { kCharacter, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CodePoints set;            // kCharacter
  std::vector<Regex> parts;  // of kSequence and kChoice; one of kRepeat
  std::int64_t min = 0;      // kRepeat
  std::optional<std::int64_t> max;
  // kRepeat without `min` and `max`, with a bounded body: limit for the characters of all
  // repetitions together. Matches does not enforce it.
  std::optional<std::int64_t> max_chars = std::nullopt;
};

// Whether an expression without anchors stands for texts that match it as a whole, or for texts
// that contain a match.
enum class RegexMeaning : std::uint8_t { kWhole, kContains };

// INVALID_ARGUMENT with the position.
absl::StatusOr<Regex> ParseRegex(absl::string_view pattern, RegexMeaning meaning);

GrammarText::Expression WriteRegex(const Regex& regex, Spelling spelling, GrammarText* grammar);

// Bounds of the characters in a text of the language; `max` absent without one.
struct TextLength {
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
};
TextLength LengthOf(const Regex& regex);

// Returns the texts of the language that do not begin with a character of `taken`. The empty text
// is among them if it is in the language and `may_be_empty`. Behind many parts that may be empty,
// texts that begin with a later part are lost. Absent if there is no text.
std::optional<Regex> WithoutFirst(const Regex& regex, const CodePoints& taken, bool may_be_empty);

// Whether the text as a whole is in the language. Takes the steps that it needs from `steps`: about
// the product of the lengths of both; absent when they run out.
std::optional<bool> Matches(const Regex& regex, absl::string_view text, std::int64_t* steps);

}  // namespace quire::engine
