#include "server/net/connection_places.h"

#include "base/check.h"

namespace quire::server {
namespace {

// Clients that come at the same time get so long to speak before they give way to each other. Not
// longer: silent connections that flood in would be spared, and clients without a call at the
// moment would go for them.
constexpr absl::Duration kTimeToSpeak = absl::Milliseconds(100);

// A client that makes one call after the other is spared as long as silent ones are there: one that
// begins a call while it is asked to go loses it, if its library does not try again.
constexpr absl::Duration kTimeBetweenCalls = absl::Seconds(1);

// A client that sends keeps its place, one that has stopped in the middle of a request does not.
constexpr absl::Duration kTimeToGoOn = absl::Seconds(1);

}  // namespace

ConnectionPlaces::Order* ConnectionPlaces::OrderOf(Group& group, Phase phase) {
  if (phase == Phase::kSilent) return &group.silent;
  if (phase == Phase::kIdle) return &group.idle;
  return phase == Phase::kStalled ? &group.stalled : nullptr;
}

void ConnectionPlaces::Enter(std::uint64_t number, const Entry& entry) {
  if (entry.phase == Phase::kLeaving) {
    leaving_.emplace(entry.since, number);
    return;
  }
  Group none;
  Group& of_ip = entry.ip.empty() ? none : by_ip_[entry.ip];
  for (Group* const group : {&all_, &of_ip}) {
    if (Order* const order = OrderOf(*group, entry.phase)) order->emplace(entry.since, number);
  }
  ++all_.staying;
  ++of_ip.staying;
  descriptors_ += entry.descriptors;
  if (entry.phase == Phase::kBusy) busy_descriptors_ += entry.descriptors;
}

void ConnectionPlaces::Leave(std::uint64_t number, const Entry& entry) {
  if (entry.phase == Phase::kLeaving) {
    leaving_.erase({entry.since, number});
    return;
  }
  const auto leave = [&](Group& group) {
    --group.staying;
    if (Order* const order = OrderOf(group, entry.phase)) order->erase({entry.since, number});
  };
  leave(all_);
  descriptors_ -= entry.descriptors;
  if (entry.phase == Phase::kBusy) busy_descriptors_ -= entry.descriptors;
  if (entry.ip.empty()) return;
  const auto group = by_ip_.find(entry.ip);
  leave(group->second);
  if (group->second.staying == 0) by_ip_.erase(group);
}

void ConnectionPlaces::Add(std::uint64_t number, const std::string& ip, absl::Time now) {
  const auto [added, is_new] = entries_.try_emplace(number, Entry{.ip = ip, .since = now});
  QUIRE_CHECK(is_new);
  Enter(number, added->second);
}

void ConnectionPlaces::SetPhase(std::uint64_t number, Phase phase, absl::Time now) {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  if (found->second.phase == phase && phase != Phase::kStalled) return;
  Entry next = {.ip = found->second.ip,
                .phase = phase,
                .since = now,
                .descriptors = found->second.descriptors};
  Leave(number, found->second);
  found->second.phase = Phase::kLeaving;
  Enter(number, next);
  found->second = std::move(next);
}

void ConnectionPlaces::SetDescriptors(std::uint64_t number, int descriptors) {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  const int more = descriptors - found->second.descriptors;
  found->second.descriptors = descriptors;
  if (found->second.phase != Phase::kLeaving) descriptors_ += more;
  if (found->second.phase == Phase::kBusy) busy_descriptors_ += more;
}

void ConnectionPlaces::Remove(std::uint64_t number) {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  Leave(number, found->second);
  entries_.erase(found);
}

std::optional<std::uint64_t> ConnectionPlaces::TakeOne(const std::string& ip, absl::Time now,
                                                       Phase* was) {
  const Group* group = &all_;
  if (!ip.empty()) {
    const auto found = by_ip_.find(ip);
    if (found == by_ip_.end()) return std::nullopt;
    group = &found->second;
  }
  return TakeOneOf(*group, kTimeBetweenCalls, now, was);
}

std::optional<std::uint64_t> ConnectionPlaces::TakeOneForCall(absl::Time now) {
  return TakeOneOf(all_, /*idle_time=*/absl::ZeroDuration(), now, /*was=*/nullptr);
}

std::optional<std::uint64_t> ConnectionPlaces::TakeOneOf(const Group& group,
                                                         absl::Duration idle_time, absl::Time now,
                                                         Phase* was) {
  const Order* order = &group.silent;
  const auto is_for = [now](const Order& waiting, absl::Duration time) {
    return !waiting.empty() && now - waiting.begin()->first >= time;
  };
  if (!is_for(group.silent, kTimeToSpeak) &&
      (is_for(group.idle, idle_time) || group.silent.empty())) {
    order = &group.idle;
  }
  if (order->empty()) {
    order = &group.stalled;
    if (order->empty() || now - order->begin()->first < kTimeToGoOn) return std::nullopt;
  }
  const std::uint64_t number = order->begin()->second;
  if (was != nullptr) *was = entries_.at(number).phase;
  SetPhase(number, Phase::kLeaving, now);
  return number;
}

std::optional<std::uint64_t> ConnectionPlaces::TakeLeaving(absl::Time since) {
  if (leaving_.empty() || leaving_.begin()->first > since) return std::nullopt;
  const std::uint64_t number = leaving_.begin()->second;
  Remove(number);
  return number;
}

std::size_t ConnectionPlaces::size(const std::string& ip) const {
  const auto found = by_ip_.find(ip);
  return found == by_ip_.end() ? 0 : found->second.staying;
}

absl::Status ConnectionPlaces::CheckIntegrity() const {
  ConnectionPlaces again;
  for (const auto& [number, entry] : entries_) again.Enter(number, entry);
  const auto are_equal = [](const Group& a, const Group& b) {
    return a.staying == b.staying && a.silent == b.silent && a.idle == b.idle &&
           a.stalled == b.stalled;
  };
  if (descriptors_ != again.descriptors_ || busy_descriptors_ != again.busy_descriptors_)
    return absl::InternalError("descriptors do not add up");
  if (leaving_ != again.leaving_) return absl::InternalError("one that leaves is not in its order");
  if (!are_equal(all_, again.all_)) return absl::InternalError("the places of all are not theirs");
  if (by_ip_.size() != again.by_ip_.size()) return absl::InternalError("an address has no place");
  for (const auto& [ip, group] : by_ip_) {
    const auto found = again.by_ip_.find(ip);
    if (found == again.by_ip_.end() || !are_equal(group, found->second)) {
      return absl::InternalError("the places of an address are not its own");
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::server
