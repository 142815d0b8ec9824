#pragma once

// Which connections take a place, of all and of each address, and which of them gives way to a new
// one: the oldest that has said nothing for a while, else the one without calls for longest if
// that is a second, else the oldest that has not spoken yet, else the one without calls for
// longest, else the one that stands still in a request for longest. To a first call those without
// calls give way before any that may still speak.
//
// Place:      inside GrpcAcceptor and the ConnectionTable of HTTP, which know the connections; here
//             they are numbers.
// Invariants: a connection that stays is counted once among all and once for its address, and lies
//             in at most one order of each; one that leaves lies in that of those alone and is not
//             counted, until it says that it stays after all. Each counts with its descriptors, one
//             at first. Every operation takes time logarithmic in their number.
// Threads:    the owner's lock.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quire::server {

// What a connection is doing, as far as another one may need its place.
enum class Phase : std::uint8_t {
  kSilent,   // its client has not sent the preface, or the first head
  kIdle,     // no call is open
  kBusy,     // a call is open
  kLeaving,  // it ends, or has been asked to
  kStalled,  // its client has sent some of a request, lately or not
};

class ConnectionPlaces {
 public:
  // A connection begins, silent. REQUIRES: the number is new. `ip` empty: of no address.
  void Add(std::uint64_t number, const std::string& ip, absl::Time now);
  // kStalled begins anew each time.
  void SetPhase(std::uint64_t number, Phase phase, absl::Time now);
  void SetDescriptors(std::uint64_t number, int descriptors);
  void Remove(std::uint64_t number);

  // The connection that gives way, which leaves from now on; of one address, or of all if that is
  // empty. Nothing if all that stay are busy. `was`: what it was doing.
  std::optional<std::uint64_t> TakeOne(const std::string& ip, absl::Time now, Phase* was = nullptr);
  // The same, to a first call.
  std::optional<std::uint64_t> TakeOneForCall(absl::Time now);
  // The one that has been leaving for longest, if that began at `since` or before; it is forgotten.
  std::optional<std::uint64_t> TakeLeaving(absl::Time since);

  // Of those that stay.
  std::size_t size() const { return all_.staying; }
  std::size_t size(const std::string& ip) const;
  std::int64_t descriptors() const { return descriptors_; }
  std::int64_t busy_descriptors() const { return busy_descriptors_; }  // of those with calls

  absl::Status CheckIntegrity() const;

 private:
  using Order = std::set<std::pair<absl::Time, std::uint64_t>>;  // since when, number
  struct Group {
    std::size_t staying = 0;
    Order silent, idle, stalled;
  };
  struct Entry {
    std::string ip;
    Phase phase = Phase::kSilent;
    absl::Time since;  // of the phase
    int descriptors = 1;
  };

  static Order* OrderOf(Group& group, Phase phase);
  std::optional<std::uint64_t> TakeOneOf(const Group& group, absl::Duration idle_time,
                                         absl::Time now, Phase* was);
  void Enter(std::uint64_t number, const Entry& entry);
  void Leave(std::uint64_t number, const Entry& entry);

  std::map<std::uint64_t, Entry> entries_;
  Group all_;
  std::int64_t descriptors_ = 0;
  std::int64_t busy_descriptors_ = 0;
  Order leaving_;
  std::map<std::string, Group> by_ip_;  // with at least one that stays
};

}  // namespace quire::server
