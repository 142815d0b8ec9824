#pragma once

// vllm.grpc.engine.VllmEngine: the protocol between gateways and vLLM workers, served by the same
// engine as quire.v1.
//
// Place:      registered with the data listener if server.grpc.vllm_service is set. Generations use
//             GenerateReactor; other calls are answered from the served model.
// Invariants: authentication, scopes, limits, drain, metrics and error details are the same as in
//             GenerationService. However, HealthCheck needs no token, and GetLoads needs the scope
//             `metrics`. Unsupported calls return UNIMPLEMENTED / FEATURE_UNSUPPORTED with the name
//             of the method.
// Threads:    gRPC's callback threads.
// Lifetime:   outlives the gRPC server that it is registered with. The context's objects outlive
//             it.

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/api/generation.h"

namespace quire::server {

// Properties of the process, not of the model.
struct VllmDescription {
  std::string version;
  absl::Time start_time;
  std::string model_path;     // the path that model.path resolves to
  bool has_own_files = true;  // false: the embedded model, which has no path
};

std::unique_ptr<grpc::Service> MakeVllmService(const HandlerContext& context,
                                               const VllmDescription& description);

}  // namespace quire::server
