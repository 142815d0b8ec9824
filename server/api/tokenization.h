#pragma once

// Calls that use only the tokenizer and the chat template: Tokenize, Detokenize and RenderChat.
//
// Place:      below the gRPC service and the HTTP endpoints with the same calls.
// Invariants: errors are those that proto/quire/v1/text.proto documents. A chat has the same tokens
//             as in a generation.
// Threads:    any. A call takes milliseconds per megabyte, so transports run it on a worker.
// Lifetime:   the model outlives a call.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/serving_state.h"

namespace quire::v1 {
class DetokenizeRequest;
class DetokenizeResponse;
class RenderChatRequest;
class RenderChatResponse;
class TokenizeRequest;
class TokenizeResponse;
}  // namespace quire::v1

namespace quire::server {

// Maximum number of tokens of a call that returns the text of each token.
inline constexpr std::size_t kMaxTokenTexts = 1'000'000;

// Returns INVALID_ARGUMENT / INPUT_TOO_LARGE if `num_tokens` exceeds kMaxTokenTexts. `field` is the
// field that requests the texts.
absl::Status CheckTokenTexts(std::size_t num_tokens, absl::string_view field);

// `max_bytes` limits the text (tokenizer.max_input_bytes). Templates print `wall_now` as the
// current time.
absl::Status RenderChat(const ServedModel& served, std::int64_t max_bytes, absl::Time wall_now,
                        const v1::RenderChatRequest& request, v1::RenderChatResponse* response);
absl::Status Tokenize(const ServedModel& served, std::int64_t max_bytes, absl::Time wall_now,
                      const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
absl::Status Detokenize(const ServedModel& served, const v1::DetokenizeRequest& request,
                        v1::DetokenizeResponse* response);

}  // namespace quire::server
