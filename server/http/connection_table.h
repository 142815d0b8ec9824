#pragma once

// The connections of one HTTP server: limits of their number, and eviction.
//
// Place:      inside HttpServer. Sessions are numbered in the order in which they were accepted.
//             ConnectionPlaces has the order of eviction.
// Invariants: at most max_connections count, and at most max_per_address of one address. kReserved
//             more are surplus, and only their requests for probes are answered. An evicted
//             connection does not count any more, although it is still closing.
// Threads:    MakeRoom, MakeReservedRoom and Add from one at a time, the others from any.
// Lifetime:   outlives its sessions and does not keep them alive.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "server/net/connection_places.h"
#include "server/net/peer_address.h"

namespace quire::server {

class HttpSession;

class ConnectionTable {
 public:
  static constexpr std::size_t kReserved = 64;  // surplus connections

  // `max_per_address` absent: half of max_connections, or all for loopback, because a proxy on this
  // machine may represent many clients.
  ConnectionTable(std::size_t max_connections, std::optional<std::size_t> max_per_address);

  // Makes room for one more connection of `peer`, evicting another one if necessary. Returns "", or
  // the reason why there is no room.
  std::string MakeRoom(const PeerAddress& peer);
  // Evicts a connection although no limit is reached. Returns false if none can be evicted.
  bool EvictOne() { return EvictOneOf(""); }
  // Makes room for a surplus connection, closing the oldest one if necessary. Returns false if too
  // many are closing already.
  bool MakeReservedRoom();

  void Add(std::uint64_t number, const std::shared_ptr<HttpSession>& session,
           const PeerAddress& peer, bool is_surplus);
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
  ConnectionPlaces places_ ABSL_GUARDED_BY(mutex_);          // the sessions that count
  std::set<std::uint64_t> surplus_ ABSL_GUARDED_BY(mutex_);  // those that are not closing
};

}  // namespace quire::server
