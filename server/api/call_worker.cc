#include "server/api/call_worker.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/thread_name.h"

namespace quire::server {

CallWorker::CallWorker(int num_threads, std::size_t capacity) : jobs_(capacity) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] {
      SetThreadName("calls");
      while (std::optional<std::function<void()>> job = jobs_.Pop()) (*job)();
    });
  }
}

CallWorker::~CallWorker() {
  jobs_.Close();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status CallWorker::Run(std::function<void()> job) {
  if (jobs_.TryPush(std::move(job))) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat(jobs_.capacity(), " calls of this kind are already waiting")),
                    Reason::kQueueFull, {{"limit", absl::StrCat(jobs_.capacity())}},
                    absl::Seconds(1));
}

}  // namespace quire::server
