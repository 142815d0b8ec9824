#pragma once

// Byte-pair encoding of one piece, by the vocabulary and the merges of tokenizer.json.
//
// Place:      behind the splitter. Knows UTF-8 strings and ids, no offsets in the input.
// Invariants: merging takes O(n log n) for a piece of n characters. A cached piece gives the same
//             ids as a piece that is merged. Of duplicate merge pairs the last counts.
// Threads:    immutable; a BpeScratch serves one thread at a time, and one Bpe only.
// Source:     huggingface/tokenizers 0.23, `models::bpe`.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/subword/model_token.h"

namespace quire::text {

// Working memory, reused from piece to piece.
class BpeScratch {
 public:
  // At most `cache_entries` pieces are remembered; when they are full, all are forgotten.
  explicit BpeScratch(std::int64_t cache_entries) : cache_entries_(cache_entries) {}

  // Memory that grows with a piece; not the cache.
  std::size_t capacity_bytes() const {
    return symbols_.capacity() * sizeof(Symbol) + heap_.capacity() * sizeof(Candidate);
  }

 private:
  friend class Bpe;
  struct Symbol {
    std::int32_t id;
    std::uint32_t size_bytes;  // 0: merged into the symbol before it
    std::int32_t previous;     // index, -1: none
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;  // of the left symbol
    std::int32_t new_id;
  };

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::int64_t cache_entries_;
  absl::flat_hash_map<std::string, std::vector<ModelToken>> cache_;
};

struct BpeMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t new_id;
  std::uint32_t rank;  // lower first; of equal ranks the leftmost pair first
};

// A model that does not come from tokenizer.json.
struct BpeParts {
  absl::flat_hash_map<std::string, std::int32_t> ids;  // below kMaxTokenIds, each once
  std::vector<BpeMerge> merges;                        // of ids of the vocabulary
  std::optional<std::int32_t> unk_id;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class Bpe {
 public:
  explicit Bpe(BpeParts parts);

  // `config` is the value of "model", an object whose type is BPE. Errors name the field, such as
  // `model.merges[3]`.
  static absl::StatusOr<Bpe> FromJson(const formats::JsonValue& config);

  // Appends the tokens of `piece`. REQUIRES: valid UTF-8, below 2^31 bytes.
  void Encode(absl::string_view piece, BpeScratch& scratch, std::vector<ModelToken>& out) const;

  std::optional<std::int32_t> TokenToId(absl::string_view token) const;
  std::size_t vocabulary_size() const { return ids_.size(); }  // entries, not greatest id
  const absl::flat_hash_map<std::string, std::int32_t>& ids() const { return ids_; }

 private:
  Bpe() = default;

  struct MergeRule {
    std::uint32_t rank;
    std::int32_t new_id;
  };

  absl::Status ReadVocabulary(const formats::JsonValue& config);
  absl::Status ReadOptions(const formats::JsonValue& config);
  absl::Status ReadMerges(const formats::JsonValue& config);
  absl::Status AddMerge(const formats::JsonValue& merge, std::uint32_t rank);
  absl::Status CheckByteTokens(const formats::JsonValue& config) const;
  void IndexShortTokens();
  void IndexByteTokens();

  void Merge(BpeScratch& scratch) const;
  void MergeByScanning(BpeScratch& scratch) const;
  void MergeByHeap(BpeScratch& scratch) const;
  void SplitCharacters(absl::string_view piece, BpeScratch& scratch) const;
  std::int32_t CharacterId(absl::string_view character, bool is_first, bool is_last,
                           std::string& buffer) const;
  const MergeRule* FindMerge(std::int32_t left, std::int32_t right) const;

  absl::flat_hash_map<std::string, std::int32_t> ids_;
  absl::flat_hash_map<std::uint64_t, MergeRule> merges_;  // key: left id << 32 | right id
  std::array<std::int32_t, 0x800> short_ids_;  // of characters of one or two bytes; -1: none
  std::array<std::int32_t, 256> byte_ids_;     // of <0xHH>; -1: none
  std::int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  std::string prefix_;  // continuing_subword_prefix
  std::string suffix_;  // end_of_word_suffix
};

}  // namespace quire::text
