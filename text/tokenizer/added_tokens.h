#pragma once

// The added tokens of tokenizer.json: strings that are extracted from the text before the model
// splits it.
//
// Place:      first stage of encoding (raw text), and again after the normalizer.
// Invariants: matches are leftmost, then longest. A match that single_word rejects is consumed:
//             shorter tokens inside it are not tried. A token of the vocabulary keeps its id. The
//             ids of other tokens follow the vocabulary in file order (kFollowVocabulary) or are in
//             the file (kAsGiven).
// Threads:    immutable; the scratch serves one thread.
// Source:     huggingface/tokenizers 0.23, `tokenizer::added_vocabulary`.

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
#include "text/subword/prefix_trie.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/token_model.h"
#include "text/unicode/regex.h"

namespace quire::text {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  // Matched and decoded text of a `normalized` token; otherwise equal to content.
  std::string normalized_content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// Bytes [begin, end) of a text: an added token, or, with id -1, the text between tokens.
struct TextSegment {
  std::size_t begin;
  std::size_t end;
  std::int32_t id;
};

class AddedTokens {
 public:
  // Determines the ids of tokens that are not in the model's vocabulary.
  enum class IdPolicy {
    kFollowVocabulary,  // tokenizer.json: the next id after the vocabulary, in file order
    kAsGiven,
  };

  // `config` is the value of "added_tokens". Returns INVALID_ARGUMENT for invalid tokens, including
  // content whose raw or normalized form exceeds kMaxScoredBytes.
  static absl::StatusOr<AddedTokens> FromJson(const formats::JsonValue& config,
                                              const TokenModel& model, const Normalizer& normalizer,
                                              IdPolicy id_policy, RegexScratch& scratch);

  // Creates added tokens that do not come from tokenizer.json. Returns INVALID_ARGUMENT for content
  // of more than kMaxScoredBytes. REQUIRES: ids and contents are unique, and no token is
  // `normalized`.
  static absl::StatusOr<AddedTokens> FromTokens(std::vector<AddedToken> tokens);

  // CutRaw splits raw text at the tokens that are not `normalized`. CutNormalized splits normalized
  // text at the tokens that are `normalized`. Text that rstrip consumed may start another token, so
  // segments of tokens may overlap; segments of text never do. A special token stays in the text if
  // `takes_special` returns false for its bytes.
  using TakesSpecial = absl::FunctionRef<bool(std::size_t begin, std::size_t end)>;
  absl::Status CutRaw(absl::string_view text, TakesSpecial takes_special, RegexScratch& scratch,
                      std::vector<TextSegment>& segments) const {
    return CutBy(raw_trie_, text, takes_special, scratch, segments);
  }
  absl::Status CutNormalized(absl::string_view text, TakesSpecial takes_special,
                             RegexScratch& scratch, std::vector<TextSegment>& segments) const {
    return CutBy(normalized_trie_, text, takes_special, scratch, segments);
  }

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  std::optional<std::int32_t> TokenToId(absl::string_view content) const;

 private:
  AddedTokens(Regex word, IdPolicy id_policy) : id_policy_(id_policy), word_(std::move(word)) {}
  static absl::StatusOr<AddedTokens> Empty(IdPolicy id_policy);
  absl::Status Add(const formats::JsonValue& config, const TokenModel& model);
  absl::Status CutBy(const PrefixTrie& trie, absl::string_view text, TakesSpecial takes_special,
                     RegexScratch& scratch, std::vector<TextSegment>& segments) const;
  absl::StatusOr<bool> StandsAlone(absl::string_view text, const PrefixTrie::Match& match,
                                   RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<std::string, std::size_t> by_content_;
  absl::flat_hash_map<std::int32_t, std::size_t> by_id_;
  IdPolicy id_policy_;
  std::int64_t next_id_ = -1;  // id of the next token outside the vocabulary; used while loading
  PrefixTrie raw_trie_;
  PrefixTrie normalized_trie_;
  Regex word_;  // matches one word character
};

}  // namespace quire::text
