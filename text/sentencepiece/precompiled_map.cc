#include "text/sentencepiece/precompiled_map.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

constexpr std::size_t kUnitBytes = 4;

std::uint32_t ReadLittleEndian32(absl::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t k = 0; k < kUnitBytes; ++k) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + k])) << (8 * k);
  }
  return value;
}

bool IsContinuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Accessors of the fields of a darts-clone unit.
bool HasLeaf(std::uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
std::uint32_t Value(std::uint32_t unit) {
  return unit & 0x7FFFFFFFU;
}
std::uint32_t Label(std::uint32_t unit) {
  return unit & 0x800000FFU;
}
std::uint32_t Offset(std::uint32_t unit) {
  return (unit >> 10) << ((unit & (1U << 9)) >> 6);
}

}  // namespace

absl::StatusOr<PrecompiledMap> PrecompiledMap::FromBase64(absl::string_view base64) {
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) return absl::InvalidArgumentError("is not Base64");
  return FromBytes(bytes);
}

absl::StatusOr<PrecompiledMap> PrecompiledMap::FromBytes(absl::string_view bytes) {
  if (bytes.size() < kUnitBytes)
    return absl::InvalidArgumentError("is too short for the size of its trie");
  const std::size_t trie_bytes = ReadLittleEndian32(bytes, 0);
  if (trie_bytes % kUnitBytes != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - kUnitBytes) {
    return absl::InvalidArgumentError(absl::StrCat("has a trie of ", trie_bytes, " bytes, but ",
                                                   bytes.size() - kUnitBytes, " bytes follow"));
  }
  PrecompiledMap map;
  map.units_.reserve(trie_bytes / kUnitBytes);
  for (std::size_t at = 0; at < trie_bytes; at += kUnitBytes) {
    map.units_.push_back(ReadLittleEndian32(bytes, kUnitBytes + at));
  }
  map.replacements_ = std::string(bytes.substr(kUnitBytes + trie_bytes));
  if (FirstInvalidUtf8(map.replacements_)) {
    return absl::InvalidArgumentError("has replacements that are not UTF-8");
  }
  for (std::size_t begin = 0; begin < map.replacements_.size();) {
    const std::size_t end = std::min(map.replacements_.find('\0', begin), map.replacements_.size());
    if (end - begin > kMaxEntryBytes) {
      return absl::InvalidArgumentError(absl::StrCat("has a replacement of ", end - begin,
                                                     " bytes, the limit is ", kMaxEntryBytes));
    }
    begin = end + 1;
  }
  return map;
}

template <typename Use>
void PrecompiledMap::ForEachEntry(absl::string_view text, Use use) const {
  if (units_.empty()) return;
  std::size_t node = Offset(units_[0]);
  for (std::size_t i = 0; i < std::min(text.size(), kMaxEntryBytes); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) return;
    const std::uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) return;
    const std::size_t begin = Value(units_[node]);
    if (begin > replacements_.size()) return;
    const absl::string_view rest = absl::string_view(replacements_).substr(begin);
    // A malformed map may point into the middle of a character; such an entry is ignored.
    if (!rest.empty() && IsContinuation(rest[0])) return;
    if (!use(Entry{i + 1, rest.substr(0, rest.find('\0'))})) return;
  }
}

std::optional<absl::string_view> PrecompiledMap::Find(absl::string_view text) const {
  std::optional<absl::string_view> image;
  ForEachEntry(text, [&](const Entry& entry) {
    image = entry.image;
    return false;
  });
  return image;
}

std::optional<PrecompiledMap::Entry> PrecompiledMap::Longest(absl::string_view text) const {
  std::optional<Entry> longest;
  ForEachEntry(text, [&](const Entry& entry) {
    const bool cuts_character =
        entry.size_bytes < text.size() && IsContinuation(text[entry.size_bytes]);
    if (!cuts_character) longest = entry;
    return true;
  });
  return longest;
}

AlignedText PrecompiledMap::Apply(const AlignedText& text) const {
  constexpr std::size_t kLongCluster = 6;
  const std::string& bytes = text.text();
  AlignedText result = text.EmptyLike();
  const auto replace = [&](std::size_t begin, std::size_t end) {
    const auto image = Find(text.view(begin, end));
    if (!image) return false;
    InputSpan span;
    if (text.tracked()) span = {text.span(begin).begin, text.span(end - 1).end};
    result.Append(*image, span);
    return true;
  };
  std::size_t begin = 0;
  while (begin < bytes.size()) {
    utf8proc_int32_t state = 0;
    Utf8Char last = DecodeUtf8At(bytes, begin);
    std::size_t end = begin + last.size_bytes;
    while (end < bytes.size()) {
      const Utf8Char next = DecodeUtf8At(bytes, end);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code_point),
                                           static_cast<utf8proc_int32_t>(next.code_point),
                                           &state)) {
        break;
      }
      last = next;
      end += next.size_bytes;
    }
    if (end - begin >= kLongCluster || !replace(begin, end)) {
      for (std::size_t i = begin; i < end;) {
        const std::size_t size = Utf8Length(bytes[i]);
        if (!replace(i, i + size)) result.AppendFrom(text, i, i + size);
        i += size;
      }
    }
    begin = end;
  }
  return result;
}

}  // namespace quire::text
