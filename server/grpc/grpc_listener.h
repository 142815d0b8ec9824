#pragma once

// Runs one gRPC server with its addresses, transport settings, health service and reflection.
//
// Place:      the class Listeners creates two of them, one for data and one for administration. A
//             GrpcAcceptor accepts the connections.
// Invariants: Start fails if another process listens on the port or the Unix socket. With
//             reuse_port, several processes may share a port. Every health name is NOT_SERVING when
//             Start returns. Compressed messages are refused with UNIMPLEMENTED.
// Threads:    one thread at a time calls Start, KeepPolling, CheckReachable and Shutdown.
//             SetServing and is_reachable are thread-safe.
// Lifetime:   the services and the objects in the options outlive it.

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
  std::vector<std::string> addresses;  // host:port (port 0: any free port) or unix:PATH
  std::uint32_t socket_mode = 0660;    // mode of Unix sockets
  GrpcTransportOptions transport;
  const CertificateStore* certificates = nullptr;  // for TCP addresses; null: plain text
  PeerTable* peers = nullptr;
  probe::Registry* registry = nullptr;
};

class GrpcListener {
 public:
  // Errors name the address: ALREADY_EXISTS "... is in use", INVALID_ARGUMENT otherwise.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Start(
      const GrpcListenerOptions& options, const std::vector<grpc::Service*>& services);
  ~GrpcListener();

  // Port 0 is replaced by the port that the system chose.
  const std::vector<std::string>& addresses() const;

  // Sets the status of one name of grpc.health.v1.
  void SetServing(const std::string& name, bool serving);

  // Makes an empty call through the in-process channel. On an idle server with few cores all of
  // gRPC's callback threads may sleep for 100 ms at once. A call every 250 ms keeps one thread
  // awake.
  void KeepPolling();

  // Starts a health check over a new connection to the first address. Unlike a client's connection,
  // this connection never uses TLS and does not count against the limits. See is_reachable.
  void CheckReachable();
  // Returns true if a check was answered in the last 20 s, or if the listener was created in the
  // last 20 s.
  bool is_reachable() const;

  // Rejects new calls. Waits for open calls and cancels them at `deadline`.
  void Shutdown(absl::Time deadline);

 private:
  struct State;
  explicit GrpcListener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::server
