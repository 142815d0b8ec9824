#include "text/unicode/unicode.h"

#include <utf8proc.h>

#include <array>

#include "base/utf8.h"

namespace quire::text {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

constexpr bool MapsToItself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr char32_t kFirstSubstitute = 0x100;
constexpr char32_t kTableEnd = 0x144;

struct ByteTable {
  std::array<std::int16_t, kTableEnd> to_byte{};  // -1: not in the table
  std::array<std::array<char, 2>, 256> utf8{};
};

constexpr ByteTable MakeByteTable() {
  ByteTable table;
  for (auto& byte : table.to_byte) byte = -1;
  char32_t substitute = kFirstSubstitute;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t c = MapsToItself(byte) ? static_cast<char32_t>(byte) : substitute++;
    table.to_byte[c] = static_cast<std::int16_t>(byte);
    if (c < 0x80) {
      table.utf8[byte] = {static_cast<char>(c), 0};
    } else {
      table.utf8[byte] = {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
    }
  }
  return table;
}

constexpr ByteTable kByteTable = MakeByteTable();

}  // namespace

bool IsSpace(char32_t c) {
  if (c < 0x80) return c == 0x20 || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
  }
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsNumeric(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsMark(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

std::size_t SkipSpaces(absl::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const Utf8Char c = DecodeUtf8At(text, begin);
    if (!IsSpace(c.code_point)) break;
    begin += c.size_bytes;
  }
  return begin;
}

std::size_t SkipSpacesBack(absl::string_view text, std::size_t end, std::size_t low) {
  while (end > low) {
    const Utf8Char c = DecodeUtf8Before(text, end);
    if (!IsSpace(c.code_point)) break;
    end -= c.size_bytes;
  }
  return end;
}

void AppendLowercase(char32_t c, std::string& out) {
  constexpr char32_t kCapitalIWithDot = 0x130;
  if (c == kCapitalIWithDot) {
    out += "i\xCC\x87";  // U+0069 U+0307, the only unconditional entry of SpecialCasing.txt
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

std::optional<std::uint8_t> CharToByte(char32_t c) {
  if (c >= kTableEnd || kByteTable.to_byte[c] < 0) return std::nullopt;
  return static_cast<std::uint8_t>(kByteTable.to_byte[c]);
}

absl::string_view ByteToUtf8(std::uint8_t byte) {
  const auto& utf8 = kByteTable.utf8[byte];
  return absl::string_view(utf8.data(), utf8[1] == 0 ? 1 : 2);
}

}  // namespace quire::text
