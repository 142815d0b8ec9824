#pragma once

// Takes connections for a gRPC server, in its place: binds, accepts, ends TLS, and hands each
// client on through a GuardedConnection.
//
// gRPC 1.51 stops accepting for ever once it has met EMFILE, and bounds neither connections nor
// what one of them makes it hold (frame_guard.h). It takes connections from elsewhere
// (ServerBuilder::experimental().AddExternalConnectionAcceptor).
//
// Place:      inside GrpcListener, one for each.
// Invariants: at most max_connections are open, and max_connections_per_address of one IP address,
//             of IPv6 one /64; beyond it another one gives way (connection_places.h), of the same
//             address where that is at its limit, or the new one is refused, by a GOAWAY where no
//             TLS is in the way.
//             Those that stay have at most max_descriptors: one each, and two more from the first
//             call on, for which others that have none give way too, or that call's connection
//             ends. Those that leave have at most 96 more.
//             Without descriptors it waits, makes room, and goes on by itself. A port that another
//             process holds is an error; a Unix socket that no process answers on is replaced, and
//             is never open to more than its mode says.
// Threads:    Bind, Start, StopAccepting, WaitClosed and the destructor from one thread,
//             ConnectToSelf from one, the others from any. One thread of its own accepts and holds
//             connections that have said nothing yet (silent_connections.h); two serve the others,
//             so that their calls wait for no flood of silent ones.
// Lifetime:   certificates, peers, probe and the gRPC server outlive it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/api/peer_table.h"
#include "server/api/server_probe.h"
#include "server/auth/certificate_store.h"
#include "server/edge/frame_guard.h"
#include "server/edge/guarded_connection.h"

namespace quire::server {

struct GrpcAcceptorOptions {
  std::vector<std::string> addresses;  // host:port (port 0: any free one) or unix:PATH
  std::uint32_t socket_mode = 0660;    // of Unix sockets
  bool reuse_port = false;
  std::int32_t max_connections = 0;
  std::int32_t max_connections_per_address = 0;
  std::int64_t max_descriptors = 0;
  std::int64_t max_unfinished_bytes = 0;  // of messages that are not complete, of all connections
  std::int64_t max_metadata_bytes = 0;    // of a call; told to clients
  FrameLimits frames;
  ConnectionTimes times;
  const CertificateStore* certificates = nullptr;  // of TCP addresses; null: plain text
  PeerTable* peers = nullptr;
  ServerProbe* probe = nullptr;
};

class GrpcAcceptor {
 public:
  // Binds all addresses; nothing is accepted yet. ALREADY_EXISTS "... is in use", or
  // INVALID_ARGUMENT, naming the address.
  static absl::StatusOr<std::unique_ptr<GrpcAcceptor>> Bind(GrpcAcceptorOptions options);
  // Closes what is still open.
  ~GrpcAcceptor();

  // With the ports that port 0 became.
  const std::vector<std::string>& addresses() const;
  int num_connections() const;

  // `hand_over` gives gRPC a connected socket, which it owns from then on.
  void Start(std::function<void(int fd)> hand_over);

  // A new connection to the first address, non-blocking, in plain text even where others need TLS.
  // It counts in no limit: it asks whether connections are taken. UNAVAILABLE: the system does not
  // take it, or has no descriptor.
  absl::StatusOr<int> ConnectToSelf();

  // Takes no more connections and closes those that gRPC does not know.
  void StopAccepting();
  // Until all connections have ended, which they do when gRPC has; the rest is closed at
  // `deadline`.
  void WaitClosed(absl::Time deadline);

 private:
  class Impl;
  explicit GrpcAcceptor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
