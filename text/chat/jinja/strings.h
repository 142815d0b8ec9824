#pragma once

// Strings with Python's semantics: sequences of characters, and Python's white space and line ends.
//
// Place:      below values and methods of the template engine.
// Invariants: arguments and results are UTF-8; indices and counts are in characters.
// Threads:    pure functions.
// Source:     documentation of Python's str type; the Knuth-Morris-Pratt search. characters.h has
//             the character data.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text::jinja {

// Implements str.isspace for one character: White_Space and U+001C to U+001F.
bool IsPythonSpace(char32_t c);

// Appends repr(text).
void AppendStringRepr(absl::string_view text, std::string& out);
// Implements Python's ascii(): escapes the non-ASCII characters of a repr.
std::string EscapeNonAscii(absl::string_view repr);

enum class Side : std::uint8_t { kLeft, kRight, kBoth };
// Implements strip, lstrip and rstrip. If `chars` is nullopt, strips white space.
absl::string_view StripChars(absl::string_view text, Side side,
                             std::optional<absl::string_view> chars);

// Return the byte offset of the first or last `part` in `text`; npos if there is none. Both
// functions take time linear in the sizes of `text` and `part`, which std::string_view does not
// guarantee.
std::size_t FindFirst(absl::string_view text, absl::string_view part, std::size_t from = 0);
std::size_t FindLast(absl::string_view text, absl::string_view part);

// Implements str.split and rsplit. If `separator` is nullopt, splits at runs of white space.
// `max_splits` < 0: no limit. REQUIRES: `separator` is not empty.
std::vector<std::string> SplitText(absl::string_view text,
                                   std::optional<absl::string_view> separator,
                                   std::int64_t max_splits, bool from_right);
// Return, without allocating, upper bounds of the number of parts that SplitText (without limit)
// and SplitTextLines return.
std::int64_t CountParts(absl::string_view text, std::optional<absl::string_view> separator);
std::int64_t CountLines(absl::string_view text);
std::vector<std::string> SplitTextLines(absl::string_view text, bool keep_ends);

// Implements str.replace; `count` < 0 replaces all.
std::string ReplaceText(absl::string_view text, absl::string_view from, absl::string_view to,
                        std::int64_t count);

std::string ToLower(absl::string_view text);
std::string ToUpper(absl::string_view text);
std::string Capitalize(absl::string_view text);
// Implements str.title.
std::string TitleCase(absl::string_view text);
std::string SwapCase(absl::string_view text);
std::string CaseFold(absl::string_view text);

// Returns whether `is` returns true for all characters; true for an empty text.
bool AllCharacters(absl::string_view text, bool (*is)(char32_t));
// Implement str.islower, isupper, istitle and isidentifier.
bool IsLowerCase(absl::string_view text);
bool IsUpperCase(absl::string_view text);
bool IsTitleCase(absl::string_view text);
bool IsIdentifier(absl::string_view text);

// Implements str.expandtabs. Each tab adds at most max(tab_size, 0) characters.
std::string ExpandTabs(absl::string_view text, std::int64_t tab_size);

// Returns the characters from `begin` to `end`. REQUIRES: 0 <= begin <= end, and `end` is at most
// the number of characters.
absl::string_view CharRange(absl::string_view text, std::int64_t begin, std::int64_t end);
std::vector<absl::string_view> Characters(absl::string_view text);

}  // namespace quire::text::jinja
