#pragma once

// Splits a text into the tokens with the greatest sum of scores.
//
// Place:      below Unigram and SentencePiece models.
// Invariants: O(n) steps for a text of n characters. The longest token bounds the cost of a step. A
//             character without a token can become an unknown token, so a segmentation always
//             exists. Among segmentations with equal sums, the one with the longest last token
//             wins.
// Threads:    immutable; a ViterbiScratch serves one thread at a time.
// Source:     sentencepiece, unigram_model.cc, EncodeOptimized; huggingface/tokenizers 0.23,
//             models::unigram, which uses doubles.

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/subword/model_token.h"
#include "text/subword/prefix_trie.h"

namespace quire::text {

// Working memory that is reused for each piece.
class ViterbiScratch {
 public:
  std::size_t capacity_bytes() const { return ends_.capacity() * sizeof(End); }

 private:
  friend class Viterbi;
  struct End {
    double score = 0;         // best sum of a segmentation that ends here
    std::int32_t begin = -1;  // start of that segmentation's last token; -1: none yet
    std::int32_t id = -1;
  };
  std::vector<End> ends_;
};

class Viterbi {
 public:
  struct Options {
    std::int32_t unk_id = 0;
    double unk_score = 0;
    bool single_precision = false;  // sums are rounded to float
  };

  Viterbi() = default;
  // `trie` maps texts to ids, which index `scores`.
  Viterbi(PrefixTrie trie, std::vector<double> scores, Options options);

  // Appends the tokens of `text`. Each unknown character becomes one token with unk_id. REQUIRES:
  // valid UTF-8, below 2^31 bytes.
  void Segment(absl::string_view text, ViterbiScratch& scratch, std::vector<ModelToken>& out) const;

 private:
  PrefixTrie trie_;
  std::vector<double> scores_;
  Options options_;
};

}  // namespace quire::text
