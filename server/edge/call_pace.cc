#include "server/edge/call_pace.h"

#include <algorithm>

#include "base/status.h"

namespace quire::server {

double Allowance::Left(absl::Time now) const {
  const absl::Duration passed = std::max(now - at_, absl::ZeroDuration());
  return std::min(most_, left_ + absl::ToDoubleSeconds(passed) * each_second_);
}

double Allowance::UseWhatIsThere(double amount, absl::Time now) {
  left_ = Left(now);
  at_ = now;
  const double used = std::min(amount, left_);
  left_ -= used;
  return amount - used;
}

absl::Duration Allowance::Use(double amount, absl::Time now) {
  left_ = Left(now) - amount;
  at_ = now;
  return left_ >= 0 ? absl::ZeroDuration() : absl::Seconds(-left_ / each_second_);
}

absl::Status Allowance::CheckIntegrity() const {
  if (left_ <= most_ && each_second_ > 0) return absl::OkStatus();
  return absl::InternalError("more is left than there ever is");
}

absl::Duration CallPace::Begin(const std::string& ip, double num_calls, absl::Time now) {
  if (ip.empty()) return absl::ZeroDuration();
  return by_ip_.try_emplace(ip, kCallsAtOnce, kCallsAtOnce, kCallsPerSecond)
      .first->second.Use(num_calls, now);
}

void CallPace::Tick(absl::Time now) {
  std::erase_if(by_ip_, [now](const auto& entry) { return entry.second.IsWhole(now); });
}

absl::Status CallPace::CheckIntegrity() const {
  for (const auto& [ip, allowance] : by_ip_) {
    if (ip.empty()) return absl::InternalError("no address has an allowance");
    QUIRE_RETURN_IF_ERROR(allowance.CheckIntegrity());
  }
  return absl::OkStatus();
}

}  // namespace quire::server
