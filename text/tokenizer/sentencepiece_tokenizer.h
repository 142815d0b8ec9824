#pragma once

// Makes a tokenizer of a tokenizer.model (SentencePiece).
//
// Place:      below Tokenizer::FromSentencePiece.
// Invariants: ids and texts equal those of sentencepiece, but for what docs/tokenizers.md lists.
//             Text of control pieces is plain text, as there; only where a chat template printed it
//             is it the piece.
// Threads:    pure.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace quire::text {

// `config` is the root of tokenizer_config.json: add_bos_token (default: true if there is such a
// piece) and add_eos_token (false). Errors begin with the name of the file that is wrong.
absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildSentencePiece(absl::string_view model,
                                                                   const formats::JsonValue& config,
                                                                   std::int64_t cache_entries);

}  // namespace quire::text
