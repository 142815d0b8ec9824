#pragma once

// Converts bodies of Ollama's /api/generate and /api/chat to quire.v1.GenerateRequest.
//
//   {"model": "m:latest", "messages": [..], "options": {"num_predict": -1}}
//     -> model "m", max_tokens = OpenAiLimits::max_tokens, streamed
//
// Place:      called as the read functions of GenerationEndpoint.
// Invariants: the invariants of openai_request.h hold. OllamaFields() lists all fields. `stream` is
//             true by default. Without `num_predict`, limits.default_max_tokens applies. The prompt
//             of /api/generate is a user message unless `raw` is true or the model has no template.
// Threads:    any.
// Source:     api/types.go and docs/openapi.yaml of Ollama at 017eb8ae; ollama 0.6.3 (PyPI).

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/openai/openai_request.h"
#include "server/openai/request_fields.h"

namespace quire::server {

// The objects whose members OllamaFields() lists, as bits.
enum OllamaOwner : std::uint32_t {
  kOllamaGenerate = 1U << 0,
  kOllamaChat = 1U << 1,
  kOllamaShow = 1U << 2,
  kOllamaOptions = 1U << 3,
  kOllamaMessage = 1U << 4,
  kOllamaToolCall = 1U << 5,
  kOllamaFunction = 1U << 6,  // function of a tool call
};

const FieldTable& OllamaFields();

absl::StatusOr<OpenAiRequest> ReadOllamaGenerate(absl::string_view bytes,
                                                 const OpenAiLimits& limits);
absl::StatusOr<OpenAiRequest> ReadOllamaChat(absl::string_view bytes, const OpenAiLimits& limits);

// Returns the name without the suffix ":latest", which Ollama's clients append.
absl::string_view OllamaModelName(absl::string_view name);

}  // namespace quire::server
