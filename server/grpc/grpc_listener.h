#pragma once

// One gRPC server: addresses, transport settings, health, reflection.
//
// Place:      the daemon makes two, for data and for control. Connections come from a GrpcAcceptor.
// Invariants: a port that another process holds is an error, never shared, unless reuse_port says
//             otherwise. Every health name is NOT_SERVING when Start returns. Compressed messages
//             are refused, UNIMPLEMENTED.
// Threads:    Start and Shutdown from one thread; SetServing, KeepPolling, CheckReachable
//             and is_reachable from one thread.
// Lifetime:   the services and what the options name outlive it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/probe.h"
#include "server/auth/certificate_store.h"
#include "server/config/options.h"
#include "server/edge/peer_table.h"

namespace grpc {
class Service;
}

namespace quire::server {

struct GrpcListenerOptions {
  std::vector<std::string> addresses;  // host:port (port 0: any free one) or unix:PATH
  std::uint32_t socket_mode = 0660;    // of Unix sockets
  GrpcTransportOptions transport;
  const CertificateStore* certificates = nullptr;  // of TCP addresses; null: plain text
  PeerTable* peers = nullptr;
  probe::Registry* registry = nullptr;
};

class GrpcListener {
 public:
  // Errors name the address: ALREADY_EXISTS "... is in use", INVALID_ARGUMENT otherwise.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Start(
      const GrpcListenerOptions& options, const std::vector<grpc::Service*>& services);
  ~GrpcListener();

  // With the ports that port 0 became.
  const std::vector<std::string>& addresses() const;

  // Turns one name of grpc.health.v1.
  void SetServing(const std::string& name, bool serving);

  // A call that does nothing, through the server itself. On an idle server of few cores all of
  // gRPC's callback threads may sleep 100 ms at once; a call every 250 ms keeps one awake.
  void KeepPolling();

  // Makes a call through the front door: a connection to the first address, accepted and relayed as
  // a client's is, and a health check on it. See is_reachable.
  void CheckReachable();
  // A call of CheckReachable has been answered in the last 20 s, or none is that old.
  bool is_reachable() const;

  // New calls fail at once; open ones may end until `deadline`, then they are cancelled. Waits for
  // them.
  void Shutdown(absl::Time deadline);

 private:
  struct State;
  explicit GrpcListener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::server
