#include "server/net/connection_evictor.h"

#include "base/check.h"

namespace quire::server {
namespace {

// A client that stops sending in the middle of a request may be evicted after this time.
constexpr absl::Duration kMaxStall = absl::Seconds(1);

}  // namespace

ConnectionEvictor::Order* ConnectionEvictor::OrderOf(Group& group, Phase phase) {
  if (phase == Phase::kIdle) return &group.idle;
  return phase == Phase::kAwaitingBytes ? &group.awaiting : nullptr;
}

void ConnectionEvictor::AddToGroups(std::uint64_t number, const Entry& entry) {
  if (entry.phase == Phase::kClosing) return;
  const auto enter = [&](Group& group) {
    ++group.size;
    if (Order* const order = OrderOf(group, entry.phase)) order->emplace(entry.since, number);
  };
  enter(all_);
  if (!entry.ip.empty()) enter(by_ip_[entry.ip]);
}

void ConnectionEvictor::RemoveFromGroups(std::uint64_t number, const Entry& entry) {
  if (entry.phase == Phase::kClosing) return;
  const auto leave = [&](Group& group) {
    --group.size;
    if (Order* const order = OrderOf(group, entry.phase)) order->erase({entry.since, number});
  };
  leave(all_);
  if (entry.ip.empty()) return;
  const auto group = by_ip_.find(entry.ip);
  leave(group->second);
  if (group->second.size == 0) by_ip_.erase(group);
}

void ConnectionEvictor::Add(std::uint64_t number, const std::string& ip, absl::Time now) {
  const auto [added, is_new] = entries_.try_emplace(number, Entry{.ip = ip, .since = now});
  QUIRE_CHECK(is_new);
  AddToGroups(number, added->second);
}

void ConnectionEvictor::SetPhase(std::uint64_t number, Phase phase, absl::Time now) {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.phase == phase && phase != Phase::kAwaitingBytes) return;
  RemoveFromGroups(number, entry);
  entry.phase = phase;
  entry.since = now;
  AddToGroups(number, entry);
}

void ConnectionEvictor::Remove(std::uint64_t number) {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  RemoveFromGroups(number, found->second);
  entries_.erase(found);
}

std::optional<ConnectionEvictor::EvictedConnection> ConnectionEvictor::EvictOne(
    const std::string& ip, absl::Time now) {
  const Group* group = &all_;
  if (!ip.empty()) {
    const auto found = by_ip_.find(ip);
    if (found == by_ip_.end()) return std::nullopt;
    group = &found->second;
  }
  const bool has_idle = !group->idle.empty();
  const Order& order = has_idle ? group->idle : group->awaiting;
  if (order.empty()) return std::nullopt;
  if (!has_idle && now - order.begin()->first < kMaxStall) return std::nullopt;
  const EvictedConnection evicted = {.number = order.begin()->second,
                                     .phase = has_idle ? Phase::kIdle : Phase::kAwaitingBytes};
  SetPhase(evicted.number, Phase::kClosing, now);
  return evicted;
}

std::size_t ConnectionEvictor::size(const std::string& ip) const {
  const auto found = by_ip_.find(ip);
  return found == by_ip_.end() ? 0 : found->second.size;
}

absl::Status ConnectionEvictor::CheckIntegrity() const {
  ConnectionEvictor rebuilt;
  for (const auto& [number, entry] : entries_) rebuilt.AddToGroups(number, entry);
  const auto are_equal = [](const Group& a, const Group& b) {
    return a.size == b.size && a.idle == b.idle && a.awaiting == b.awaiting;
  };
  if (!are_equal(all_, rebuilt.all_)) {
    return absl::InternalError("the orders of all connections do not match their entries");
  }
  if (by_ip_.size() != rebuilt.by_ip_.size()) {
    return absl::InternalError("an address without connections is counted");
  }
  for (const auto& [ip, group] : by_ip_) {
    const auto found = rebuilt.by_ip_.find(ip);
    if (found == rebuilt.by_ip_.end() || !are_equal(group, found->second)) {
      return absl::InternalError("the orders of an address do not match its entries");
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::server
