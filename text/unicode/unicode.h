#pragma once

// Character classes of the components, with the sets that Hugging Face tokenizers uses.
//
// Place:      bottom of text/; the only user of utf8proc besides the normalizer.
// Invariants: Unicode 15 (utf8proc 2.8); where the original has older or newer tables, the
//             difference is listed in docs/tokenizers.md.
// Threads:    pure.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire::text {

bool IsSpace(char32_t c);        // the 25 characters of White_Space
bool IsPunctuation(char32_t c);  // ASCII punctuation with symbols, and category P
bool IsNumeric(char32_t c);      // categories Nd, Nl, No
bool IsMark(char32_t c);         // categories Mn, Mc, Me

// Unconditional lower case of one character, without context: no final sigma; U+0130 gives two.
void AppendLowercase(char32_t c, std::string& out);

// The GPT-2 table: a printable character for every byte. Printable Latin-1 stands for itself, the
// other 68 bytes are U+0100 onwards in order. Source: openai/gpt-2, bytes_to_unicode.
char32_t ByteToChar(std::uint8_t byte);
std::optional<std::uint8_t> CharToByte(char32_t c);
// The table's character as UTF-8: always one or two bytes.
absl::string_view ByteToUtf8(std::uint8_t byte);

}  // namespace quire::text
