#pragma once

// Tracks the connections of one GrpcAcceptor: limits, eviction and lingering.
//
// Place:      inside GrpcAcceptor; ConnectionEvictor keeps the eviction order.
// Invariants: MakeRoom admits a connection only while fewer than max_connections are counted, and
//             fewer than max_per_address from its address. Connections added without a network are
//             not counted. An evicted connection is not counted, although it may still be closing.
//             If the client begins a call before the connection closes, the connection stays open
//             and is counted again. At most kMaxLingering connections that get a GOAWAY frame
//             linger.
// Threads:    one thread at a time calls MakeRoom and Add. Other methods are thread-safe.
// Lifetime:   outlives its connections and does not keep them alive.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "server/edge/guarded_connection.h"
#include "server/net/connection_evictor.h"

namespace quire::server {

class GrpcConnections {
 public:
  static constexpr int kMaxLingering = 64;

  GrpcConnections(std::int32_t max_connections, std::int32_t max_per_address)
      : max_connections_(max_connections), max_per_address_(max_per_address) {}

  // Makes room for one more connection of `network` (peer_address.h; empty for a Unix socket),
  // evicting another one if necessary. Returns RESOURCE_EXHAUSTED with the limit if a limit is
  // reached and no connection is idle.
  absl::Status MakeRoom(const std::string& network);
  // Evicts an idle connection of `network`. Here an empty `network` means any network. Returns
  // false if none is idle.
  bool EvictOne(const std::string& network);

  // If `network` is nullopt, the connection does not count against the limits and is never evicted.
  void Add(const std::shared_ptr<GuardedConnection>& connection,
           const std::optional<std::string>& network);
  void SetPhase(std::uint64_t number, Phase phase);
  // Marks a connection that gets a GOAWAY frame as lingering until Remove. Returns false if
  // kMaxLingering connections linger already.
  bool TryLinger(std::uint64_t number);
  void Remove(std::uint64_t number);

  // Returns up to `max_count` connections whose numbers are at least `first`, in numerical order.
  std::vector<std::shared_ptr<GuardedConnection>> List(
      std::uint64_t first = 0,
      std::size_t max_count = std::numeric_limits<std::size_t>::max()) const;
  // Waits until all connections are removed, or until `deadline`.
  void WaitUntilEmpty(absl::Time deadline);

  absl::Status CheckIntegrity() const;

 private:
  struct Entry {
    std::weak_ptr<GuardedConnection> connection;
    bool is_lingering = false;
  };

  const std::int64_t max_connections_;
  const std::int64_t max_per_address_;

  mutable Mutex mutex_;
  CondVar removed_;
  std::map<std::uint64_t, Entry> connections_ ABSL_GUARDED_BY(mutex_);  // keyed by number
  ConnectionEvictor evictor_ ABSL_GUARDED_BY(mutex_);  // connections with a network
  int num_lingering_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::server
