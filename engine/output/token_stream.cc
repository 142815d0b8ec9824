#include "engine/output/token_stream.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace quire::engine {
namespace {

template <typename T>
void AppendMoved(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Merge(DeltaEvent& into, DeltaEvent& next) {
  into.text += next.text;
  into.parsed.reasoning_text += next.parsed.reasoning_text;
  AppendMoved(into.parsed.tool_calls, next.parsed.tool_calls);
  if (into.parsed.parse_error.empty()) into.parsed.parse_error = next.parsed.parse_error;
  AppendMoved(into.token_ids, next.token_ids);
  AppendMoved(into.logprobs, next.logprobs);
  into.num_tokens += next.num_tokens;
  if (next.usage.has_value()) into.usage = next.usage;
}

}  // namespace

void TokenStream::Write(OutputEvent event) {
  {
    MutexLock lock(&mutex_);
    if (finish_called_) return;
    DeltaEvent* merge_into = nullptr;
    std::int32_t num_tokens = 0;
    if (auto* delta = std::get_if<DeltaEvent>(&event)) {
      num_tokens = delta->num_tokens;
      // At most one delta per choice is queued, so this loop inspects few events.
      for (auto it = events_.rbegin(); it != events_.rend() && merge_into == nullptr; ++it) {
        auto* waiting = std::get_if<DeltaEvent>(&*it);
        if (waiting != nullptr && waiting->index == delta->index) merge_into = waiting;
      }
      if (merge_into != nullptr) Merge(*merge_into, *delta);
    }
    if (merge_into == nullptr) events_.push_back(std::move(event));
    unread_tokens_.fetch_add(num_tokens, std::memory_order_acq_rel);
    if (!reader_waits_) return;
    reader_waits_ = false;
  }
  Notify();
}

void TokenStream::Finish(absl::Status status, const Usage& usage,
                         absl::Duration time_to_first_token) {
  {
    MutexLock lock(&mutex_);
    if (finish_called_) return;
    finish_called_ = true;
    status_ = std::move(status);
    usage_ = usage;
    time_to_first_token_ = time_to_first_token;
    if (!reader_waits_) return;
    reader_waits_ = false;
  }
  Notify();
}

void TokenStream::Notify() {
  MutexLock lock(&callback_mutex_);
  if (callback_) callback_();
}

std::optional<OutputEvent> TokenStream::Take() {
  std::optional<OutputEvent> event;
  bool drained = false;
  {
    MutexLock lock(&mutex_);
    if (events_.empty()) {
      reader_waits_ = !finish_called_;
      return std::nullopt;
    }
    event = std::move(events_.front());
    events_.pop_front();
    num_taken_.fetch_add(1, std::memory_order_acq_rel);
    if (const auto* delta = std::get_if<DeltaEvent>(&*event)) {
      const std::int32_t before =
          unread_tokens_.fetch_sub(delta->num_tokens, std::memory_order_acq_rel);
      drained = before >= capacity_tokens_ && before - delta->num_tokens < capacity_tokens_;
    }
  }
  if (drained && on_drained_) on_drained_();
  return event;
}

bool TokenStream::finished() {
  bool is_first = false;
  {
    MutexLock lock(&mutex_);
    if (!finish_called_ || !events_.empty()) return false;
    is_first = !std::exchange(is_read_, true);
  }
  if (is_first && on_read_) on_read_();
  return true;
}

bool TokenStream::is_complete() const {
  MutexLock lock(&mutex_);
  return finish_called_;
}

void TokenStream::Abandon(absl::Status status) {
  std::deque<OutputEvent> dropped;
  {
    MutexLock lock(&mutex_);
    if (!finish_called_ || is_read_) return;
    dropped.swap(events_);
    unread_tokens_.store(0, std::memory_order_release);
    if (status_.ok()) status_ = std::move(status);
  }
  MutexLock lock(&abandoned_mutex_);
  if (on_abandoned_) on_abandoned_();
}

void TokenStream::SetAbandonedCallback(std::function<void()> callback) {
  MutexLock lock(&abandoned_mutex_);
  on_abandoned_ = std::move(callback);
}

absl::Status TokenStream::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

absl::Duration TokenStream::time_to_first_token() const {
  MutexLock lock(&mutex_);
  return time_to_first_token_;
}

Usage TokenStream::usage() const {
  MutexLock lock(&mutex_);
  return usage_;
}

void TokenStream::SetReadyCallback(std::function<void()> callback) {
  bool call_now = false;
  {
    MutexLock lock(&callback_mutex_);
    callback_ = std::move(callback);
    if (!callback_) return;
    MutexLock state_lock(&mutex_);
    call_now = !events_.empty() || finish_called_;
    if (call_now) reader_waits_ = false;
  }
  if (call_now) Notify();
}

absl::Status TokenStream::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  std::int32_t tokens = 0;
  for (auto it = events_.begin(); it != events_.end(); ++it) {
    const auto* delta = std::get_if<DeltaEvent>(&*it);
    if (delta == nullptr) continue;
    tokens += delta->num_tokens;
    for (auto later = std::next(it); later != events_.end(); ++later) {
      const auto* other = std::get_if<DeltaEvent>(&*later);
      if (other != nullptr && other->index == delta->index) {
        return absl::InternalError(
            absl::StrCat("two deltas of choice ", delta->index, " are queued in one stream"));
      }
    }
  }
  if (tokens != unread_tokens()) {
    return absl::InternalError(absl::StrCat(
        "the stream has ", tokens, " unread tokens, unread_tokens() is ", unread_tokens()));
  }
  if (reader_waits_ && (!events_.empty() || finish_called_)) {
    return absl::InternalError("the reader waits, but an event or the end is available");
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
