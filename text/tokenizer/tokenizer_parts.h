#pragma once

// The parts of a Tokenizer, and helpers for the functions that build the different kinds.
//
// Place:    below Tokenizer only.
// Threads:  a value; immutable once the Tokenizer owns it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/encoder.h"

namespace quire::text {

inline constexpr absl::string_view kConfigFile = "tokenizer_config.json";

struct TokenizerParts {
  Encoder encoder;
  Decoder decoder;
  std::optional<std::int32_t> bos_token_id = {};
  std::optional<std::int32_t> eos_token_id = {};
  std::optional<std::int32_t> pad_token_id = {};
  std::string sha256 = {};
  std::string kind = {};  // for example "BPE (tokenizer.json)"
  std::optional<std::size_t> max_token_bytes = {};
};

// Returns the status with the message "<file>: <message>".
absl::Status WithFileName(absl::string_view file, const absl::Status& status);

// Parses a tokenizer_config.json, which must be an object; empty text gives an empty object. Errors
// name the file.
absl::StatusOr<formats::JsonDocument> ParseTokenizerConfig(absl::string_view text);

// Returns the text under `key` of a tokenizer_config.json: a string, or an object with "content".
// Returns nullopt if the key is absent or null.
absl::StatusOr<std::optional<std::string>> NamedTokenText(const formats::JsonValue& config,
                                                          absl::string_view key);

// Returns UNIMPLEMENTED if `added_tokens_decoder` of a tokenizer_config.json has a token that
// `file` does not define with the same id.
absl::Status CheckAddedTokensAreKnown(const formats::JsonValue& config, absl::string_view file,
                                      const Encoder& encoder);

}  // namespace quire::text
