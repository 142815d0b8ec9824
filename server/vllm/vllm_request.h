#pragma once

// Converts vllm.grpc.engine.GenerateRequest to quire.v1.GenerateRequest, and field names back.
//
//   ToGenerateRequest -> Generation::Start, which checks ranges; errors -> NameVllmFields
//
// Place:      between the service and Generation; the only code that reads these requests.
// Invariants: every field is either applied or refused with INVALID_ARGUMENT that names field and
//             value. Unknown fields are refused too. The table is in docs/api.md, vLLM
//             worker service.
// Threads:    any.
//
// SOURCE: Shepherd Model Gateway, crates/grpc_client/proto/vllm_engine.proto, and the defaults of
// its servicer for vLLM. A number in a field without presence is taken literally, so 0 turns most
// parameters off. The gateway gets the model's sampling defaults from GetModelInfo and sends them.

#include "absl/status/status.h"

namespace quire::v1 {
class GenerateRequest;
}
namespace vllm::grpc::engine {
class GenerateRequest;
}

namespace quire::server {

// Fills the empty `request`. Returns INVALID_ARGUMENT / BAD_PARAMETER, BAD_TOKEN_ID or
// PROMPT_MISSING.
absl::Status ToGenerateRequest(const ::vllm::grpc::engine::GenerateRequest& message,
                               v1::GenerateRequest* request);

// Returns the error with the field names of this protocol in message and metadata.
absl::Status NameVllmFields(const absl::Status& status);

}  // namespace quire::server
