#pragma once

// UTF-8 by the Unicode standard, table 3-7: no overlong forms, no surrogates, nothing past
// U+10FFFF.
//
// Place:      under formats/ and text/; also for checks of request text.
// Threads:    free functions are pure; Utf8Repairer: one thread at a time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Offset of the first byte that does not begin or continue a character, or of the first byte of a
// character that the end of `text` cuts; absent if `text` is UTF-8.
std::optional<std::size_t> FirstInvalidUtf8(absl::string_view text);

// Bytes of the character that starts with `lead`. REQUIRES: `lead` starts a character of valid
// UTF-8.
inline std::size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

struct Utf8Char {
  char32_t code_point;
  std::size_t size_bytes;
};
// The character at `offset`. REQUIRES: `text` is UTF-8, `offset` is a character's first byte.
Utf8Char DecodeUtf8At(absl::string_view text, std::size_t offset);

// The character that ends before `offset`. REQUIRES: as above, and offset > 0.
Utf8Char DecodeUtf8Before(absl::string_view text, std::size_t offset);

// REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string& out);

// REQUIRES: `text` is UTF-8.
std::int64_t CountUtf8Characters(absl::string_view text);

// Turns any bytes into UTF-8: whole characters pass, each maximal invalid part becomes one U+FFFD,
// a prefix that may still become a character waits (at most 3 bytes).
class Utf8Repairer {
 public:
  // Appends to `out` what `bytes` complete.
  void Push(absl::string_view bytes, std::string& out);
  // Appends U+FFFD if a prefix waits, and forgets it.
  void Finish(std::string& out);
  bool is_waiting() const { return missing_bytes_ > 0; }

 private:
  void PushByte(unsigned char byte, std::string& out);

  char waiting_[3] = {};
  std::uint8_t waiting_bytes_ = 0;
  std::uint8_t missing_bytes_ = 0;
  std::uint8_t low_ = 0x80;  // range of the next continuation byte
  std::uint8_t high_ = 0xBF;
};

}  // namespace quire
