#pragma once

// Builds tokenizers from vocabularies of byte strings with ranks. Two adjacent parts are merged if
// their concatenation is a token. The pair whose token has the lowest rank is merged first.
//
//   tekken.json          Mistral: special tokens have the first ids
//   tokenizer.tiktoken   one line "<base64> <rank>" per token; pattern and special tokens are in
//                        tokenizer_config.json
//
// Place:      below Tokenizer::FromTekken and FromTiktoken.
// Invariants: ids and texts equal those of mistral-common and tiktoken. As in mistral-common, text
//             of Tekken's special tokens is plain text, except where a chat template rendered it.
// Threads:    pure functions.
// Source:     openai/tiktoken, src/lib.rs; mistralai/mistral-common, tekken.py.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace quire::text {

// `config` is the root of tokenizer_config.json: add_bos_token (default true) and add_eos_token
// (default false). Errors start with the name of the faulty file and name the field.
absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildTekken(absl::string_view tekken_json,
                                                            const formats::JsonValue& config,
                                                            std::int64_t cache_entries);

// `config` has "pattern" and "special_tokens" (text -> id); add_bos_token and add_eos_token default
// to false. Errors start with the name of the faulty file and name the line, the token or the
// field.
absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildTiktoken(absl::string_view ranks,
                                                              const formats::JsonValue& config,
                                                              std::int64_t cache_entries);

}  // namespace quire::text
