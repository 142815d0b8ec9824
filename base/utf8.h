#pragma once

// UTF-8 as in table 3-7 of the Unicode standard: no overlong forms, no surrogates, no code points
// above U+10FFFF.
//
// Place:      below formats/ and text/; also checks the text of requests.
// Threads:    free functions are pure; a Utf8Repairer is used by one thread at a time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Returns the offset at which the first invalid or truncated character starts. Returns nullopt if
// `text` is valid UTF-8.
std::optional<std::size_t> FirstInvalidUtf8(absl::string_view text);

// Returns the number of bytes of the character that starts with `lead`. REQUIRES: `lead` starts a
// character of valid UTF-8.
inline std::size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

struct Utf8Char {
  char32_t code_point;
  std::size_t size_bytes;
};
// Decodes the character at `offset`. REQUIRES: `text` is UTF-8 and a character starts at `offset`.
Utf8Char DecodeUtf8At(absl::string_view text, std::size_t offset);

// Decodes the character that ends at `offset`. REQUIRES: `text` is UTF-8, offset > 0, and `offset`
// is a character boundary.
Utf8Char DecodeUtf8Before(absl::string_view text, std::size_t offset);

// REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string& out);

// REQUIRES: `text` is UTF-8.
std::int64_t CountUtf8Characters(absl::string_view text);

// Turns any bytes into valid UTF-8. Complete characters are copied, and each maximal invalid
// sequence becomes one U+FFFD. The bytes of an incomplete character, at most 3, are buffered.
class Utf8Repairer {
 public:
  // Appends to `out` the characters that `bytes` complete.
  void Push(absl::string_view bytes, std::string& out);
  // If there is an incomplete character, discards it and appends U+FFFD.
  void Finish(std::string& out);
  // True if the bytes of an incomplete character are buffered.
  bool has_incomplete() const { return missing_bytes_ > 0; }

 private:
  void PushByte(unsigned char byte, std::string& out);

  char buffered_[3] = {};
  std::uint8_t num_buffered_ = 0;
  std::uint8_t missing_bytes_ = 0;
  std::uint8_t low_ = 0x80;  // valid range of the next continuation byte
  std::uint8_t high_ = 0xBF;
};

}  // namespace quire
