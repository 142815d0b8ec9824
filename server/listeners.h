#pragma once

// The services of the daemon, the listeners that serve them, and health in grpc.health.v1.
//
// Place:      owned by the daemon; above grpc/, http/, openai/ and vllm/.
// Invariants: a service outlives the listeners that serve it.
// Threads:    UpdateHealth is thread-safe. One thread at a time calls the other methods.
// Lifetime:   `state`, the metrics and the arguments of Start must outlive this object. It must be
//             destroyed after the last reload, because AdminService subscribes to the LiveConfig.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "server/api/drain_control.h"
#include "server/api/generation.h"
#include "server/api/server_probe.h"
#include "server/api/serving_state.h"
#include "server/auth/certificate_store.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "server/edge/peer_table.h"
#include "server/grpc/admin_service.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/grpc_listener.h"
#include "server/grpc/health_service.h"
#include "server/http/http_listener.h"
#include "server/http/status_history.h"
#include "server/openai/openai_listener.h"
#include "server/vllm/vllm_service.h"

namespace quire::server {

class Listeners {
 public:
  Listeners(const DaemonOptions& options, absl::Time start_time, ServingState* state,
            probe::Registry* metrics);

  ServerProbe* probe() { return &probe_; }
  const PeerTable* peers() const { return &peers_; }

  // Creates the services and opens all listeners. `certificates` is null without TLS. REQUIRES:
  // `context` is complete.
  absl::Status Start(const HandlerContext& context, DrainControl* drain, LiveConfig* live,
                     const CertificateStore* certificates);
  // REQUIRES: Start succeeded.
  void LogAddresses() const;
  // Returns the base URL for clients of the OpenAI-compatible API on this machine, or "" if it is
  // not served. REQUIRES: Start succeeded.
  std::string OpenAiUrl() const;

  // Publishes the state in grpc.health.v1. Has no effect before Start and after Close.
  void UpdateHealth();
  // Starts the reachability checks of the listeners, makes gRPC poll (GrpcListener::KeepPolling)
  // and samples the engine's statistics. Call a few times per second. REQUIRES: Start succeeded.
  void Tick(absl::Time now);
  // Returns the name of a listener that does not answer, as a string literal, or null if all
  // answer. REQUIRES: Start succeeded.
  const char* FindUnresponsive() const;

  // Shuts all listeners down and ends all calls, at the latest at `deadline`. The services remain,
  // because a reload that is still running may call AdminService. REQUIRES: Start succeeded.
  void Close(absl::Time deadline);

 private:
  std::vector<grpc::Service*> MakeDataServices();
  absl::Status StartGrpc(const CertificateStore* certificates);
  absl::Status StartHttp(const DrainControl* drain, const CertificateStore* certificates);
  HttpHandlers MakeHandlers(const DrainControl* drain, const CertificateStore* certificates) const;

  const DaemonOptions& options_;
  const absl::Time start_time_;
  ServingState* const state_;
  probe::Registry* const metrics_;
  ServerProbe probe_;
  PeerTable peers_;
  HandlerContext context_;
  StatusHistory history_;

  Mutex health_mutex_;
  std::unique_ptr<HealthService> health_ ABSL_GUARDED_BY(health_mutex_);

  std::unique_ptr<grpc::Service> generation_, admin_;
  std::unique_ptr<grpc::Service> vllm_;  // null if not enabled
  std::unique_ptr<GrpcListener> data_listener_, admin_listener_;
  std::unique_ptr<HttpServer> http_listener_;
  std::unique_ptr<OpenAiListener> openai_listener_;  // null if not enabled
  absl::Time next_poll_ = absl::InfinitePast(), next_check_ = absl::InfinitePast(),
             next_sample_ = absl::InfinitePast();
};

}  // namespace quire::server
