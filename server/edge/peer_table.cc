#include "server/edge/peer_table.h"

#include <utility>

#include "base/check.h"

namespace quire::server {

void PeerTable::Add(const std::string& name, Peer peer) {
  MutexLock lock(&mutex_);
  QUIRE_CHECK(peers_.emplace(name, std::move(peer)).second);
}

void PeerTable::Remove(const std::string& name) {
  MutexLock lock(&mutex_);
  peers_.erase(name);
}

Peer PeerTable::Find(absl::string_view name) const {
  MutexLock lock(&mutex_);
  const auto found = peers_.find(std::string(name));
  return found == peers_.end() ? Peer() : found->second;
}

}  // namespace quire::server
