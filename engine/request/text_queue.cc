#include "engine/request/text_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "engine/request/engine_options.h"

namespace quire::engine {

void TextQueue::SetLimits(std::int32_t max_prompts, std::int64_t max_bytes) {
  MutexLock lock(&mutex_);
  max_prompts_ = max_prompts;
  max_bytes_ = max_bytes;
}

absl::Status TextQueue::Push(std::shared_ptr<AcceptedRequest> request, absl::Duration retry_delay) {
  const std::int64_t bytes = InputBytes(request->request);
  const std::string& tenant = request->request.tenant;
  {
    MutexLock lock(&mutex_);
    if (closed_) {
      return WithReason(absl::UnavailableError("the server is shutting down"),
                        Reason::kServerShutdown, {}, retry_delay);
    }
    const bool is_full = num_prompts_ >= max_prompts_;
    if (is_full || bytes > max_bytes_ - num_bytes_) {
      const std::string limit =
          is_full ? absl::StrCat(max_prompts_, " prompts") : absl::StrCat(max_bytes_, " bytes");
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(num_prompts_, " prompts with ", num_bytes_,
                                                    " bytes wait for tokenization, the limit is ",
                                                    limit, "; this prompt has ", bytes, " bytes")),
          Reason::kQueueFull,
          {{"queued_prompts", absl::StrCat(num_prompts_)},
           {"queued_bytes", absl::StrCat(num_bytes_)},
           {"limit", is_full ? absl::StrCat(max_prompts_) : absl::StrCat(max_bytes_)}},
          retry_delay);
    }
    std::deque<std::shared_ptr<AcceptedRequest>>& prompts = by_tenant_[tenant];
    prompts.push_back(std::move(request));
    if (prompts.size() == 1) turns_.push_back(tenant);
    ++num_prompts_;
    num_bytes_ += bytes;
  }
  not_empty_.NotifyOne();
  return absl::OkStatus();
}

std::shared_ptr<AcceptedRequest> TextQueue::Pop() {
  MutexLock lock(&mutex_);
  while (turns_.empty()) {
    if (closed_) return nullptr;
    not_empty_.Wait(&mutex_);
  }
  const auto of_tenant = by_tenant_.find(turns_.front());
  std::shared_ptr<AcceptedRequest> request = std::move(of_tenant->second.front());
  of_tenant->second.pop_front();
  if (of_tenant->second.empty()) {
    by_tenant_.erase(of_tenant);
    turns_.pop_front();
  } else {
    turns_.splice(turns_.end(), turns_, turns_.begin());
  }
  --num_prompts_;
  num_bytes_ -= InputBytes(request->request);
  return request;
}

void TextQueue::Close() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  not_empty_.NotifyAll();
}

}  // namespace quire::engine
