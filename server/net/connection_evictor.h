#pragma once

// Counts the open connections of a listener, in total and per address, and chooses the connection
// that is evicted for a new one. It is the connection that has been idle for longest. If none is
// idle, it is the connection that has waited longest for the missing bytes of a request.
//
// Place:      inside GrpcAcceptor and the ConnectionTable of HTTP, which own the connections. This
//             class identifies connections by numbers.
// Invariants: a connection that is not closing is counted once in total and once for its address. A
//             connection that is idle or awaits bytes is in the eviction order of all connections
//             and in the eviction order of its address. A closing connection is not counted, unless
//             it changes to another phase again. Every operation takes time logarithmic in the
//             number of connections.
// Threads:    one thread at a time, under the owner's lock.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quire::server {

// The activity of a connection, as far as eviction depends on it. A new HTTP connection is idle
// until the head of its first request is complete. A new gRPC connection is idle during TLS and the
// HTTP/2 preface, and until its first call.
enum class Phase : std::uint8_t {
  kIdle,           // no request is open
  kBusy,           // a request is being served
  kAwaitingBytes,  // part of a request has arrived
  kClosing,        // the connection is closing, or was chosen for eviction
};

class ConnectionEvictor {
 public:
  struct EvictedConnection {
    std::uint64_t number;
    Phase phase;  // phase before the eviction
  };

  // Adds an idle connection. If `ip` is empty, the connection counts only in total. REQUIRES: the
  // number is new.
  void Add(std::uint64_t number, const std::string& ip, absl::Time now);
  // Setting kAwaitingBytes again restarts the time of the phase. Ignores unknown numbers.
  void SetPhase(std::uint64_t number, Phase phase, absl::Time now);
  void Remove(std::uint64_t number);

  // Chooses a connection of the address `ip`, or of any address if `ip` is empty, and sets its
  // phase to kClosing. Returns nullopt if no connection is idle and none has awaited bytes for a
  // second.
  std::optional<EvictedConnection> EvictOne(const std::string& ip, absl::Time now);

  // The number of connections that are not closing, in total or of one address.
  std::size_t size() const { return all_.size; }
  std::size_t size(const std::string& ip) const;

  absl::Status CheckIntegrity() const;

 private:
  using Order = std::set<std::pair<absl::Time, std::uint64_t>>;  // start of the phase, number
  struct Group {
    std::size_t size = 0;
    Order idle, awaiting;
  };
  struct Entry {
    std::string ip;
    Phase phase = Phase::kIdle;
    absl::Time since;  // start of the phase
  };

  static Order* OrderOf(Group& group, Phase phase);
  void AddToGroups(std::uint64_t number, const Entry& entry);
  void RemoveFromGroups(std::uint64_t number, const Entry& entry);

  std::map<std::uint64_t, Entry> entries_;
  Group all_;
  std::map<std::string, Group> by_ip_;  // addresses with at least one connection
};

}  // namespace quire::server
