#include "server/http/status_history.h"

#include "absl/strings/str_cat.h"

namespace quire::server {

void StatusHistory::Add(absl::Time now, const engine::EngineStats& stats) {
  MutexLock lock(&mutex_);
  if (!samples_.empty() && now < samples_.back().time + kInterval) return;
  samples_.push_back({now, stats});
  if (samples_.size() > kMaxSamples) samples_.pop_front();
}

std::vector<StatusSample> StatusHistory::samples() const {
  MutexLock lock(&mutex_);
  return {samples_.begin(), samples_.end()};
}

absl::Status StatusHistory::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  if (samples_.size() > kMaxSamples) {
    return absl::InternalError(
        absl::StrCat("StatusHistory: ", samples_.size(), " samples, limit ", kMaxSamples));
  }
  for (std::size_t i = 1; i < samples_.size(); ++i) {
    if (samples_[i].time - samples_[i - 1].time < kInterval) {
      return absl::InternalError(
          absl::StrCat("StatusHistory: sample ", i, " is too close to the one before"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::server
