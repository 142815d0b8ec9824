#include "engine/scheduler/waiting_requests.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/scheduler/prompt_rank.h"

namespace quire::engine {

void WaitingRequests::SetAgingInterval(absl::Duration interval) {
  if (interval == aging_interval_) return;
  std::vector<ScheduledRequest*> all;
  for (const auto& [request, entry] : places_) all.push_back(entry.place.request);
  for (const ScheduledRequest* request : all) Remove(request);
  aging_interval_ = interval;
  for (ScheduledRequest* request : all) Add(request);
}

void WaitingRequests::SetTimer(Entry& entry, std::int64_t intervals) {
  if (!has_aging()) return;
  ScheduledRequest* const request = entry.place.request;
  entry.ages_at = request->request.accept_time + intervals * aging_interval_;
  timers_.insert({entry.ages_at, request->arrival, request});
}

void WaitingRequests::Add(ScheduledRequest* request) {
  const auto [added, is_new] = places_.try_emplace(request);
  QUIRE_CHECK(is_new && request->tenant_requests != nullptr);
  Entry& entry = added->second;
  entry.tenant = request->tenant_requests;
  entry.place = {.level = request->request.priority,
                 .deadline = request->request.deadline,
                 .length_class = has_aging() ? LengthClass(request->uncached_tokens) : 0,
                 .arrival = request->arrival,
                 .request = request};
  by_tenant_[entry.tenant].insert(entry.place);
  SetTimer(entry, 1);
}

bool WaitingRequests::Remove(const ScheduledRequest* request) {
  const auto found = places_.find(request);
  if (found == places_.end()) return false;
  const Entry& entry = found->second;
  const auto tenant = by_tenant_.find(entry.tenant);
  tenant->second.erase(entry.place);
  if (tenant->second.empty()) by_tenant_.erase(tenant);
  if (has_aging()) timers_.erase({entry.ages_at, entry.place.arrival, entry.place.request});
  places_.erase(found);
  return true;
}

void WaitingRequests::Age(ScheduledRequest* request, absl::Time now) {
  Entry& entry = places_.at(request);
  absl::Duration rest;
  const std::int64_t aged =
      absl::IDivDuration(now - request->request.accept_time, aging_interval_, &rest);
  std::set<Place>& places = by_tenant_.at(entry.tenant);
  places.erase(entry.place);
  entry.place.level = request->request.priority - aged;
  places.insert(entry.place);
  SetTimer(entry, aged + 1);
}

ScheduledRequest* WaitingRequests::Head(absl::Time now) {
  while (!timers_.empty() && timers_.begin()->time <= now) {
    ScheduledRequest* const request = timers_.begin()->request;
    timers_.erase(timers_.begin());
    Age(request, now);
  }
  const TenantRequests* first = nullptr;
  ScheduledRequest* best = nullptr;
  for (const auto& [tenant, places] : by_tenant_) {
    if (!tenant->may_start() || (first != nullptr && first->order() < tenant->order())) continue;
    first = tenant;
    best = places.begin()->request;
  }
  return best;
}

absl::Status WaitingRequests::CheckIntegrity() const {
  std::size_t placed = 0;
  for (const auto& [tenant, places] : by_tenant_) {
    if (places.empty()) return absl::InternalError("a tenant without waiting requests is kept");
    placed += places.size();
  }
  if (placed != places_.size() || timers_.size() != (has_aging() ? placed : 0)) {
    return absl::InternalError(absl::StrCat(places_.size(), " requests wait, ", placed,
                                            " are in order, ", timers_.size(), " have timers"));
  }
  for (const auto& [request, entry] : places_) {
    const auto tenant = by_tenant_.find(entry.tenant);
    const bool is_placed = tenant != by_tenant_.end() && tenant->second.contains(entry.place);
    const bool is_timed =
        !has_aging() || timers_.contains({entry.ages_at, entry.place.arrival, entry.place.request});
    if (is_placed && is_timed && entry.place.request == request) continue;
    return absl::InternalError(
        absl::StrCat("waiting request ", entry.place.arrival, " is not at the place of its entry"));
  }
  return absl::OkStatus();
}

bool WaitingRequests::AnyMayStart() const {
  return std::ranges::any_of(by_tenant_,
                             [](const auto& entry) { return entry.first->may_start(); });
}

}  // namespace quire::engine
