#pragma once

// The answers that clients have not read to the end although their requests have ended. They count
// towards the limits of waiting requests, because they use memory. An answer is dropped if its
// client reads nothing of it for stream.slow_client_timeout. The request itself, with its prompt,
// is not kept.
//
// Place:      complements RequestTable, which drops a request at its end. The engine thread adds
//             answers and expires them, Accept reads the counts, and a TokenStream reports when it
//             has been read.
// Invariants: an answer is here from the end of its request until it is read or expires. The counts
//             of the tenants sum to the total.
// Threads:    thread-safe; no lock is held while a reader is called.
// Lifetime:   owned by the engine. A reader may outlive it, so streams have a weak reference.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/accepted_request.h"
#include "engine/request/admission_limiter.h"

namespace quire::engine {

class UnreadAnswers {
 public:
  static constexpr int kMaxChecks = 16;

  // Adds the answer of a request that has ended. REQUIRES: the stream is not finished yet, so the
  // reader cannot have read it to the end.
  void Add(const AcceptedRequest& request, absl::Time now);
  // Removes the answer when its reader has read everything. Does nothing if the answer is not here.
  void Remove(std::uint64_t arrival);
  UnreadCounts CountsOf(const std::string& tenant) const;
  // Ends each answer from which no event was taken between two checks that are at least `timeout`
  // apart. Returns the number of such answers. A reader that takes an event thus has between one
  // and two timeouts to take the next one. Each call checks at most kMaxChecks answers, because a
  // step waits for this call. The next call continues.
  int Expire(absl::Time now, absl::Duration timeout);
  // Returns the time at which Expire next has something to check.
  absl::Time NextExpiry(absl::Duration timeout) const;

 private:
  struct Answer {
    std::shared_ptr<TokenStream> stream;
    std::uint64_t arrival = 0;
    std::string id, tenant;
    absl::Time checked_at;
    std::uint64_t taken = 0;  // num_taken() of the stream at checked_at
  };

  void RemoveLocked(std::list<Answer>::iterator answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::list<Answer> answers_ ABSL_GUARDED_BY(mutex_);  // by checked_at
  std::map<std::uint64_t, std::list<Answer>::iterator> by_arrival_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::int32_t> by_tenant_ ABSL_GUARDED_BY(mutex_);  // only counts above 0
  // The size of answers_. Expire reads it without a lock and returns at once if there are no
  // answers.
  std::atomic<std::size_t> num_answers_{0};
};

}  // namespace quire::engine
