#pragma once

// What a Tokenizer consists of, and what the builders of its kinds share.
//
// Place:    below Tokenizer only.
// Threads:  a value; immutable once the Tokenizer has it.

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
  std::string kind = {};  // "BPE (tokenizer.json)"
  std::optional<std::size_t> max_token_bytes = {};
};

// "<file>: <message>".
absl::Status InFile(absl::string_view file, const absl::Status& status);

// The document of a tokenizer_config.json, an object; empty text: no members. Errors name the file.
absl::StatusOr<formats::JsonDocument> ParseTokenizerConfig(absl::string_view text);

// The text under `key` of a tokenizer_config.json: a string, or an object with "content". Absent
// and null both give nothing.
absl::StatusOr<std::optional<std::string>> NamedTokenText(const formats::JsonValue& config,
                                                          absl::string_view key);

// UNIMPLEMENTED if `added_tokens_decoder` of a tokenizer_config.json has a token that the
// tokenizer's own `file` does not have under that id.
absl::Status CheckAddedTokensAreKnown(const formats::JsonValue& config, absl::string_view file,
                                      const Encoder& encoder);

}  // namespace quire::text
