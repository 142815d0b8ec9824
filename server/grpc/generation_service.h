#pragma once

// quire.v1.GenerationService: the data plane.
//
// Place:      registered with the data listener (server.grpc.listen). Starts a reactor for each
//             generation (generate_reactor.h) and answers other calls from the served model.
// Threads:    gRPC's callback threads, and the service's own worker for the tokenizer.
// Lifetime:   outlives the gRPC server that it is registered with. The context's objects outlive
//             it.

#include <grpcpp/impl/service_type.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/api/generation.h"

namespace quire::server {

// The fields of GetServerInfo that belong neither to the state nor to the model.
struct ServerDescription {
  std::string version, git_commit, build_type;
  absl::Time start_time;  // on the monotonic timeline
  std::int64_t max_receive_message_bytes = 0;
};

std::unique_ptr<grpc::Service> MakeGenerationService(const HandlerContext& context,
                                                     const ServerDescription& description);

}  // namespace quire::server
