#pragma once

// What the models of a tokenizer share: the tokens of one piece of text, and how many there may be.
//
// Place:   bottom of text/.
// Threads: values.

#include <cstddef>
#include <cstdint>

namespace quire::text {

// Ids are below this. The largest published vocabularies have 262144 entries; the limit keeps a
// number in a file from deciding how much memory the table of tokens takes.
inline constexpr std::int32_t kMaxTokenIds = 1 << 22;

// A token that is compared with the text at each of its places (of a scored vocabulary, or an
// added, special or control token), or cut in two in every way, has at most so many bytes, else a
// file could make that work quadratic. The longest pieces of published vocabularies have 128.
inline constexpr std::size_t kMaxScoredBytes = 512;

// All tokens of a vocabulary together. Copies and tries of them take up to about 100 bytes for each
// of these bytes, so a hostile file can make 3 GiB of it. The largest published vocabularies have
// 3 MB.
inline constexpr std::size_t kMaxVocabularyBytes = std::size_t{32} << 20;

// A token and the bytes of the piece that it stands for. Byte-fallback tokens stand for one byte
// each.
struct ModelToken {
  std::int32_t id;
  std::uint32_t size_bytes;
};

}  // namespace quire::text
