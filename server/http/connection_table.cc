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
    is_full = num_placed_ >= max_connections_;
    const auto placed = placed_of_.find(peer.network);
    is_peer_full = placed != placed_of_.end() && placed->second >= max_of_peer;
  }
  if (is_peer_full) {
    if (CloseOneOf(peer.network)) return "";
    return absl::StrCat(peer.network, " uses all ", max_of_peer,
                        " connections that one address may have");
  }
  if (!is_full || CloseOne()) return "";
  return absl::StrCat("all ", max_connections_, " connections are in use");
}

bool ConnectionTable::CloseOneOf(absl::string_view network) {
  const Sorted placed = Find([&](const Entry& entry) {
    return entry.is_counted && !entry.is_surplus && (network.empty() || entry.network == network);
  });
  for (const Awaited awaited : {Awaited::kFirstHead, Awaited::kNextRequest, Awaited::kRest}) {
    for (const auto& session : placed) {
      if (!session->Yield(awaited)) continue;
      Discount(session.get());
      return true;
    }
  }
  return false;
}

bool ConnectionTable::MakeReservedRoom() {
  {
    MutexLock lock(&mutex_);
    if (num_surplus_ < kReserved) return true;
    if (entries_.size() >= max_connections_ + 2 * kReserved) return false;
  }
  const Sorted surplus =
      Find([](const Entry& entry) { return entry.is_counted && entry.is_surplus; });
  if (surplus.empty()) return true;  // all have ended meanwhile
  surplus.front()->Abort();
  Discount(surplus.front().get());
  return true;
}

void ConnectionTable::Add(const std::shared_ptr<HttpSession>& session, const PeerAddress& peer,
                          bool is_surplus) {
  MutexLock lock(&mutex_);
  // What may find no memory comes first, and counts last.
  Entry entry{.number = next_number_++,
              .session = session,
              .network = peer.network,
              .is_surplus = is_surplus};
  const auto placed = is_surplus ? placed_of_.end() : placed_of_.try_emplace(peer.network, 0).first;
  entries_.emplace(session.get(), std::move(entry));
  if (is_surplus) {
    ++num_surplus_;
  } else {
    ++placed->second;
    ++num_placed_;
  }
}

void ConnectionTable::Remove(const HttpSession* session) {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(session);
  if (found == entries_.end()) return;
  Discount(found->second);
  entries_.erase(found);
  left_.NotifyAll();
}

void ConnectionTable::Discount(const HttpSession* session) {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(session);
  if (found != entries_.end()) Discount(found->second);
}

void ConnectionTable::Discount(Entry& entry) {
  if (!std::exchange(entry.is_counted, false)) return;
  if (entry.is_surplus) {
    --num_surplus_;
    return;
  }
  --num_placed_;
  const auto placed = placed_of_.find(entry.network);
  if (--placed->second == 0) placed_of_.erase(placed);
}

std::size_t ConnectionTable::size() const {
  MutexLock lock(&mutex_);
  return entries_.size();
}

std::vector<std::shared_ptr<HttpSession>> ConnectionTable::Sessions() const {
  return Find([](const Entry&) { return true; });
}

// Without the lock where they end: a session that ends speaks to the table.
template <typename Matches>
ConnectionTable::Sorted ConnectionTable::Find(Matches matches) const {
  std::vector<std::pair<std::uint64_t, std::shared_ptr<HttpSession>>> found;
  {
    MutexLock lock(&mutex_);
    found.reserve(entries_.size());
    for (const auto& [key, entry] : entries_) {
      if (!matches(entry)) continue;
      if (auto session = entry.session.lock()) found.emplace_back(entry.number, std::move(session));
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  Sorted sorted;
  sorted.reserve(found.size());
  for (auto& [number, session] : found) sorted.push_back(std::move(session));
  return sorted;
}

bool ConnectionTable::WaitUntilEmpty(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!entries_.empty() && MonotonicNow() < deadline) left_.WaitUntil(&mutex_, deadline);
  return entries_.empty();
}

}  // namespace quire::server
