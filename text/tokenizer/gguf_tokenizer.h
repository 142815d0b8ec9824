#pragma once

// Builds the parts of a tokenizer from the vocabulary of a GGUF file.
//
//   gpt2   byte-level BPE: merges in file order, text split as tokenizer.ggml.pre specifies
//   llama  SentencePiece BPE: two adjacent parts are merged if their concatenation is a token, best
//          score first; spaces become U+2581, characters outside the vocabulary become their bytes
//   gemma4 like llama, but with merges in file order, and no space prefix by default
//
// Control and unknown tokens become special added tokens, and user-defined tokens become plain
// added tokens. Unused tokens have no text. A GGUF file names no Unicode normal form, so none is
// applied.
//
// Place:      below Tokenizer::FromGguf.
// Invariants: ids equal those of the tokenizer.json or tokenizer.model that the file was converted
//             from, except for the cases in docs/tokenizers.md.
// Threads:    pure functions.
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
  // The components normalizer, pre_tokenizer, decoder, post_processor and added_tokens (with their
  // ids) in the form of tokenizer.json.
  std::string components_json;
  std::optional<std::int32_t> bos_id, eos_id, pad_id;
  // Everything that determines ids and text, as input of a hash.
  std::string identity;
};

// Error messages start with vocabulary.label and contain the key. Returns INVALID_ARGUMENT if there
// are no tokens or too many, if two tokens are equal, or if a token is not UTF-8. Also returns it
// for unknown token types, non-finite scores, arrays of a wrong length, malformed merges, and ids
// without a token. An empty token is accepted and never encoded. For an unsupported `model` or
// `pre`, returns UNIMPLEMENTED with the supported values.
absl::StatusOr<GgufPipeline> BuildGgufPipeline(const GgufVocabulary& vocabulary);

}  // namespace quire::text
