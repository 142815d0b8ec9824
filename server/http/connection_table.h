#pragma once

// Tracks the connections of one HTTP server: limits and eviction.
//
// Place:      inside HttpServer. Sessions are numbered in the order in which they were accepted.
//             ConnectionEvictor keeps the eviction order.
// Invariants: at most max_connections connections are counted, and at most max_per_address of one
//             address. An evicted connection is not counted, although it may still be closing. In
//             addition, up to kReserved connections over the limit may be open. These serve only
//             health probes and answer other requests with 503.
// Threads:    one thread at a time calls MakeRoom, MakeReservedRoom and Add. Other methods are
//             thread-safe.
// Lifetime:   outlives its sessions and does not keep them alive.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "server/net/connection_evictor.h"
#include "server/net/peer_address.h"

namespace quire::server {

class HttpSession;

class ConnectionTable {
 public:
  static constexpr std::size_t kReserved = 64;  // maximum number of connections over the limit

  // If `max_per_address` is absent, an address may have half of max_connections (at least one). A
  // loopback address may have all of them, because a local proxy may represent many clients.
  ConnectionTable(std::size_t max_connections, std::optional<std::size_t> max_per_address);

  // Makes room for one more connection of `peer`, evicting another one if necessary. Returns "", or
  // the reason why there is no room.
  std::string MakeRoom(const PeerAddress& peer);
  // Evicts a connection although no limit is reached. Returns false if none can be evicted.
  bool EvictOne() { return EvictOneOf(""); }
  // Makes room for one more connection over the limit. Returns true at once if fewer than kReserved
  // such connections are open. Otherwise closes the oldest one. If max_connections + 2 * kReserved
  // sessions exist, closes none and returns false, because too many are still closing.
  bool MakeReservedRoom();

  void Add(std::uint64_t number, const std::shared_ptr<HttpSession>& session,
           const PeerAddress& peer, bool is_over_limit);
  void SetPhase(std::uint64_t number, Phase phase);
  void Remove(std::uint64_t number);

  std::size_t size() const;
  std::vector<std::shared_ptr<HttpSession>> Sessions() const;
  // Returns false if connections are left at `deadline`.
  bool WaitUntilEmpty(absl::Time deadline);

 private:
  std::size_t MaxOf(const PeerAddress& peer) const;
  bool EvictOneOf(const std::string& network);

  const std::size_t max_connections_;
  const std::optional<std::size_t> max_per_address_;

  mutable Mutex mutex_;
  CondVar removed_;
  std::map<std::uint64_t, std::weak_ptr<HttpSession>> sessions_ ABSL_GUARDED_BY(mutex_);
  ConnectionEvictor evictor_ ABSL_GUARDED_BY(mutex_);  // sessions within the limits
  // Sessions over the limit, except those that MakeReservedRoom has closed.
  std::set<std::uint64_t> over_limit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::server
