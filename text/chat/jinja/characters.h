#pragma once

// Properties and case mappings of characters, as Python's str methods use them.
//
// Place:      below strings.h.
// Threads:    pure functions.
// Source:     the Unicode Character Database: SpecialCasing.txt, CaseFolding.txt and
//             DerivedCoreProperties.txt. The tables were generated with CPython 3.11 (Unicode 14).
//             Categories come from utf8proc 2.8 (Unicode 15).

#include <string>

#include "absl/strings/string_view.h"

namespace quire::text::jinja {

bool IsLetter(char32_t c);
bool IsLower(char32_t c);
bool IsUpper(char32_t c);
bool IsTitle(char32_t c);
bool IsCased(char32_t c);  // lower, upper or title case
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);         // decimal digits, superscripts, circled digits
bool IsNumericValue(char32_t c);  // any character with a numeric value, ideographs included
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);
// Returns whether repr leaves the character unescaped. The noncharacters that chat_marker.h inserts
// count as printable, so that repr does not escape them.
bool IsPrintable(char32_t c);

// Append the full case mapping of the character, which may have several characters.
void AppendUpper(char32_t c, std::string& out);
void AppendTitle(char32_t c, std::string& out);
void AppendFolded(char32_t c, std::string& out);
// Appends the lower case of the character at byte `at` of `text`. The lower case of capital sigma
// depends on the characters around it.
void AppendLower(absl::string_view text, std::size_t at, std::string& out);

}  // namespace quire::text::jinja
