#pragma once

// quire.v1.GenerationService: the data plane.
//
// Place:      registered with the data listener; hands generations to reactors (generate_reactor.h)
//             and answers the rest from the served model.
// Invariants: methods of later stages answer UNIMPLEMENTED / FEATURE_UNSUPPORTED.
// Threads:    gRPC's callback threads, and workers of its own for the tokenizer.
// Lifetime:   outlives the gRPC server that it is registered with; the context's objects outlive
//             it.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/api/generation.h"

namespace grpc {
class Service;
}

namespace quire::server {

// What GetServerInfo says beside the state and the model.
struct ServerDescription {
  std::string version, git_commit, build_type;
  absl::Time start_time;  // of the monotonic timeline
  std::int64_t max_receive_message_bytes = 0;
};

class GenerationService {
 public:
  GenerationService(const HandlerContext& context, const ServerDescription& description);
  ~GenerationService();

  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
