#include "server/http/connection_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "server/http/http_session.h"

namespace quire::server {

ConnectionTable::ConnectionTable(std::size_t max_connections,
                                 std::optional<std::size_t> max_per_address)
    : max_connections_(max_connections), max_per_address_(max_per_address) {}

std::size_t ConnectionTable::MaxOf(const PeerAddress& peer) const {
  if (max_per_address_) return *max_per_address_;
  return peer.is_loopback ? max_connections_ : std::max<std::size_t>(1, max_connections_ / 2);
}

std::string ConnectionTable::MakeRoom(const PeerAddress& peer) {
  const std::size_t max_of_peer = MaxOf(peer);
  bool is_full = false;
  bool is_peer_full = false;
  {
    MutexLock lock(&mutex_);
    is_full = evictor_.size() >= max_connections_;
    is_peer_full = evictor_.size(peer.network) >= max_of_peer;
  }
  if (is_peer_full) {
    if (EvictOneOf(peer.network)) return "";
    return absl::StrCat(peer.network, " uses all ", max_of_peer,
                        " connections that one address may have");
  }
  if (!is_full || EvictOne()) return "";
  return absl::StrCat("all ", max_connections_, " connections are in use");
}

// Sessions are evicted without the lock, since a session that closes calls the table.
bool ConnectionTable::EvictOneOf(const std::string& network) {
  for (;;) {
    std::shared_ptr<HttpSession> session;
    std::optional<ConnectionEvictor::EvictedConnection> evicted;
    {
      MutexLock lock(&mutex_);
      evicted = evictor_.EvictOne(network, MonotonicNow());
      if (!evicted) return false;
      session = sessions_.at(evicted->number).lock();
    }
    // If Evict fails, the session has received a request meanwhile and will set its phase.
    if (session == nullptr || session->Evict(evicted->phase)) return true;
  }
}

bool ConnectionTable::MakeReservedRoom() {
  std::shared_ptr<HttpSession> oldest;
  {
    MutexLock lock(&mutex_);
    if (over_limit_.size() < kReserved) return true;
    if (sessions_.size() >= max_connections_ + 2 * kReserved) return false;
    oldest = sessions_.at(*over_limit_.begin()).lock();
    over_limit_.erase(over_limit_.begin());
  }
  if (oldest != nullptr) oldest->Abort();
  return true;
}

void ConnectionTable::Add(std::uint64_t number, const std::shared_ptr<HttpSession>& session,
                          const PeerAddress& peer, bool is_over_limit) {
  MutexLock lock(&mutex_);
  sessions_.emplace(number, session);
  if (is_over_limit) {
    over_limit_.insert(number);
  } else {
    evictor_.Add(number, peer.network, MonotonicNow());
  }
}

void ConnectionTable::SetPhase(std::uint64_t number, Phase phase) {
  MutexLock lock(&mutex_);
  evictor_.SetPhase(number, phase, MonotonicNow());
}

void ConnectionTable::Remove(std::uint64_t number) {
  MutexLock lock(&mutex_);
  evictor_.Remove(number);
  over_limit_.erase(number);
  sessions_.erase(number);
  removed_.NotifyAll();
}

std::size_t ConnectionTable::size() const {
  MutexLock lock(&mutex_);
  return sessions_.size();
}

std::vector<std::shared_ptr<HttpSession>> ConnectionTable::Sessions() const {
  std::vector<std::shared_ptr<HttpSession>> sessions;
  MutexLock lock(&mutex_);
  sessions.reserve(sessions_.size());
  for (const auto& [number, weak] : sessions_) {
    if (auto session = weak.lock()) sessions.push_back(std::move(session));
  }
  return sessions;
}

bool ConnectionTable::WaitUntilEmpty(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!sessions_.empty() && MonotonicNow() < deadline) removed_.WaitUntil(&mutex_, deadline);
  return sessions_.empty();
}

}  // namespace quire::server
