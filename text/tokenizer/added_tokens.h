#pragma once

// The added tokens of tokenizer.json: strings that are cut out of the text before the model sees
// it.
//
// Place:      first stage of encoding (raw text), and again behind the normalizer.
// Invariants: matches are leftmost, then longest. A match that single_word rejects is consumed:
//             shorter tokens inside it are not tried. Ids are those of the vocabulary or, for
//             tokenizer.json, follow it in file order.
// Threads:    immutable; the scratch serves one thread.
// Source:     huggingface/tokenizers 0.23, `tokenizer::added_vocabulary`.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/token_model.h"
#include "text/unicode/regex.h"

namespace quire::text {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  std::string normalized_content;  // what `normalized` tokens match and decode to; else = content
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// A set of byte strings, searched for the longest one at a place.
class StringTrie {
 public:
  StringTrie() { roots_.fill(-1); }

  // The first value added for a text counts. REQUIRES: !text.empty().
  void Add(absl::string_view text, std::size_t value);

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::size_t value;
  };
  // Leftmost, then longest, at or behind `from`. Takes O(distance + length of the longest string)
  // for texts where few places begin a string.
  std::optional<Match> Find(absl::string_view text, std::size_t from) const;

 private:
  static constexpr std::size_t kNoValue = static_cast<std::size_t>(-1);

  std::int32_t Child(std::int32_t node, unsigned char byte) const;

  std::array<std::int32_t, 256> roots_;                        // node of each first byte, -1: none
  std::vector<std::size_t> values_;                            // of each node
  absl::flat_hash_map<std::uint64_t, std::int32_t> children_;  // key: node << 8 | byte
};

// Bytes [begin, end) of a text: one added token, or (id -1) text between them.
struct Cut {
  std::size_t begin;
  std::size_t end;
  std::int32_t id;
};

class AddedTokens {
 public:
  // Where the id of a token outside the model's vocabulary comes from.
  enum class Ids {
    kFollowVocabulary,  // tokenizer.json: the next one behind the vocabulary, in file order
    kAsGiven,
  };

  // `config` is the value of "added_tokens". Errors: INVALID_ARGUMENT, also for content of more
  // than kMaxScoredBytes, as it stands or normalized.
  static absl::StatusOr<AddedTokens> FromJson(const formats::JsonValue& config,
                                              const TokenModel& model, const Normalizer& normalizer,
                                              Ids ids, RegexScratch& scratch);

  // Tokens that do not come from tokenizer.json, with ids and contents that occur once; none is
  // normalized. Errors: INVALID_ARGUMENT for content of more than kMaxScoredBytes.
  static absl::StatusOr<AddedTokens> FromTokens(std::vector<AddedToken> tokens);

  // Cuts raw text at the tokens that are not normalized, or normalized text at those that are. Text
  // that rstrip swallowed may begin a further token, so cuts of tokens may overlap; text never
  // does. Special tokens stay in the text where `takes_special` says no to their bytes.
  using TakesSpecial = absl::FunctionRef<bool(std::size_t begin, std::size_t end)>;
  absl::Status CutRaw(absl::string_view text, TakesSpecial takes_special, RegexScratch& scratch,
                      std::vector<Cut>& cuts) const {
    return CutBy(raw_, text, takes_special, scratch, cuts);
  }
  absl::Status CutNormalized(absl::string_view text, TakesSpecial takes_special,
                             RegexScratch& scratch, std::vector<Cut>& cuts) const {
    return CutBy(normalized_, text, takes_special, scratch, cuts);
  }

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  std::optional<std::int32_t> TokenToId(absl::string_view content) const;

 private:
  AddedTokens(Regex word, Ids ids) : ids_(ids), word_(std::move(word)) {}
  static absl::StatusOr<AddedTokens> Empty(Ids ids);
  absl::Status Add(const formats::JsonValue& config, const TokenModel& model);
  absl::Status CutBy(const StringTrie& trie, absl::string_view text, TakesSpecial takes_special,
                     RegexScratch& scratch, std::vector<Cut>& cuts) const;
  absl::StatusOr<bool> StandsAlone(absl::string_view text, const StringTrie::Match& match,
                                   RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<std::string, std::size_t> by_content_;
  absl::flat_hash_map<std::int32_t, std::size_t> by_id_;
  Ids ids_;
  std::int64_t next_id_ = -1;  // while loading: the id of the next token outside the vocabulary
  StringTrie raw_;
  StringTrie normalized_;
  Regex word_;  // one word character
};

}  // namespace quire::text
