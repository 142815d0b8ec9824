#pragma once

// The Unigram model of tokenizer.json: a vocabulary with log probabilities.
//
// Place:      after the splitter. Handles UTF-8 strings and ids, without offsets in the input.
// Invariants: linear time. A run of characters without a token becomes one unknown token, or the
//             byte tokens of its bytes. Text that spells an entry can become that entry, even a
//             byte token or a control token. If an entry occurs twice, the last one counts.
// Threads:    immutable; a scratch serves one thread at a time.
// Source:     huggingface/tokenizers 0.23, `models::unigram`.

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
#include "text/subword/viterbi.h"

namespace quire::text {

class Unigram {
 public:
  // `config` is the value of "model". Errors name the field, such as `model.vocab[3][1]`. Returns
  // UNIMPLEMENTED without an unk_id, because characters outside the vocabulary would have no id.
  static absl::StatusOr<Unigram> FromJson(const formats::JsonValue& config);

  // Appends the tokens of `piece`. REQUIRES: valid UTF-8, below 2^31 bytes.
  void Encode(absl::string_view piece, ViterbiScratch& scratch, std::vector<ModelToken>& out) const;

  std::optional<std::int32_t> TokenToId(absl::string_view token) const;
  const std::vector<std::string>& tokens() const { return tokens_; }  // indexed by id

 private:
  Unigram() = default;
  absl::Status ReadVocabulary(const formats::JsonValue& config, std::vector<double>& scores);
  // Appends the tokens of a run of unknown characters.
  void AppendUnknown(absl::string_view text, std::vector<ModelToken>& out) const;

  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string, std::int32_t> ids_;
  std::array<std::int32_t, 256> byte_ids_;  // ids of <0xHH>; -1: none, or no byte fallback
  std::int32_t unk_id_ = 0;
  Viterbi viterbi_;
};

}  // namespace quire::text
