#pragma once

// Properties of characters and case mappings as Python's str methods use them.
//
// Place:      below strings.h.
// Threads:    pure.
// Source:     the Unicode Character Database: SpecialCasing.txt, CaseFolding.txt and
//             DerivedCoreProperties.txt. CPython 3.11, which has Unicode 14, printed the tables.
//             Categories are those of utf8proc 2.8, which has Unicode 15.

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
// True for characters that repr does not escape. The noncharacters that mark literal text
// (chat_template.h) count as printable, so that no printing loses them.
bool IsPrintable(char32_t c);

// Full mappings, which may give several characters.
void AppendUpper(char32_t c, std::string& out);
void AppendTitle(char32_t c, std::string& out);
void AppendFolded(char32_t c, std::string& out);
// The lower case of the character at byte `at` of `text`: capital sigma depends on its neighbours.
void AppendLower(absl::string_view text, std::size_t at, std::string& out);

}  // namespace quire::text::jinja
