#pragma once

// The model of a tokenizer.model file, unigram or BPE: splits normalized text into pieces.
//
// Place:      one type of TokenModel. Handles UTF-8 strings and ids, without offsets in the input.
// Invariants: ids equal those of sentencepiece. O(n log n) in the size of the text. Text never
//             becomes control pieces or byte pieces directly. A run of unknown characters becomes
//             one unknown piece, or the byte pieces of its bytes.
// Threads:    immutable; a scratch serves one thread at a time, and one model only.
// Source:     sentencepiece: unigram_model.cc and bpe_model.cc; sentencepiece_processor.cc for
//             unknown pieces.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/sentencepiece/sentencepiece_file.h"
#include "text/subword/bpe.h"
#include "text/subword/model_token.h"
#include "text/subword/prefix_trie.h"
#include "text/subword/viterbi.h"

namespace quire::text {

struct SentencePieceScratch {
  explicit SentencePieceScratch(std::int64_t cache_entries) : bpe(cache_entries) {}
  BpeScratch bpe;
  ViterbiScratch viterbi;
  std::vector<ModelToken> tokens;

  // Memory that grows with the size of texts.
  std::size_t capacity_bytes() const {
    return bpe.capacity_bytes() + viterbi.capacity_bytes() + tokens.capacity() * sizeof(ModelToken);
  }
};

class SentencePieceModel {
 public:
  // Returns UNIMPLEMENTED if a BPE model could merge symbols to an unused piece, which
  // sentencepiece would split again.
  static absl::StatusOr<SentencePieceModel> From(const SentencePieceFile& file);

  // Appends the tokens of `text`. REQUIRES: valid UTF-8, below 2^31 bytes.
  void Encode(absl::string_view text, SentencePieceScratch& scratch,
              std::vector<ModelToken>& out) const;

  std::optional<std::int32_t> TokenToId(absl::string_view piece) const;
  std::size_t size() const { return pieces_.size(); }
  const std::vector<std::string>& pieces() const { return pieces_; }  // indexed by id
  absl::string_view type() const;  // "SentencePiece BPE" or "SentencePiece unigram"

 private:
  SentencePieceModel() = default;

  void MakeUnigram(const SentencePieceFile& file);
  void EncodeBpe(absl::string_view text, SentencePieceScratch& scratch) const;

  std::vector<std::string> pieces_;
  absl::flat_hash_map<std::string, std::int32_t> ids_;
  std::int32_t unk_id_ = 0;
  bool byte_fallback_ = false;
  std::array<std::int32_t, 256> byte_ids_;
  Viterbi viterbi_;                 // only for unigram
  std::optional<Bpe> bpe_;          // only for BPE; ids after the last piece are unknown characters
  PrefixTrie user_defined_pieces_;  // only for BPE: pieces that are extracted before merging
};

}  // namespace quire::text
