#pragma once

// Answers whose request has ended and whose reader has not come to their end. They hold memory like
// requests that wait, so the same limits count them, and one of which nothing is read for
// stream.slow_client_timeout ends. The request itself, with its prompt, is not kept for them.
//
// Place:      beside the RequestTable, which forgets a request with its end: the engine thread adds
//             and looks at the time, Accept asks for the counts, a TokenStream says when it is
//             read.
// Invariants: an answer is here from the end of its request until it is read or ended here, once;
//             the counts of the tenants add up to all.
// Threads:    every method from any; no lock is held while a reader is called.
// Lifetime:   the engine's; a reader may outlive it, so streams know it weakly.

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
  static constexpr int kMaxLooks = 16;

  // The request has ended. REQUIRES: the stream is not finished yet, so that no reader has come to
  // its end.
  void Add(const AcceptedRequest& request, absl::Time now);
  // The reader has come to the end, or nothing of that number is here.
  void Remove(std::uint64_t arrival);
  UnreadCounts CountsOf(const std::string& tenant) const;
  // Ends those of which nothing was taken between two looks that lie `timeout` apart, and says how
  // many. So a reader that takes something has between one and two timeouts for the next. Looks at
  // kMaxLooks of them, since a step waits meanwhile; the others' turn is the next call.
  int Expire(absl::Time now, absl::Duration timeout);
  // When Expire has something to look at.
  absl::Time NextExpiry(absl::Duration timeout) const;

 private:
  struct Answer {
    std::shared_ptr<TokenStream> stream;
    std::uint64_t arrival = 0;
    std::string id, tenant;
    absl::Time looked_at;
    std::uint64_t taken = 0;  // events of the stream, by then
  };

  void RemoveLocked(std::list<Answer>::iterator answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::list<Answer> answers_ ABSL_GUARDED_BY(mutex_);  // by looked_at
  std::map<std::uint64_t, std::list<Answer>::iterator> by_arrival_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::int32_t> by_tenant_ ABSL_GUARDED_BY(mutex_);  // above 0
  // The size of answers_: between two of them the engine's steps need no lock to see that none is
  // here.
  std::atomic<std::size_t> num_answers_{0};
};

}  // namespace quire::engine
