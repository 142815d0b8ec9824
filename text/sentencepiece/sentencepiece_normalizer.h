#pragma once

// What a SentencePiece model does to text before it is cut: its character map, spaces, and the
// sign in front.
//
// Place:      a step of Normalizer, for tokenizer.model only. The map of the same file in
//             tokenizer.json is applied by PrecompiledMap::Apply, which gives other results.
// Invariants: O(n) of the text; texts of user-defined pieces pass unchanged.
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
  // Errors: INVALID_ARGUMENT for a broken map.
  static absl::StatusOr<SentencePieceNormalizer> From(const SentencePieceFile& file);

  AlignedText Apply(const AlignedText& text) const;

 private:
  // What `size` bytes of the text become.
  struct Step {
    absl::string_view image;
    std::size_t size;
  };
  SentencePieceNormalizer() = default;
  Step StepAt(absl::string_view text) const;

  PrecompiledMap map_;
  PrefixTrie user_defined_;
  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  absl::string_view space_;  // what stands for a space
};

}  // namespace quire::text
