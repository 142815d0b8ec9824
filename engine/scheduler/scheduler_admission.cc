// Who is admitted, in what order, and with which rows and pages.

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {
namespace {

cache::PrefixMatch WithoutPartial(cache::PrefixMatch match) {
  match.num_tokens -= match.partial_rows;
  match.partial_rows = 0;
  match.partial_sources.clear();
  return match;
}

}  // namespace

void Scheduler::Add(ScheduledRequest* request) {
  Sequence& first = request->first();
  const std::uint32_t cached = MatchPrefix(first).num_tokens;
  request->uncached_tokens = first.total() - cached;
  CountWaiting(*request, 1);
  const std::string& tenant = request->request.tenant;
  const auto [entry, is_new] = tenants_.try_emplace(tenant);
  if (is_new) {
    entry->second.max_running = MaxRunning(tenant);
    entry->second.turn = next_turn_++;
  }
  for (const auto& sequence : request->sequences) Enter(*sequence, SequenceState::kQueued);
  request->of_tenant = &entry->second;
  ++request->of_tenant->live;
  waiting_.Add(request);
  RefreshState(*request);
}

// `by` 1: it begins to wait, -1: it does not any more.
void Scheduler::CountWaiting(const ScheduledRequest& request, std::int64_t by) {
  const std::int64_t choices = request.choices();
  waiting_uncached_tokens_ += by * request.uncached_tokens;
  waiting_choices_ += by * choices;
  waiting_output_tokens_ += by * choices * request.prompt.max_tokens;
}

std::int32_t Scheduler::MaxRunning(const std::string& tenant) const {
  return options_.tenants.LimitsOf(tenant).max_running_requests.value_or(
      std::numeric_limits<std::int32_t>::max());
}

// Admits requests, in their order, while they come before the prompt `next`, or all if that is
// null. False when no further one can be admitted in this step.
bool Scheduler::AdmitBefore(const Sequence* next, absl::Time now) {
  // Under overload this is the rule; a sequence runs then, so no request is stuck.
  while (HasRows(1) && budget_ > 0 && prompt_budget_ > 0) {
    const auto preempted =
        std::ranges::find_if(preempted_, [](const Sequence* sequence) { return !sequence->skips; });
    const bool is_new = preempted == preempted_.end();
    ScheduledRequest* const request = is_new ? waiting_.Best(now) : (*preempted)->request;
    if (request == nullptr) return false;
    const PromptRank candidate =
        is_new ? PromptRank{waiting_.LevelOf(request), LengthClass(request->uncached_tokens)}
               : RankOf(**preempted);
    if (next != nullptr && !ComesBefore(*request, candidate, *next)) return true;
    // No request overtakes it: a worker that is behind has that room again within a few steps.
    if (is_new && !IsOutputReady(*request)) return false;
    const Admission admission = TryAdmit(is_new ? request->first() : **preempted);
    if (admission != Admission::kAdmitted) {
      if (admission == Admission::kBlocked) NoteBlocked(request);
      return false;
    }
    if (!is_new) continue;
    waiting_.Remove(request);
    CountWaiting(*request, -1);
    plan_.started.push_back(request);
  }
  return false;
}

// Within the limit as it is now, below which it may have been lowered. A request with more choices
// was accepted under an earlier one, and runs when it has the rows for itself.
bool Scheduler::HasRows(std::size_t rows) const {
  const std::size_t used = num_rows_ - free_rows_.size();
  return rows <= free_rows_.size() &&
         (used == 0 || used + rows <= static_cast<std::size_t>(options_.max_running_sequences));
}

bool Scheduler::IsStillBlocked(const Sequence& sequence) const {
  return blocked_.sequence == &sequence && blocked_.cache_changes == cache_->num_changes() &&
         fork_pages_ >= blocked_.fork_pages &&
         ChunkTokens(blocked_.matched_tokens, sequence.total(), sequence.total()) >= blocked_.chunk;
}

// With every page at hand and no sequence running, waiting longer changes nothing.
void Scheduler::NoteBlocked(ScheduledRequest* request) {
  if (running_.empty() && cache_->available_pages() == cache_->usable_pages()) stuck_ = request;
}

// A prompt position whose log-probability is wanted must be computed, and so must the last token.
// After a preemption nothing is taken from the cache that was not computed before: it would count
// as a hit twice.
cache::PrefixMatch Scheduler::MatchPrefix(const Sequence& sequence) const {
  const ScheduledRequest& request = *sequence.request;
  std::uint32_t limit = request.request.reads_cache() ? sequence.total() - 1 : 0;
  if (request.request.output.prompt_logprobs >= 0 &&
      request.prompt_logprob_tokens < sequence.prompt_tokens) {
    limit = std::min(limit, request.prompt_logprob_tokens - 1);
  }
  if (request.was_scheduled) limit = std::min(limit, sequence.high_water);
  cache::PrefixMatch match =
      cache_->Match(sequence.cache_tokens(), sequence.keys, request.prompt.root, limit);
  // What is copied out of a page cannot be traced back to it if it is not finite.
  if (!match.is_partial_proven) return WithoutPartial(std::move(match));
  return match;
}

Scheduler::Admission Scheduler::TryAdmit(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  const std::uint32_t rows = request.forked ? 1 : request.choices();
  if (!HasRows(rows)) return Admission::kBlocked;
  if (options_.admission == AdmissionMode::kSafe && !request.was_scheduled &&
      reserved_pages_ + request.worst_pages() > cache_->usable_pages()) {
    return Admission::kBlocked;
  }
  if (IsStillBlocked(sequence)) return Admission::kBlocked;
  cache::PrefixMatch match = MatchPrefix(sequence);
  const std::uint32_t total = sequence.total();
  std::uint32_t chunk = ChunkTokens(match.num_tokens, total, /*room=*/total);
  if (chunk == 0) return Admission::kNoTokens;
  blocked_ = {};
  Blocked attempt{&sequence, 0, match.num_tokens, chunk, fork_pages_};
  TakeRow(sequence);
  if (!TakePages(sequence, match, chunk)) {
    // The copied page keeps its source busy for a step, which can be the one page too many.
    const bool has_partial = match.partial_rows > 0;
    match = WithoutPartial(MatchPrefix(sequence));
    chunk = ChunkTokens(match.num_tokens, total, /*room=*/total);
    if (!has_partial || chunk == 0 || !TakePages(sequence, match, chunk)) {
      ReleaseRow(sequence);
      ++blocked_admissions_;
      attempt.cache_changes = cache_->num_changes();  // with those of the attempt itself
      blocked_ = attempt;
      return Admission::kBlocked;
    }
  }
  Start(sequence, match);
  AddChunk(sequence, chunk);
  RefreshState(request);
  return Admission::kAdmitted;
}

// The sequence has its row and pages; choices that wait for it take their rows too.
void Scheduler::Start(Sequence& sequence, const cache::PrefixMatch& match) {
  ScheduledRequest& request = *sequence.request;
  if (sequence.admission == 0) sequence.admission = next_admission_++;
  Enter(sequence, SequenceState::kPrefill);
  sequence.computed = match.num_tokens;
  if (match.partial_rows > 0) NoteCopy(request);
  std::erase(preempted_, &sequence);
  InsertByAdmission(running_, &sequence);
  for (std::size_t i = 1; !request.forked && i < request.sequences.size(); ++i) {
    Sequence& sibling = *request.sequences[i];
    TakeRow(sibling);
    sibling.admission = sequence.admission;
    Enter(sibling, SequenceState::kWaiting, WaitCause::kFirstChoice);
    InsertByAdmission(running_, &sibling);
  }
  if (request.was_scheduled) return;
  request.was_scheduled = true;
  ++request.of_tenant->running;
  request.of_tenant->turn = next_turn_++;
  cache_->CountLookup(match, request.request.reads_cache() ? sequence.prompt_tokens : 0);
  request.cached_tokens = static_cast<std::int32_t>(match.num_tokens);
  sequence.high_water = match.num_tokens;
  if (options_.admission == AdmissionMode::kSafe) {
    request.reserved_pages = request.worst_pages();
    reserved_pages_ += request.reserved_pages;
  }
}

// Attaches the match and takes the pages of all tokens, in window groups of the first chunk, or
// leaves the row empty.
bool Scheduler::TakePages(Sequence& sequence, const cache::PrefixMatch& match,
                          std::uint32_t chunk) {
  const ScheduledRequest& request = *sequence.request;
  if (!cache_->Attach(*sequence.row, match, request.prompt.root).ok()) return false;
  cache_->SetPublish(*sequence.row, !request.request.cache.skip_write);
  const std::uint32_t end = match.num_tokens + chunk;
  if (!FitsBesides(sequence) || !cache_->Reserve(*sequence.row, sequence.total(), end).ok() ||
      fork_pages_ + ForkPages(sequence, end) > cache_->available_pages()) {
    cache_->Free(*sequence.row);
    return false;
  }
  SetPages(sequence, cache_->num_pages(*sequence.row));
  return true;
}

// Overcommit: besides the pages that its tokens take at a time there is one for growth, if it can
// grow at all.
bool Scheduler::FitsBesides(const Sequence& sequence) const {
  if (options_.admission == AdmissionMode::kSafe) return true;
  const std::uint32_t pages = cache_->demand().PagesFor(sequence.total());
  const std::uint32_t missing = pages - std::min(pages, cache_->num_pages(*sequence.row));
  const ScheduledRequest& request = *sequence.request;
  const std::uint32_t limit =
      request.forked ? request.prompt.worst_pages_first : request.worst_pages();
  const std::uint32_t growth = pages < limit ? 1 : 0;
  return missing + growth <= cache_->available_pages();
}

void Scheduler::LeaveTenant(ScheduledRequest& request) {
  if (request.of_tenant == nullptr) return;  // it never came here, or has left
  TenantRequests& requests = *request.of_tenant;
  request.of_tenant = nullptr;
  --requests.live;
  if (request.was_scheduled) --requests.running;
  QUIRE_CHECK(requests.running >= 0 && requests.running <= requests.live);
  if (requests.live == 0) tenants_.erase(request.request.tenant);
}

}  // namespace quire::engine
