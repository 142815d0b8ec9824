#pragma once

// Turns the vocabulary of a GGUF file into the parts of a tokenizer.
//
//   gpt2   byte-level BPE: merges in their order, text split as tokenizer.ggml.pre says
//   llama  SentencePiece BPE: of the pairs whose text is a token, the best score first;
//          spaces become U+2581, characters outside the vocabulary their bytes
//
// Control and unknown tokens become special added tokens, user-defined tokens plain added tokens;
// unused tokens have no text. A GGUF file names no normal form, so none is applied.
//
// Place:      below Tokenizer::FromGguf.
// Invariants: ids equal those of the tokenizer.json or tokenizer.model that the file was made from,
//             but for what docs/tokenizers.md lists.
// Threads:    pure.
// Source:     llama.cpp, src/llama-vocab.cpp, for defaults of absent keys; sentencepiece,
//             bpe_model.cc, for the order of merges.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/subword/bpe.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace quire::text {

struct GgufPipeline {
  Bpe model;
  // normalizer, pre_tokenizer, decoder, post_processor and added_tokens (with ids as given) in the
  // form of tokenizer.json.
  std::string components_json;
  std::optional<std::int32_t> bos_id, eos_id, pad_id;
  // Everything that decides ids and text, to be hashed.
  std::string identity;
};

// Errors begin with the label and name the key: INVALID_ARGUMENT for duplicate or empty tokens,
// wrong types, scores that are no numbers, arrays of other lengths than the tokens, broken merges,
// ids that no token has; UNIMPLEMENTED for another model or pre, with what is supported.
absl::StatusOr<GgufPipeline> BuildGgufPipeline(const GgufVocabulary& vocabulary);

}  // namespace quire::text
