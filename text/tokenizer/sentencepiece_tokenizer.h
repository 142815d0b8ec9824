#pragma once

// Builds a tokenizer from a tokenizer.model file (SentencePiece).
//
// Place:      below Tokenizer::FromSentencePiece.
// Invariants: ids and texts equal those of sentencepiece, except for the cases in
//             docs/tokenizers.md. As in sentencepiece, text of control pieces is plain text, except
//             where a chat template rendered it.
// Threads:    pure functions.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace quire::text {

// `config` is the root of tokenizer_config.json: add_bos_token (default: true if `model` has a BOS
// piece) and add_eos_token (default false). Errors start with the name of the faulty file.
absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildSentencePiece(absl::string_view model,
                                                                   const formats::JsonValue& config,
                                                                   std::int64_t cache_entries);

}  // namespace quire::text
