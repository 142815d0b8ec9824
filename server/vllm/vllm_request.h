#pragma once

// vllm.grpc.engine.GenerateRequest -> quire.v1.GenerateRequest, and names of fields back.
//
//   ToGenerateRequest -> Generation::Start, which checks ranges; errors -> NameVllmFields
//
// Place:      between the service and Generation; the only code that reads these requests.
// Invariants: every field is honoured, or refused with INVALID_ARGUMENT naming field and value; so
//             is a field that this version of the protocol does not have (docs/api.md, vLLM
//             worker service).
// Threads:    any.
// Lifetime:   none.
//
// SOURCE: Shepherd Model Gateway, crates/grpc_client/proto/vllm_engine.proto, and the defaults of
// its servicer for vLLM: a number without presence means what it says, so 0 switches most of them
// off; the model's own sampling defaults are told by GetModelInfo and sent by the gateway.

#include "absl/status/status.h"

namespace quire::v1 {
class GenerateRequest;
}
namespace vllm::grpc::engine {
class GenerateRequest;
}

namespace quire::server {

// Fills `request`, which is empty. INVALID_ARGUMENT / BAD_PARAMETER, BAD_TOKEN_ID or
// PROMPT_MISSING.
absl::Status ToGenerateRequest(const ::vllm::grpc::engine::GenerateRequest& message,
                               v1::GenerateRequest* request);

// The same error with the field as this protocol calls it, in message and metadata.
absl::Status NameVllmFields(const absl::Status& status);

}  // namespace quire::server
