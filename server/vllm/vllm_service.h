#pragma once

// vllm.grpc.engine.VllmEngine: the protocol that gateways speak with a vLLM worker, on the engine
// that quire.v1 has.
//
// Place:      registered with the data listener when server.grpc.vllm_service is on; generations go
//             through GenerateReactor, the rest is answered from the served model.
// Invariants: callers, scopes, limits, drain, metrics and error details are those of
//             GenerationService; only HealthCheck asks for no token. What is not served answers
//             UNIMPLEMENTED / FEATURE_UNSUPPORTED naming itself.
// Threads:    gRPC's callback threads.
// Lifetime:   outlives the gRPC server that it is registered with; the context's objects outlive
//             it.

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/api/generation.h"

namespace grpc {
class Service;
}

namespace quire::server {

// Of the process; what else the answers say is the model's.
struct VllmDescription {
  std::string version;
  absl::Time start_time;
  std::string model_path;     // model.path
  bool has_own_files = true;  // false: the embedded model, whose path is none
};

class VllmService {
 public:
  VllmService(const HandlerContext& context, const VllmDescription& description);
  ~VllmService();

  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
