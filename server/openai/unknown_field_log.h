#pragma once

// Logs the name of each unknown request field once, if openai.unknown_fields is warn.
//
// Place:      one per OpenAI-compatible listener.
// Invariants: clients choose the names, so at most kMaxNames are kept. After the last one, a log
//             line states that later names are not logged.
// Threads:    any.

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace quire::server {

class UnknownFieldLog {
 public:
  static constexpr std::size_t kMaxNames = 256;

  // Logs the field of a request unless its name was logged before or the list is full. Indexes in
  // `path` are not part of the name. Returns true if the name was logged.
  bool Warn(absl::string_view path);

  absl::Status CheckIntegrity() const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_set<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::server
