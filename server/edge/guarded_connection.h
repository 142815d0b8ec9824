#pragma once

// Relays one client's connection to gRPC and counts the frames that pass.
//
//   client <- TCP or Unix socket, TLS ends here -> GuardedConnection <- socket pair -> gRPC
//
//   opening (TLS handshake, HTTP/2 preface) -> relaying -> lingering -> closed
//
// A lingering connection sends the client the last bytes. It waits about a second for the client to
// read them and close.
//
// Place:      GrpcAcceptor creates one for each connection that it accepts.
// Invariants: gRPC receives a socket when the client's preface is complete, so a client that sends
//             nothing uses no descriptor of gRPC. Each direction has one buffer and at most one
//             pending operation. Bytes are written before more are read, so a slow receiver slows
//             down the sender. Frames that this class adds (SETTINGS, GOAWAY, RST_STREAM) are sent
//             to the client only between two frames of gRPC. A client that is rejected or exceeds a
//             limit gets a GOAWAY frame with the reason, unless too many connections linger or gRPC
//             leaves a frame incomplete. A connection that gRPC closes counts against the
//             connection limits while it lingers.
// Threads:    runs on the strand of its transport. Public methods are thread-safe.
// Lifetime:   its pending operations keep it alive. `host` outlives it.

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/edge/frame_guard.h"
#include "server/edge/peer_table.h"
#include "server/net/connection_evictor.h"
#include "server/net/transport.h"

namespace quire::server {

// The cause for closing a connection, a label of quire_grpc_connections_closed_total.
enum class CloseCause : std::uint8_t {
  kTooMany,     // rejected: a connection limit is reached
  kSilent,      // no preface in time, or evicted before the preface
  kIdle,        // evicted while it had no call
  kNotHttp2,    // the first bytes are not the HTTP/2 preface
  kFrames,      // a limit of frames, streams, headers or unfinished messages is exceeded
  kMemory,      // had the most unfinished bytes when the memory limit was exceeded
  kTimeout,     // a message was not completed in time, or the client did not read in time
  kNoResource,  // no descriptors for gRPC's socket
};

// Returns "too_many", "silent", ...
absl::string_view CloseCauseName(CloseCause cause);

// The functions of the acceptor that its connections call.
struct GuardedConnectionHost {
  struct SocketToGrpc {
    boost::asio::local::stream_protocol::socket socket;
    std::string name;  // gRPC's name for the connection
  };
  // Passes one end of a new socket pair to gRPC and returns the other end. Returns UNAVAILABLE if
  // the process is ending.
  std::function<absl::StatusOr<SocketToGrpc>(std::uint64_t number,
                                             const boost::asio::any_io_executor&, const Peer&)>
      connect;
  // Adds to the number of unfinished bytes of all connections.
  std::function<void(std::int64_t)> add_unfinished_bytes;
  std::function<void(const Peer&, CloseCause, absl::string_view why)> count_closed;
  std::function<void(std::uint64_t number, Phase)> set_phase;
  // Marks a connection that gets a GOAWAY frame as lingering. Returns false if too many such
  // connections linger already. Called at most once per connection.
  std::function<bool(std::uint64_t number)> try_linger;
  // The destructor of a connection calls this last. `name` is empty if the connection was never
  // handed to gRPC.
  std::function<void(std::uint64_t number, const std::string& name)> remove;
};

struct ConnectionTimes {
  absl::Duration preface;      // from accept to the complete preface, including TLS
  absl::Duration write_stall;  // maximum duration of one write to the client
};

class GuardedConnection final : public std::enable_shared_from_this<GuardedConnection> {
 public:
  // `number` identifies the connection in calls of the host.
  GuardedConnection(const GuardedConnectionHost* host, std::uint64_t number,
                    std::unique_ptr<Transport> transport, Peer peer, const FrameLimits& limits,
                    const ConnectionTimes& times);
  ~GuardedConnection();

  void Begin();
  // Called instead of Begin. Rejects the client: sends it the reason when it begins a call, or
  // after a second, and closes. REQUIRES: no TLS.
  void Reject(CloseCause cause, const absl::Status& why);
  // Enforces the time limits. GrpcAcceptor calls it about once a second.
  void Tick(absl::Time now);
  // Closes the connection to make room for a new one, unless a call has begun on it meanwhile. A
  // lingering connection is closed at once.
  void Evict();
  // Sends the client the reason and closes the connection, which ends all its calls.
  void CloseWithReason(CloseCause cause, absl::Status why);
  // Closes the connection if it was not handed to gRPC yet. Otherwise gRPC closes it at shutdown.
  void CloseIfOpening();
  void Abort();

  std::uint64_t number() const { return number_; }
  std::int64_t unfinished_bytes() const { return unfinished_bytes_.load(); }

 private:
  enum class State : std::uint8_t { kOpening, kRelaying, kLingering, kClosed };
  using Error = Transport::Error;

  // A buffer that doubles when a read fills it and halves when a read uses little of it.
  class Buffer {
   public:
    boost::asio::mutable_buffer SpaceForRead();
    // Returns the bytes of the last read.
    std::span<const std::byte> LastRead(std::size_t size) const;
    // Keeps the bytes of the last read; the next read appends to them.
    void Keep(std::size_t size) { num_kept_ += size; }
    // Returns the kept bytes followed by the bytes of the last read, and keeps none of them.
    boost::asio::const_buffer TakeAll(std::size_t size);
    void AdaptSize(std::size_t size);

   private:
    static constexpr std::size_t kMinBytes = 1 << 10;
    static constexpr std::size_t kMaxBytes = 64 << 10;
    std::vector<std::byte> bytes_;  // empty until the first read
    std::size_t num_kept_ = 0;
  };

  // Direction from the client to gRPC.
  void ReadClient();
  void OnClientRead(Error error, std::size_t size);
  void OnClientEnd();
  bool ConnectToGrpc();
  void WriteGrpc(boost::asio::const_buffer bytes);
  // Direction to the client: bytes from gRPC and our own frames. ContinueSendingToClient starts the
  // next read from gRPC or write to the client.
  void ContinueSendingToClient();
  void OnGrpcRead(Error error, std::size_t size);
  void WriteClient(boost::asio::const_buffer bytes);

  void ResetLateStreams(const std::vector<std::uint32_t>& late);
  void CloseWithGoAway(CloseCause cause, const absl::Status& why);
  void SendHeldGoAway();
  void Linger();
  void CloseGrpc();
  void Close();
  void UpdateCounts();
  void SetUnfinishedBytes(std::int64_t bytes);

  const GuardedConnectionHost* const host_;
  const std::uint64_t number_;
  std::string name_;  // empty until gRPC has the connection
  std::unique_ptr<Transport> transport_;
  Peer peer_;
  const ConnectionTimes times_;
  State state_ = State::kOpening;
  absl::Time state_since_;
  FrameGuard guard_;
  std::optional<boost::asio::local::stream_protocol::socket> grpc_socket_;  // our end of the pair
  Buffer from_client_, from_grpc_;
  bool is_writing_to_grpc_ = false;
  bool has_client_ended_ = false;  // the client has closed its direction
  bool has_grpc_sent_ = false;
  bool is_busy_ = false;                             // last value reported to the host
  absl::Time write_begun_ = absl::InfiniteFuture();  // start of the pending write to the client
  std::string own_frames_, own_frames_being_written_;
  std::string held_goaway_;  // sent when the rejected client begins a call, or after kLingerTime
  std::atomic<std::int64_t> unfinished_bytes_{0};
};

}  // namespace quire::server
