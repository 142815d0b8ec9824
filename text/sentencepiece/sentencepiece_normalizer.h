#pragma once

// The normalizer of a SentencePiece model. It applies the character map. Depending on the file's
// settings, it also removes extra spaces, adds a space in front of the text, and replaces each
// space by U+2581.
//
// Place:      a step of Normalizer, only for tokenizer.model. For the same map in tokenizer.json,
//             PrecompiledMap::Apply is used, which gives different results.
// Invariants: O(n) in the size of the text; texts of user-defined pieces are unchanged.
// Threads:    immutable.
// Source:     sentencepiece, normalizer.cc.

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/sentencepiece/precompiled_map.h"
#include "text/sentencepiece/sentencepiece_file.h"
#include "text/subword/prefix_trie.h"
#include "text/unicode/aligned_text.h"

namespace quire::text {

inline constexpr absl::string_view kSentencePieceSpace = "\xE2\x96\x81";  // U+2581

class SentencePieceNormalizer {
 public:
  // Returns INVALID_ARGUMENT for a malformed map.
  static absl::StatusOr<SentencePieceNormalizer> From(const SentencePieceFile& file);

  AlignedText Apply(const AlignedText& text) const;

 private:
  // `size` bytes of the text become `image`.
  struct Step {
    absl::string_view image;
    std::size_t size;
  };
  SentencePieceNormalizer() = default;
  Step StepAt(absl::string_view text) const;

  PrecompiledMap map_;
  PrefixTrie user_defined_pieces_;
  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  absl::string_view space_;  // replacement of a space
};

}  // namespace quire::text
