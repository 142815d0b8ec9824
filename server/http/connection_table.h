#pragma once

// The connections of one HTTP server: how many there may be, in total and of one address, and which
// of them is evicted for a new one.
//
// Place:      inside HttpServer, above its sessions, which are numbers by their coming;
//             ConnectionPlaces has their order.
// Invariants: no more than max_connections have a place, and no more than max_per_address of one
//             address; kReserved more are surplus, and answered only where they ask for a probe.
//             An evicted connection is not counted any more, though it closes a moment later.
// Threads:    MakeRoom, MakeReservedRoom and Add: one at a time; everything else from any.
// Lifetime:   outlives its sessions; holds none of them.

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
  // Surplus connections at once.
  static constexpr std::size_t kReserved = 64;

  // `max_per_address` absent: half of all for an address, all of them for loopback, where a proxy
  // of this machine may stand for many clients.
  ConnectionTable(std::size_t max_connections, std::optional<std::size_t> max_per_address);

  // Makes room for one more connection of `peer`, evicting another one if necessary. Returns "", or
  // the reason why there is no room.
  std::string MakeRoom(const PeerAddress& peer);
  // Evicts a connection although no limit is reached. Returns false if none can be evicted.
  bool EvictOne() { return EvictOneOf(""); }
  // Makes room for a surplus connection; the oldest of them closes. False while too many are about
  // to close.
  bool MakeReservedRoom();

  void Add(std::uint64_t number, const std::shared_ptr<HttpSession>& session,
           const PeerAddress& peer, bool is_surplus);
  void SetPhase(std::uint64_t number, Phase phase);
  void Remove(std::uint64_t number);

  std::size_t size() const;
  std::vector<std::shared_ptr<HttpSession>> Sessions() const;
  // False when `deadline` passes before the last one has gone.
  bool WaitUntilEmpty(absl::Time deadline);

 private:
  std::size_t MaxOf(const PeerAddress& peer) const;
  bool EvictOneOf(const std::string& network);

  const std::size_t max_connections_;
  const std::optional<std::size_t> max_per_address_;

  mutable Mutex mutex_;
  CondVar left_;
  std::map<std::uint64_t, std::weak_ptr<HttpSession>> sessions_ ABSL_GUARDED_BY(mutex_);
  ConnectionPlaces places_ ABSL_GUARDED_BY(mutex_);          // of those but the surplus
  std::set<std::uint64_t> surplus_ ABSL_GUARDED_BY(mutex_);  // but those that are about to close
};

}  // namespace quire::server
