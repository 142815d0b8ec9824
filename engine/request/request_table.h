#pragma once

// All live requests by tenant, principal and id, from Accept until the stream is finished.
//
// Place:      Accept, Cancel, AbortRequests and ListRequests use it. An output worker removes a
//             request after its last output item.
// Invariants: at most one live request per tenant, principal and id; at most `capacity` requests.
// Threads:    thread-safe.
// Lifetime:   owned by the engine.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/accepted_request.h"

namespace quire::engine {

class RequestTable {
 public:
  explicit RequestTable(std::size_t capacity) : capacity_(capacity) {}

  // Raises the capacity to at least this value.
  void Reserve(std::size_t capacity);
  // Returns ALREADY_EXISTS / REQUEST_ID_IN_USE, RESOURCE_EXHAUSTED / QUEUE_FULL at capacity, or the
  // error of `admit`, which acquires everything else that the request needs. No thread sees the
  // request before `admit` has returned OK, so a rejected request cannot be cancelled, aborted or
  // listed. REQUIRES: `admit` does not call this table.
  absl::Status Insert(std::shared_ptr<AcceptedRequest> accepted, absl::Duration retry_delay,
                      absl::FunctionRef<absl::Status()> admit);
  void Remove(const AcceptedRequest& accepted);
  std::shared_ptr<AcceptedRequest> Find(const Caller& caller, absl::string_view id) const;
  // Returns every live request, sorted by accept time, id and tenant.
  std::vector<std::shared_ptr<AcceptedRequest>> All() const;
  // Waits until the table is empty. Returns false if `timeout`, in real time, passes first.
  bool WaitEmpty(absl::Duration timeout) const;

 private:
  using Key = std::tuple<std::string, std::string, std::string>;

  mutable Mutex mutex_;
  std::size_t capacity_ ABSL_GUARDED_BY(mutex_);
  mutable CondVar emptied_;
  std::map<Key, std::shared_ptr<AcceptedRequest>, std::less<>> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::engine
