#pragma once

// Byte-pair encoding of one piece, with the vocabulary and the merges of tokenizer.json.
//
// Place:      after the splitter. Handles UTF-8 strings and ids, without offsets in the input.
// Invariants: merging takes O(n log n) for a piece of n characters. A cached result equals the
//             result of merging. If the list of merges has a pair twice, the last counts.
// Threads:    immutable; a BpeScratch serves one thread at a time.
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

class Bpe;

// Working memory and result cache of one thread. The first Encode binds the scratch to one Bpe,
// because cached results are only valid for that Bpe. Encode with another Bpe fails a check.
class BpeScratch {
 public:
  // The cache has at most `cache_entries` pieces and is cleared when it is full.
  explicit BpeScratch(std::int64_t cache_entries) : cache_entries_(cache_entries) {}

  // Memory that grows with the size of pieces. Excludes the cache.
  std::size_t capacity_bytes() const {
    return symbols_.capacity() * sizeof(Symbol) + heap_.capacity() * sizeof(Candidate);
  }

 private:
  friend class Bpe;
  struct Symbol {
    std::int32_t id;
    std::uint32_t size_bytes;  // 0: merged into the previous symbol
    std::int32_t previous;     // index; -1: none
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;  // index of the left symbol
    std::int32_t new_id;
  };

  const Bpe* bpe_ = nullptr;  // set by the first Encode
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::int64_t cache_entries_;
  absl::flat_hash_map<std::string, std::vector<ModelToken>> cache_;
};

struct BpeMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t new_id;
  std::uint32_t rank;  // lower ranks merge first; among equal ranks, the leftmost pair
};

// The parts of a model that does not come from tokenizer.json.
struct BpeParts {
  absl::flat_hash_map<std::string, std::int32_t> ids;  // unique ids below kMaxTokenIds
  std::vector<BpeMerge> merges;                        // with ids of the vocabulary
  std::optional<std::int32_t> unk_id;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class Bpe {
 public:
  explicit Bpe(BpeParts parts);

  // `config` is the value of "model", an object of type BPE. Errors name the field, such as
  // `model.merges[3]`.
  static absl::StatusOr<Bpe> FromJson(const formats::JsonValue& config);

  // Appends the tokens of `piece`. REQUIRES: valid UTF-8, below 2^31 bytes, and `scratch` was only
  // used with this Bpe, which has not moved since.
  void Encode(absl::string_view piece, BpeScratch& scratch, std::vector<ModelToken>& out) const;

  std::optional<std::int32_t> TokenToId(absl::string_view token) const;
  // Number of entries, not the largest id.
  std::size_t vocabulary_size() const { return ids_.size(); }
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
  std::array<std::int32_t, 0x800> short_ids_;  // ids of characters of one or two bytes; -1: none
  std::array<std::int32_t, 256> byte_ids_;     // ids of <0xHH>; -1: none
  std::int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  std::string prefix_;  // continuing_subword_prefix
  std::string suffix_;  // end_of_word_suffix
};

}  // namespace quire::text
