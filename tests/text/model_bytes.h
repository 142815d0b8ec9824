#pragma once

// Writes a tokenizer.model: fields of Protobuf messages, one after the other.
//
// Place:      tests of text/ only.
// Threads:    pure.

#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace quire::text {

inline std::string Varint(std::uint64_t value) {
  std::string out;
  for (; value > 127; value >>= 7) out.push_back(static_cast<char>((value & 127) | 128));
  out.push_back(static_cast<char>(value));
  return out;
}
inline std::string Number(int field, std::uint64_t value) {
  return Varint(static_cast<std::uint64_t>(field) << 3) + Varint(value);
}
inline std::string Bytes(int field, absl::string_view value) {
  return absl::StrCat(Varint(static_cast<std::uint64_t>(field) << 3 | 2), Varint(value.size()),
                      value);
}
inline std::string Float(int field, float value) {
  std::string out = Varint(static_cast<std::uint64_t>(field) << 3 | 5);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int k = 0; k < 4; ++k) out.push_back(static_cast<char>(bits >> (8 * k)));
  return out;
}
inline std::string Piece(absl::string_view text, float score, int type) {
  return Bytes(1, Bytes(1, text) + Float(2, score) + Number(3, static_cast<std::uint64_t>(type)));
}

// A model of <unk>, <s>, "a", "b" and their pair. `trainer` and `normalizer` are fields of the two
// messages.
inline std::string SmallModel(absl::string_view pieces = "", absl::string_view trainer = "",
                              absl::string_view normalizer = "") {
  return absl::StrCat(Piece("<unk>", 0, 2), Piece("<s>", 0, 3), Piece("a", -1, 1),
                      Piece("b", -2, 1), Piece("ab", -1.5F, 1), pieces,
                      Bytes(2, Number(3, 2) + std::string(trainer)), Bytes(3, normalizer));
}

}  // namespace quire::text
