#include "server/edge/grpc_connections.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace quire::server {

absl::Status GrpcConnections::MakeRoom(const std::string& network) {
  const auto size = [this](const std::string& of) {
    MutexLock lock(&mutex_);
    return static_cast<std::int64_t>(of.empty() ? evictor_.size() : evictor_.size(of));
  };
  // Several evictions may be needed, because an evicted connection stays open if it has begun a
  // call.
  while (!network.empty() && size(network) >= max_per_address_) {
    if (EvictOne(network)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(size(network), " connections of this address are open, ",
                     "server.grpc.max_connections_per_address is ", max_per_address_));
  }
  while (size("") >= max_connections_) {
    if (EvictOne(/*network=*/"")) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(size(""), " connections are open, the limit is ", max_connections_,
                     " (server.grpc.max_connections, or less if there are too few descriptors)"));
  }
  return absl::OkStatus();
}

bool GrpcConnections::EvictOne(const std::string& network) {
  std::shared_ptr<GuardedConnection> connection;
  {
    MutexLock lock(&mutex_);
    const auto evicted = evictor_.EvictOne(network, MonotonicNow());
    if (!evicted) return false;
    connection = connections_.at(evicted->number).connection.lock();
  }
  if (connection != nullptr) connection->Evict();  // null: its destructor is running
  return true;
}

void GrpcConnections::Add(const std::shared_ptr<GuardedConnection>& connection,
                          const std::optional<std::string>& network) {
  MutexLock lock(&mutex_);
  connections_.emplace(connection->number(), Entry{.connection = connection});
  if (network) evictor_.Add(connection->number(), *network, MonotonicNow());
}

void GrpcConnections::SetPhase(std::uint64_t number, Phase phase) {
  MutexLock lock(&mutex_);
  evictor_.SetPhase(number, phase, MonotonicNow());
}

bool GrpcConnections::TryLinger(std::uint64_t number) {
  MutexLock lock(&mutex_);
  if (num_lingering_ >= kMaxLingering) return false;
  connections_.at(number).is_lingering = true;
  ++num_lingering_;
  return true;
}

void GrpcConnections::Remove(std::uint64_t number) {
  MutexLock lock(&mutex_);
  evictor_.Remove(number);
  const auto found = connections_.find(number);
  num_lingering_ -= found->second.is_lingering ? 1 : 0;
  connections_.erase(found);
  removed_.NotifyAll();
}

std::vector<std::shared_ptr<GuardedConnection>> GrpcConnections::List(std::uint64_t first,
                                                                      std::size_t max_count) const {
  std::vector<std::shared_ptr<GuardedConnection>> connections;
  MutexLock lock(&mutex_);
  for (auto it = connections_.lower_bound(first);
       it != connections_.end() && connections.size() < max_count; ++it) {
    if (auto strong = it->second.connection.lock()) connections.push_back(std::move(strong));
  }
  return connections;
}

void GrpcConnections::WaitUntilEmpty(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!connections_.empty() && MonotonicNow() < deadline) removed_.WaitUntil(&mutex_, deadline);
}

absl::Status GrpcConnections::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  int num_lingering = 0;
  for (const auto& [number, entry] : connections_) num_lingering += entry.is_lingering ? 1 : 0;
  if (num_lingering != num_lingering_ || num_lingering > kMaxLingering) {
    return absl::InternalError("the number of lingering connections is wrong");
  }
  if (evictor_.size() > connections_.size()) {
    return absl::InternalError("more connections are counted than exist");
  }
  return evictor_.CheckIntegrity();
}

}  // namespace quire::server
