#pragma once

// All live requests by their tenant, who sent them, and their id: from Accept until the stream is
// finished.
//
// Place:      asked by Accept, Cancel, AbortRequests and ListRequests; the last output item
//             removes.
// Invariants: at most one live request per tenant, principal and id; at most `capacity` of them.
// Threads:    every method from any thread.
// Lifetime:   the engine's.

#include <cstdint>
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

  // The capacity becomes at least this.
  void Reserve(std::size_t capacity);
  // ALREADY_EXISTS / REQUEST_ID_IN_USE, RESOURCE_EXHAUSTED / QUEUE_FULL at capacity, or what
  // `admit` says, which takes everything else that the request needs. No thread sees the request
  // before `admit` has said OK: one that is refused cannot be cancelled, aborted or listed.
  // REQUIRES: `admit` does not call this table.
  absl::Status Insert(std::shared_ptr<AcceptedRequest> accepted, absl::Duration retry_delay,
                      absl::FunctionRef<absl::Status()> admit);
  void Remove(const AcceptedRequest& accepted);
  std::shared_ptr<AcceptedRequest> Find(const Caller& caller, absl::string_view id) const;
  std::vector<std::shared_ptr<AcceptedRequest>> All() const;  // by accept time, id, tenant
  // Waits until the table is empty; false when `timeout` (of the system's clock) passes first.
  bool WaitEmpty(absl::Duration timeout) const;

 private:
  using Key = std::tuple<std::string, std::string, std::string>;

  static Key KeyOf(const Caller& caller, absl::string_view id) {
    return {caller.tenant, caller.principal, std::string(id)};
  }

  mutable Mutex mutex_;
  std::size_t capacity_ ABSL_GUARDED_BY(mutex_);
  mutable CondVar emptied_;
  std::map<Key, std::shared_ptr<AcceptedRequest>, std::less<>> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::engine
