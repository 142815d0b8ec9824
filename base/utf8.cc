#include "base/utf8.h"

#include <algorithm>

namespace quire {
namespace {

// The number of continuation bytes after a lead byte, and the valid range of the first one.
struct LeadByte {
  std::uint8_t continuation_bytes;  // 0: the byte is not the lead byte of a longer character
  std::uint8_t low;
  std::uint8_t high;
};

constexpr LeadByte ClassifyLead(unsigned char byte) {
  if (byte < 0xC2 || byte > 0xF4) return {0, 0, 0};
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {3, 0x80, 0xBF};
}

}  // namespace

std::optional<std::size_t> FirstInvalidUtf8(absl::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      ++i;
      continue;
    }
    const LeadByte lead = ClassifyLead(byte);
    if (lead.continuation_bytes == 0 || text.size() - i <= lead.continuation_bytes) return i;
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if (second < lead.low || second > lead.high) return i;
    for (std::size_t k = 2; k <= lead.continuation_bytes; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return i;
    }
    i += 1U + lead.continuation_bytes;
  }
  return std::nullopt;
}

Utf8Char DecodeUtf8At(absl::string_view text, std::size_t offset) {
  const std::size_t size = Utf8Length(text[offset]);
  const auto lead = static_cast<unsigned char>(text[offset]);
  if (size == 1) return {lead, 1};
  char32_t code_point = lead & (0x7FU >> size);
  for (std::size_t k = 1; k < size; ++k) {
    code_point = (code_point << 6) | (static_cast<unsigned char>(text[offset + k]) & 0x3FU);
  }
  return {code_point, size};
}

Utf8Char DecodeUtf8Before(absl::string_view text, std::size_t offset) {
  std::size_t begin = offset - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return DecodeUtf8At(text, begin);
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto byte = [&out](char32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    byte(code_point);
    return;
  }
  if (code_point < 0x800) {
    byte(0xC0 | (code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      byte(0xE0 | (code_point >> 12));
    } else {
      byte(0xF0 | (code_point >> 18));
      byte(0x80 | ((code_point >> 12) & 0x3F));
    }
    byte(0x80 | ((code_point >> 6) & 0x3F));
  }
  byte(0x80 | (code_point & 0x3F));
}

std::int64_t CountUtf8Characters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void Utf8Repairer::Push(absl::string_view bytes, std::string& out) {
  for (const char byte : bytes) PushByte(static_cast<unsigned char>(byte), out);
}

void Utf8Repairer::PushByte(unsigned char byte, std::string& out) {
  if (missing_bytes_ > 0) {
    if (byte >= low_ && byte <= high_) {
      low_ = 0x80;
      high_ = 0xBF;
      if (--missing_bytes_ > 0) {
        buffered_[num_buffered_++] = static_cast<char>(byte);
        return;
      }
      out.append(buffered_, num_buffered_);
      out.push_back(static_cast<char>(byte));
      num_buffered_ = 0;
      return;
    }
    Finish(out);  // the buffered character is invalid, and the byte may start another character
  }
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  const LeadByte lead = ClassifyLead(byte);
  if (lead.continuation_bytes == 0) {
    out.append(kReplacementCharacter.data(), kReplacementCharacter.size());
    return;
  }
  buffered_[0] = static_cast<char>(byte);
  num_buffered_ = 1;
  missing_bytes_ = lead.continuation_bytes;
  low_ = lead.low;
  high_ = lead.high;
}

void Utf8Repairer::Finish(std::string& out) {
  if (missing_bytes_ == 0) return;
  out.append(kReplacementCharacter.data(), kReplacementCharacter.size());
  missing_bytes_ = 0;
  num_buffered_ = 0;
}

}  // namespace quire
