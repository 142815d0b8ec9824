#pragma once

// How fast the calls of one address may begin: a connection with more than its share is not read
// for a while. gRPC takes calls in the order in which they come, so those of a flood, even if they
// are all refused, would be before everyone else's.
//
// Place:      inside GrpcAcceptor.
// Invariants: calls of one address that wait as long as they are told are never faster than the
//             rate, but for kCallsAtOnce.
// Threads:    the owner's lock.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quire::server {

// What may be used at once and comes back by and by; who uses more has to wait.
class Allowance {
 public:
  Allowance(double now_left, double most, double each_second)
      : left_(now_left), most_(most), each_second_(each_second) {}

  // What of `amount` is not there; the rest is used.
  double UseWhatIsThere(double amount, absl::Time now);
  // Uses all of it; returns the time until it is there.
  absl::Duration Use(double amount, absl::Time now);
  bool IsWhole(absl::Time now) const { return Left(now) >= most_; }

  // That no more is left than there ever is.
  absl::Status CheckIntegrity() const;

 private:
  double Left(absl::Time now) const;

  double left_;  // below zero: of the time to come
  double most_, each_second_;
  absl::Time at_ = absl::InfiniteFuture();  // of the last look; none yet
};

class CallPace {
 public:
  static constexpr double kCallsPerSecond = 2000;  // of an address
  static constexpr double kCallsAtOnce = 256;      // a thousand take gRPC about 0.1 s

  // Of each connection, beside what its address has.
  static Allowance OfConnection() { return Allowance(8, 64, 64); }

  // A connection of `ip` has begun calls beyond its own allowance; it waits for so long before
  // gRPC gets them. An empty `ip` never waits.
  absl::Duration Begin(const std::string& ip, double num_calls, absl::Time now);
  // Forgets addresses that have used nothing for a while.
  void Tick(absl::Time now);

  std::size_t size() const { return by_ip_.size(); }

  // The same of each address.
  absl::Status CheckIntegrity() const;

 private:
  std::map<std::string, Allowance> by_ip_;
};

}  // namespace quire::server
