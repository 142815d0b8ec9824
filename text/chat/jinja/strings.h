#pragma once

// Texts as Python sees them: sequences of characters, with its notion of white space and lines.
//
// Place:      below values and methods of the template engine.
// Invariants: arguments and results are UTF-8; places and counts are in characters.
// Threads:    pure.
// Source:     documentation of Python's str type; the search of Knuth, Morris and Pratt.
//             Character data are those of characters.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text::jinja {

// str.isspace of one character: White_Space and U+001C to U+001F.
bool IsPythonSpace(char32_t c);

// Appends repr(text).
void AppendStringRepr(absl::string_view text, std::string& out);
// Returns ascii of a value whose repr is given: the characters outside of ASCII are escaped.
std::string EscapeNonAscii(absl::string_view repr);

enum class Side : std::uint8_t { kLeft, kRight, kBoth };
// strip, lstrip, rstrip; `chars` absent: white space.
absl::string_view StripChars(absl::string_view text, Side side,
                             std::optional<absl::string_view> chars);

// Where `part` begins in `text`, first and last, in bytes; npos when it is not there. Linear in
// both, whatever they are, which std::string_view does not promise.
std::size_t FindFirst(absl::string_view text, absl::string_view part, std::size_t from = 0);
std::size_t FindLast(absl::string_view text, absl::string_view part);

// str.split or rsplit. `separator` absent: runs of white space; REQUIRES: it is not empty.
// `max_splits` < 0: no limit.
std::vector<std::string> SplitText(absl::string_view text,
                                   std::optional<absl::string_view> separator,
                                   std::int64_t max_splits, bool from_right);
// At least as many as SplitText (without limit) and SplitTextLines give; they need no memory.
std::int64_t CountParts(absl::string_view text, std::optional<absl::string_view> separator);
std::int64_t CountLines(absl::string_view text);
std::vector<std::string> SplitTextLines(absl::string_view text, bool keep_ends);

// str.replace; `count` < 0: all.
std::string ReplaceText(absl::string_view text, absl::string_view from, absl::string_view to,
                        std::int64_t count);

std::string ToLower(absl::string_view text);
std::string ToUpper(absl::string_view text);
std::string Capitalize(absl::string_view text);
// str.title.
std::string TitleCase(absl::string_view text);
std::string SwapCase(absl::string_view text);
std::string CaseFold(absl::string_view text);

// str.islower and so on; false for empty texts, except kAscii and kPrintable.
enum class CharClass : std::uint8_t {
  kSpace,
  kAlpha,
  kDecimal,
  kDigit,
  kNumeric,
  kAlnum,
  kAscii,
  kPrintable,
  kLower,
  kUpper
};
bool AllOfClass(absl::string_view text, CharClass wanted);
// str.istitle and str.isidentifier.
bool IsTitleCase(absl::string_view text);
bool IsIdentifier(absl::string_view text);

// str.expandtabs. Each tab adds at most max(tab_size, 0) characters.
std::string ExpandTabs(absl::string_view text, std::int64_t tab_size);

// The character at `index` (from 0), and the text from character `begin` to `end`. REQUIRES: within
// the text.
absl::string_view CharAt(absl::string_view text, std::int64_t index);
absl::string_view CharRange(absl::string_view text, std::int64_t begin, std::int64_t end);
std::vector<absl::string_view> Characters(absl::string_view text);

}  // namespace quire::text::jinja
