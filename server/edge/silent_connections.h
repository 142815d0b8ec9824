#pragma once

// Clients that have connected and sent nothing yet: the first bytes of each are waited for.
//
// A flood of connections that say nothing is accepted and closed beside the threads that serve
// calls, so that no call waits behind it, and one of them takes little memory.
//
// Place:      inside GrpcAcceptor, before GuardedConnection.
// Invariants: each client that was added is handed on with its first bytes, or is closed and told
//             of by `ended`, once. One is handed on at a time, in the order in which they spoke:
//             connections that have calls already have their turn between two new ones.
// Threads:    the one that runs the executor of the sockets.
// Lifetime:   outlives the handlers of that executor.

#include <boost/asio/generic/stream_protocol.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/api/peer_table.h"
#include "server/net/transport.h"

namespace quire::server {

// A connection that was taken.
struct Accepted {
  StreamSocket socket;
  boost::asio::generic::stream_protocol protocol;
  Peer peer = {};
  std::string ip = {};  // of which it counts; empty: of none
  bool speaks_tls = false;
  absl::Time since = absl::InfinitePast();
};

class SilentConnections {
 public:
  // `spoke`: the first bytes are there, unread; the next one waits for GoOn. `ended`: the socket is
  // closed.
  SilentConnections(std::function<void(std::uint64_t number, Accepted)> spoke,
                    std::function<void(std::uint64_t number)> ended)
      : spoke_(std::move(spoke)), ended_(std::move(ended)) {}

  // REQUIRES: the number is larger than those before.
  void Add(std::uint64_t number, Accepted accepted);
  // Null: it has been handed on, or has ended. Valid until one is added, handed on or ended.
  const Accepted* Find(std::uint64_t number) const;
  // The one that came first, if there is any.
  std::optional<std::uint64_t> oldest() const;
  // REQUIRES: Find.
  void End(std::uint64_t number);
  // The one that was handed on is being served.
  void GoOn();
  // How many have spoken and wait to be handed on, those that have ended meanwhile included.
  std::size_t num_waiting() const { return waiting_.size(); }

  // That none waits unless one before it is being handed on.
  absl::Status CheckIntegrity() const;

 private:
  void HandOn();

  const std::function<void(std::uint64_t, Accepted)> spoke_;
  const std::function<void(std::uint64_t)> ended_;
  std::map<std::uint64_t, Accepted> clients_;
  std::deque<std::uint64_t> waiting_;  // that have spoken or gone, the first one first
  bool is_handing_on_ = false;
};

}  // namespace quire::server
