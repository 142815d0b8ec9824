#pragma once

// The model of a tokenizer, of any type: encodes pieces of text as tokens.
//
// Place:      between the splitter and the post-processor.
// Threads:    immutable; a ModelScratch serves one thread at a time, and one model only.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/sentencepiece/sentencepiece_model.h"
#include "text/subword/bpe.h"
#include "text/subword/model_token.h"
#include "text/subword/unigram.h"
#include "text/subword/viterbi.h"

namespace quire::text {

// SentencePieceScratch includes the scratch of Bpe and Unigram.
using ModelScratch = SentencePieceScratch;

class TokenModel {
 public:
  TokenModel(Bpe model) : model_(std::move(model)) {}                 // NOLINT(runtime/explicit)
  TokenModel(Unigram model) : model_(std::move(model)) {}             // NOLINT(runtime/explicit)
  TokenModel(SentencePieceModel model) : model_(std::move(model)) {}  // NOLINT(runtime/explicit)

  // `config` is the value of "model" of a tokenizer.json. Returns UNIMPLEMENTED for an unknown
  // "type".
  static absl::StatusOr<TokenModel> FromJson(const formats::JsonValue& config);

  // Appends the tokens of `piece`. REQUIRES: valid UTF-8, below 2^31 bytes.
  void Encode(absl::string_view piece, ModelScratch& scratch, std::vector<ModelToken>& out) const;

  std::optional<std::int32_t> TokenToId(absl::string_view token) const;
  std::size_t vocabulary_size() const;  // number of entries, not the largest id
  std::vector<std::pair<absl::string_view, std::int32_t>> Tokens() const;
  absl::string_view type() const;  // for example "BPE" or "Unigram"

 private:
  std::variant<Bpe, Unigram, SentencePieceModel> model_;
};

}  // namespace quire::text
