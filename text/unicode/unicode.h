#pragma once

// Character classes with the same sets as in Hugging Face tokenizers.
//
// Place:      bottom of text/. Other users of utf8proc are normal_form.cc,
//             sentencepiece/precompiled_map.cc and chat/jinja/characters.cc.
// Invariants: Unicode 15 (utf8proc 2.8). docs/tokenizers.md lists the differences to the versions
//             that the original packages use.
// Threads:    pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire::text {

bool IsSpace(char32_t c);        // the 25 characters of White_Space
bool IsPunctuation(char32_t c);  // ASCII punctuation and symbols, and category P
bool IsNumeric(char32_t c);      // categories Nd, Nl, No
bool IsMark(char32_t c);         // categories Mn, Mc, Me

// Returns the end of the white space that starts at `begin`. REQUIRES: `text` is UTF-8.
std::size_t SkipSpaces(absl::string_view text, std::size_t begin);
// Returns the start of the white space that ends at `end`, or `low` if it starts before `low`.
// REQUIRES: `text` is UTF-8.
std::size_t SkipSpacesBack(absl::string_view text, std::size_t end, std::size_t low);

// Appends the lower case of one character, regardless of context: there is no final sigma, and
// U+0130 gives two characters.
void AppendLowercase(char32_t c, std::string& out);

// The GPT-2 table, which maps every byte to a printable character. Printable Latin-1 bytes map to
// themselves, and the other 68 bytes to U+0100 onwards in order. Source: openai/gpt-2,
// bytes_to_unicode.
std::optional<std::uint8_t> CharToByte(char32_t c);
// Returns the character of `byte` as UTF-8, which has one or two bytes.
absl::string_view ByteToUtf8(std::uint8_t byte);

}  // namespace quire::text
