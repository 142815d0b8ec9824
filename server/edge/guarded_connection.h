#pragma once

// One client's connection on its way to gRPC: bytes pass in both directions and are counted.
//
//   client <- TCP or Unix socket, TLS ends here -> GuardedConnection <- socket pair -> gRPC
//
//   handshake -> preface -> waiting -> relaying -> lingering -> closed
//
// Place:      made by GrpcAcceptor for each connection that it accepts.
// Invariants: gRPC gets nothing, and no descriptors are taken for it, before the client begins its
//             first call, or says something else that only gRPC answers (first_frames.h). What is
//             read in one direction is written before more is read, so a slow end slows the other,
//             and a connection holds at most two buffers; they grow with what arrives at once and
//             shrink again. A connection that is refused is told why by a GOAWAY frame, if it
//             stands between two frames of the server.
// Threads:    the sequence of its transport; Begin, TurnAway, Tick, Yield, Refuse, FinishSoon and
//             Abort from any.
// Lifetime:   kept by its pending operations; `host` outlives it and learns of its end.

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/peer_table.h"
#include "server/edge/call_pace.h"
#include "server/edge/first_frames.h"
#include "server/edge/frame_guard.h"
#include "server/net/connection_places.h"
#include "server/net/transport.h"

namespace quire::server {

class GuardedConnection;

// Why a connection was ended by us; a label of quire_grpc_connections_closed_total.
enum class CloseCause : std::uint8_t {
  kTooMany,     // a limit of connections
  kSilent,      // no preface in time, or none when a newer connection needed room
  kIdle,        // without calls when a newer connection needed room
  kNotHttp2,    // the preface is another one
  kFrames,      // a limit of frames, streams, headers or unfinished messages
  kMemory,      // it held the most when server.grpc.memory_bytes was passed
  kTimeout,     // a message was not complete, or what we wrote was not taken, in time
  kNoResource,  // no descriptors
};

// "too_many", "silent", ...
absl::string_view CloseCauseName(CloseCause cause);

// What connections ask of the acceptor that they belong to.
struct GuardedConnectionHost {
  // Gives gRPC one end of a new socket pair; returns the other end and the name under which gRPC
  // knows it. From then on the connection's phase is kBusy until it sets another one.
  struct ToGrpc {
    boost::asio::local::stream_protocol::socket socket;
    std::string name;
  };
  std::function<absl::StatusOr<ToGrpc>(std::uint64_t number, const boost::asio::any_io_executor&,
                                       Peer)>
      connect;
  std::string settings;  // the frame for clients of which gRPC has not heard
  // Of messages that are not complete, over all connections.
  std::function<void(std::int64_t)> add_unfinished_bytes;
  std::function<void(const Peer&, CloseCause, absl::string_view)> count_closed;
  std::function<void(std::uint64_t number, Phase)> set_phase;
  // The connection has begun calls beyond its own allowance; it waits for so long.
  std::function<absl::Duration(std::uint64_t number, double num_calls)> pace;
  // The last call of a connection. `name` is empty if gRPC never heard of it.
  std::function<void(std::uint64_t number, const std::string& name)> left;
};

struct ConnectionTimes {
  absl::Duration preface;      // from the connection to the whole preface, TLS included
  absl::Duration write_stall;  // for the client to take what one read of gRPC gave
  absl::Duration age = absl::InfiniteDuration();  // then the client is asked to go
};

class GuardedConnection final : public std::enable_shared_from_this<GuardedConnection> {
 public:
  // `number` is its name in what it asks of the host.
  GuardedConnection(const GuardedConnectionHost* host, std::uint64_t number,
                    std::unique_ptr<Transport> transport, Peer peer, const FrameLimits& limits,
                    const ConnectionTimes& times);
  ~GuardedConnection() { ForgetUnfinished(); }

  // `since`: it was accepted then.
  void Begin(absl::Time since);
  // Instead of Begin: tells the client why it is not served. REQUIRES: no TLS.
  void TurnAway(CloseCause cause, const absl::Status& why);
  // Ends what has no right to go on; called about once a second.
  void Tick(absl::Time now);
  // Ends the connection to make room for a newer one, unless a call is open by then: it says so.
  void Yield();
  void Refuse(CloseCause cause, absl::Status why);
  // For the end of the process: closes behind what gRPC has sent when gRPC closes its end; at once
  // if gRPC does not know the connection.
  void FinishSoon();
  void Abort();

  std::uint64_t number() const { return departure_.number; }
  std::int64_t unfinished_bytes() const { return unfinished_bytes_.load(); }
  const Peer& peer() const { return peer_; }

 private:
  enum class State : std::uint8_t {
    kHandshake,
    kPreface,
    kWaiting,
    kRelaying,
    kLingering,
    kClosed
  };
  using Error = Transport::Error;

  // What one direction reads into.
  class Buffer {
   public:
    Buffer() : bytes_(kMinBytes) {}
    boost::asio::mutable_buffer ForRead() { return boost::asio::buffer(bytes_); }
    std::span<const std::byte> Filled(std::size_t size) const;
    // What passes of what was read takes its place; its size.
    std::size_t Filter(AcknowledgementFilter* filter, std::size_t size);
    // Twice as large for the next read when this one filled it, half when it used little.
    void Adapt(std::size_t size);

   private:
    static constexpr std::size_t kMinBytes = 1 << 10;
    static constexpr std::size_t kMaxBytes = 64 << 10;
    std::vector<std::byte> bytes_;
  };

  void OnHandshake(Error error);
  void ReadClient();
  void OnClientRead(Error error, std::size_t size);
  absl::Duration WaitForCalls(absl::Time now);
  void PassOn(std::size_t size);
  void OnClientEnd();
  void AnswerFirstFrames();
  void RelayToServer(std::size_t size);
  bool ConnectToGrpc();
  void BeginToRelay();
  void PassOnRest(std::size_t size);
  void WriteServer(boost::asio::const_buffer bytes);
  void ReadServer();
  void OnServerRead(Error error, std::size_t size);
  void OnServerBytes(std::size_t size);
  void WriteClient(boost::asio::const_buffer bytes);
  void OnClientWritten(Error error);
  void RelayToClient(std::size_t size);
  void EndLate(const std::vector<std::uint32_t>& late);
  void Notify(absl::string_view frames);
  void WriteNotice();
  void Part(bool makes_room);
  void PartForAge(absl::Time now);
  void BeginToLinger();
  void NoteCounts();
  // `told`: what the client reads instead of `why`.
  void EndWith(CloseCause cause, const absl::Status& why, absl::string_view told = {});
  void ForgetUnfinished();
  void SayGoodbye();
  void Linger();
  void Close();
  bool Is(State state) const { return state_.load(std::memory_order_acquire) == state; }
  void Set(State state) { state_.store(state, std::memory_order_release); }

  // Declared first, so that it speaks last.
  struct Departure {
    ~Departure() { host->left(number, name); }
    const GuardedConnectionHost* host;
    std::uint64_t number;
    std::string name = {};
  };
  Departure departure_;
  const GuardedConnectionHost* const host_;
  const std::unique_ptr<Transport> transport_;
  Peer peer_;
  const ConnectionTimes times_;
  absl::Time begun_;
  std::atomic<State> state_{State::kHandshake};
  FrameGuard guard_;
  std::optional<boost::asio::local::stream_protocol::socket> server_;  // our end of the pair
  std::optional<ClientFirstFrames> client_first_{std::in_place};       // until gRPC has them
  int num_acknowledged_ = 0;  // SETTINGS of the client, by the guard; 0: it has not answered
  // Of acknowledgements that the other side has had already.
  std::optional<AcknowledgementFilter> client_filter_, server_filter_;
  std::string early_bytes_;  // of the client, while gRPC gets them
  Buffer from_client_, from_server_;
  std::int64_t num_paced_ = 0;  // calls
  Allowance calls_ = CallPace::OfConnection();
  bool begins_many_calls_ = false;  // more than its allowance, when it was last read
  std::optional<boost::asio::steady_timer> pause_;  // before more is read of the client
  bool has_client_ended_ = false;                   // it sends nothing more
  bool has_server_spoken_ = false;
  bool holds_client_bytes_ = false;  // read, and not all with gRPC
  bool is_writing_to_client_ = false;
  absl::Time write_begun_;
  std::size_t held_bytes_ = 0;  // in from_server_, while a notice is being written
  // Frames of ours after which calls go on, between two frames of the server.
  std::string notice_, notice_being_written_;
  Allowance pings_;  // before the first call
  bool parts_when_server_has_spoken_ = false;
  bool is_parting_ = false;  // the client has been asked to make its calls elsewhere
  absl::Time parting_since_;
  std::string goodbye_;  // a GOAWAY with which all ends, behind the write under way
  absl::Time lingering_since_;
  bool is_busy_ = false;
  std::atomic<std::int64_t> unfinished_bytes_{0};
};

}  // namespace quire::server
