#pragma once

// Accepts connections in place of a gRPC server: binds, accepts, terminates TLS, and relays each
// client to gRPC through a GuardedConnection.
//
// gRPC 1.51 stops accepting forever after EMFILE, and limits neither the number of connections nor
// the memory of a connection (frame_guard.h). It accepts external connections through
// ServerBuilder::experimental().AddExternalConnectionAcceptor.
//
// Place:      inside GrpcListener, one for each.
// Invariants: a connection is accepted only while fewer than max_connections are counted, and fewer
//             than max_connections_per_address from its IPv4 address or IPv6 /64 network. A new
//             connection beyond a limit evicts the connection that has been idle for longest
//             (connection_evictor.h). Beyond the limit per address, it evicts a connection of the
//             same address. If none is idle, the new connection is rejected. A rejected client gets
//             a GOAWAY frame with the reason, unless the connection uses TLS. An evicted client
//             gets a GOAWAY frame without a reason, unless its preface is incomplete. If too many
//             connections linger, neither gets a frame. An evicted connection is not counted,
//             although it may still be closing. A connection uses one descriptor, and three once
//             its preface is complete. In addition, at most 64 connections that get a frame linger,
//             with one descriptor each. If no descriptor is free, the acceptor evicts an idle
//             connection if there is one, and retries. It skips connections that their clients have
//             closed or half-closed already. Bind fails if another process listens on the TCP port
//             or Unix socket.
// Threads:    one thread calls Bind, Start, StopAccepting, WaitClosed and the destructor. One
//             thread at a time calls ConnectToSelf. Other methods are thread-safe. The object owns
//             two threads, which accept and relay.
// Lifetime:   certificates, peers, registry and the gRPC server outlive it.

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/probe.h"
#include "server/auth/certificate_store.h"
#include "server/edge/frame_guard.h"
#include "server/edge/grpc_connections.h"
#include "server/edge/guarded_connection.h"
#include "server/edge/peer_table.h"
#include "server/edge/self_connector.h"
#include "server/edge/watched_descriptors.h"
#include "server/net/tls_context.h"
#include "server/net/transport.h"

namespace quire::server {

struct GrpcAcceptorOptions {
  std::vector<std::string> addresses;  // host:port (port 0: any free port) or unix:PATH
  std::uint32_t socket_mode = 0660;    // permissions of Unix sockets
  bool reuse_port = false;
  std::int32_t max_connections = 0;
  std::int32_t max_connections_per_address = 0;
  std::int64_t max_unfinished_bytes = 0;  // bytes of incomplete messages, over all connections
  FrameLimits frames;
  ConnectionTimes times;
  const CertificateStore* certificates = nullptr;  // for TCP addresses; null: plain text
  PeerTable* peers = nullptr;
  probe::Registry* registry = nullptr;
};

class GrpcAcceptor {
 public:
  // Binds all addresses but accepts nothing yet. Errors name the address: ALREADY_EXISTS ("... is
  // in use") or INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<GrpcAcceptor>> Bind(GrpcAcceptorOptions options);
  // Closes the connections that are still open.
  ~GrpcAcceptor();
  GrpcAcceptor(const GrpcAcceptor&) = delete;
  GrpcAcceptor& operator=(const GrpcAcceptor&) = delete;

  // Port 0 is replaced by the port that the system chose.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Starts accepting. `hand_over` passes a connected socket to gRPC, which owns it from then on.
  void Start(std::function<void(int fd)> hand_over);

  // Returns a new non-blocking connection to the first address, to check that connections are
  // accepted. The connection is plain text even if clients need TLS, and does not count against the
  // limits. Returns UNAVAILABLE if no descriptor is free or the connection takes more than a
  // second.
  absl::StatusOr<int> ConnectToSelf();

  // Stops accepting and closes the connections that were not handed to gRPC yet.
  void StopAccepting();
  // Waits until gRPC has closed all connections, or until `deadline`.
  void WaitClosed(absl::Time deadline);

 private:
  struct Listening {
    boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol> acceptor;
    boost::asio::steady_timer pause;  // pause after a failed accept
  };
  using Executor = boost::asio::io_context::executor_type;

  explicit GrpcAcceptor(GrpcAcceptorOptions options);
  absl::Status BindAll();
  void Serve();
  void Accept(Listening* listening);
  void OnAccepted(StreamSocket socket);
  void Tick(std::uint64_t first);
  void CloseLargest();
  absl::StatusOr<GuardedConnectionHost::SocketToGrpc> Connect(
      std::uint64_t number, const boost::asio::any_io_executor& executor, const Peer& peer);
  void CountClosed(const Peer& peer, CloseCause cause, absl::string_view why);
  void Remove(std::uint64_t number, const std::string& name);

  const GrpcAcceptorOptions options_;
  const std::string nonce_;  // prefix of the socket names in Connect
  probe::Gauge num_open_;
  GuardedConnectionHost host_;
  std::vector<std::string> addresses_;
  std::vector<std::string> socket_paths_;
  std::function<void(int)> hand_over_;
  SelfConnector self_connector_;
  std::atomic<bool> is_closing_{false};
  std::atomic<std::int64_t> unfinished_bytes_{0};
  GrpcConnections connections_;

  boost::asio::io_context io_;
  WatchedDescriptors descriptor_blocks_;
  const std::unique_ptr<TlsContext> tls_;  // null: plain text
  boost::asio::executor_work_guard<Executor> work_;
  boost::asio::strand<Executor> strand_;  // runs the handlers of acceptors and timers
  boost::asio::steady_timer tick_;
  std::list<Listening> listening_;
  std::uint64_t next_number_ = 0;  // used in the strand
  std::vector<std::thread> threads_;
};

}  // namespace quire::server
