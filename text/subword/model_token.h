#pragma once

// Definitions that all tokenizer models share: a token of a piece of text, and limits of
// vocabularies.
//
// Place:   bottom of text/.
// Threads: a value type; one thread at a time per object.

#include <cstddef>
#include <cstdint>

namespace quire::text {

// All token ids are below this number. The largest published vocabularies have 262144 entries. The
// limit bounds the memory of the token table, whose size a file determines.
inline constexpr std::int32_t kMaxTokenIds = 1 << 22;

// Maximum size of added, special and control tokens and of the tokens of a scored vocabulary. Such
// tokens are compared with the text at every position, or split in every possible way, so longer
// tokens could make that work quadratic. The longest pieces of published vocabularies have 128
// bytes.
inline constexpr std::size_t kMaxScoredBytes = 512;

// Maximum total size of the tokens of a vocabulary. Copies and tries take up to about 100 bytes per
// byte of a token, so a malicious file can use 3 GiB. The largest published vocabularies have 3 MB.
inline constexpr std::size_t kMaxVocabularyBytes = std::size_t{32} << 20;

// A token and the number of bytes of the piece that it represents. A byte-fallback token represents
// one byte.
struct ModelToken {
  std::int32_t id;
  std::uint32_t size_bytes;
};

}  // namespace quire::text
