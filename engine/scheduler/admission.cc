#include "engine/scheduler/admission.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/scheduler/prompt_rank.h"

namespace quire::engine {
namespace {

// Prompt positions whose log-probabilities were requested must be computed, and so must the last
// token. After a preemption the match ends at the highest position that the sequence had computed,
// because the first lookup has counted later prompt tokens as not cached. Without `may_copy` the
// match has only full pages.
cache::PrefixMatch MatchPrefix(const cache::CacheManager& cache, const Sequence& sequence,
                               bool may_copy = true) {
  const ScheduledRequest& request = *sequence.request;
  std::uint32_t limit = request.request.reads_cache() ? sequence.total() - 1 : 0;
  if (request.request.output.prompt_logprobs >= 0 &&
      request.prompt_logprob_tokens < sequence.prompt_tokens) {
    limit = std::min(limit, request.prompt_logprob_tokens - 1);
  }
  if (request.was_scheduled) limit = std::min(limit, sequence.high_water);
  cache::PrefixMatch match =
      cache.Match(sequence.cache_tokens(), sequence.keys, request.prompt.root, limit, may_copy);
  // Partial pages are copied only if they are proven finite. A non-finite value in a copy could not
  // be traced back to the page from which it was copied.
  if (match.partial_rows == 0 || match.is_partial_proven) return match;
  return MatchPrefix(cache, sequence, /*may_copy=*/false);
}

}  // namespace

Admission::Admission(AdmissionMode mode, std::shared_ptr<const HotOptions> options,
                     const Parts& parts)
    : mode_(mode),
      options_(std::move(options)),
      cache_(parts.cache),
      rows_(parts.rows),
      draft_(parts.draft),
      stalls_(parts.stalls),
      waiting_requests_(options_->priority_aging_interval),
      tenants_(options_) {}

void Admission::SetOptions(std::shared_ptr<const HotOptions> options) {
  options_ = std::move(options);
  tenants_.SetOptions(options_);
  waiting_requests_.SetAgingInterval(options_->priority_aging_interval);
  blocked_attempt_ = {};
}

void Admission::Add(ScheduledRequest* request) {
  const Sequence& first = request->first();
  request->uncached_tokens = first.total() - MatchPrefix(*cache_, first).num_tokens;
  CountWaiting(*request, 1);
  for (const auto& sequence : request->sequences) rows_->Enter(*sequence, SequenceState::kQueued);
  request->first().holds_last_token = cache_->has_states() && !request->prompt.mask_rules.empty();
  tenants_.Join(*request);
  waiting_requests_.Add(request);
  RefreshState(*request);
}

// `sign`: 1 when the request begins to wait, -1 when it stops.
void Admission::CountWaiting(const ScheduledRequest& request, std::int64_t sign) {
  const std::int64_t choices = request.choices();
  waiting_work_.uncached_tokens += sign * request.uncached_tokens;
  waiting_work_.choices += sign * choices;
  waiting_work_.max_output_tokens += sign * choices * request.prompt.max_tokens;
}

bool Admission::AdmitBefore(const Sequence* next, absl::Time now) {
  // The loop is not entered if no row or token budget is left. In that case a sequence runs, so no
  // request is stuck.
  while (HasRows(1) && draft_->budget() > 0 && draft_->prompt_budget() > 0) {
    const auto preempted = std::ranges::find_if(
        rows_->preempted(), [](const Sequence* sequence) { return !sequence->is_stalled; });
    const bool is_new = preempted == rows_->preempted().end();
    ScheduledRequest* const request = is_new ? waiting_requests_.Head(now) : (*preempted)->request;
    if (request == nullptr) return false;
    const PromptRank candidate = is_new ? PromptRank{waiting_requests_.LevelOf(request),
                                                     LengthClass(request->uncached_tokens)}
                                        : RankOf(**preempted);
    if (next != nullptr && !ComesBefore(*request, candidate, *next)) return true;
    // The head of the queue waits for its output worker, which has room again within a few steps.
    if (is_new && stalls_->IsWorkerStalled(*request)) return false;
    const Result result = TryAdmit(is_new ? request->first() : **preempted);
    if (result != Result::kAdmitted) {
      // If every page is available and no sequence runs, the request would wait forever.
      const bool is_idle =
          rows_->running().empty() && cache_->available_pages() == cache_->usable_pages();
      if (result == Result::kBlocked && is_idle) stuck_request_ = request;
      return false;
    }
    if (!is_new) continue;
    waiting_requests_.Remove(request);
    CountWaiting(*request, -1);
    draft_->plan().started.push_back(request);
  }
  return false;
}

// max_running_sequences may have been lowered below the number of rows in use. A request with more
// choices than the present limit was accepted under an earlier one, and runs when no other sequence
// does.
bool Admission::HasRows(std::size_t rows) const {
  const std::size_t used = rows_->num_used();
  return rows <= rows_->num_free() &&
         (used == 0 || used + rows <= static_cast<std::size_t>(options_->max_running_sequences));
}

bool Admission::IsStillBlocked(const Sequence& sequence) const {
  return blocked_attempt_.sequence == &sequence &&
         blocked_attempt_.cache_changes == cache_->num_changes() &&
         draft_->fork_pages() >= blocked_attempt_.fork_pages &&
         draft_->fork_slots() >= blocked_attempt_.fork_slots &&
         draft_->ChunkTokens(blocked_attempt_.matched_tokens, sequence.chunk_end(),
                             sequence.total()) >= blocked_attempt_.chunk;
}

Admission::Result Admission::TryAdmit(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  const std::uint32_t rows = request.forked ? 1 : request.choices();
  if (!HasRows(rows)) return Result::kBlocked;
  if (mode_ == AdmissionMode::kSafe && !request.was_scheduled &&
      reserved_pages_ + request.worst_pages() > cache_->usable_pages()) {
    return Result::kBlocked;
  }
  if (IsStillBlocked(sequence)) return Result::kBlocked;
  cache::PrefixMatch match = MatchPrefix(*cache_, sequence);
  const std::uint32_t total = sequence.total();
  std::uint32_t chunk = draft_->ChunkTokens(match.num_tokens, sequence.chunk_end(), total);
  // Masks are computed from admission on. So a sequence is admitted with `chunk` 0 if its only
  // remaining token waits for its mask.
  if (chunk == 0 && match.num_tokens < sequence.chunk_end()) return Result::kNoTokens;
  blocked_attempt_ = {};
  BlockedAttempt attempt{&sequence,           0, match.num_tokens, chunk, draft_->fork_pages(),
                         draft_->fork_slots()};
  rows_->TakeRow(sequence);
  if (!TakePages(sequence, match, chunk)) {
    // A partial match keeps its source page referenced for a step, and that page may be the missing
    // one. The second attempt matches only full pages.
    const bool has_partial = match.partial_rows > 0;
    match = MatchPrefix(*cache_, sequence, /*may_copy=*/false);
    chunk = draft_->ChunkTokens(match.num_tokens, sequence.chunk_end(), total);
    if (!has_partial || chunk == 0 || !TakePages(sequence, match, chunk)) {
      rows_->ReleaseRow(sequence);
      ++blocked_admissions_;
      attempt.cache_changes = cache_->num_changes();  // includes the changes by the attempt itself
      blocked_attempt_ = attempt;
      return Result::kBlocked;
    }
  }
  Start(sequence, match);
  if (chunk > 0) {
    draft_->AddChunk(sequence, cache_->LimitChunk(*sequence.row, chunk));
  } else {
    sequence.awaits_mask = true;
  }
  RefreshState(request);
  return Result::kAdmitted;
}

void Admission::Start(Sequence& sequence, const cache::PrefixMatch& match) {
  ScheduledRequest& request = *sequence.request;
  if (sequence.admission_number == 0) sequence.admission_number = next_admission_++;
  rows_->Start(sequence, match);
  if (request.was_scheduled) return;
  request.was_scheduled = true;
  tenants_.Start(request);
  cache_->CountLookup(match, request.request.reads_cache() ? sequence.prompt_tokens : 0);
  request.cached_tokens = static_cast<std::int32_t>(match.num_tokens);
  sequence.high_water = match.num_tokens;
  if (mode_ == AdmissionMode::kSafe) {
    request.reserved_pages = request.worst_pages();
    reserved_pages_ += request.reserved_pages;
  }
}

// Attaches the match and reserves the pages of all tokens, or in window groups those of the first
// chunk. On failure the row stays empty.
bool Admission::TakePages(Sequence& sequence, const cache::PrefixMatch& match,
                          std::uint32_t chunk) {
  const ScheduledRequest& request = *sequence.request;
  if (!cache_->Attach(*sequence.row, match, request.prompt.root, sequence.prompt_tokens).ok()) {
    return false;
  }
  cache_->SetPublish(*sequence.row, !request.request.cache.skip_write);
  const std::uint32_t end = match.num_tokens + chunk;
  if (!FitsWithGrowth(sequence) || !cache_->Reserve(*sequence.row, sequence.total(), end).ok() ||
      !draft_->HasRoomToFork(sequence, end)) {
    cache_->Free(*sequence.row);
    return false;
  }
  SetPages(sequence, cache_->num_pages(*sequence.row));
  return true;
}

// In overcommit mode, one page more than the tokens need must be available if the sequence can
// grow.
bool Admission::FitsWithGrowth(const Sequence& sequence) const {
  if (mode_ == AdmissionMode::kSafe) return true;
  const std::uint32_t pages = cache_->demand().PagesFor(sequence.total());
  const std::uint32_t missing = pages - std::min(pages, cache_->num_pages(*sequence.row));
  const ScheduledRequest& request = *sequence.request;
  const std::uint32_t limit =
      request.forked ? request.prompt.max_pages_of_one_choice : request.worst_pages();
  const std::uint32_t growth = pages < limit ? 1 : 0;
  return missing + growth <= cache_->available_pages();
}

void Admission::EndChoice(ScheduledRequest& request) {
  if (request.reserved_pages == 0) return;
  // The reservation of the pages that the choices share is released when the last choice ends.
  std::uint32_t pages = request.prompt.max_pages_of_one_choice - request.prompt.shared_pages;
  if (request.live_choices == 0) pages = request.reserved_pages;
  request.reserved_pages -= pages;
  reserved_pages_ -= pages;
}

void Admission::Leave(ScheduledRequest& request) {
  if (!request.was_scheduled && waiting_requests_.Remove(&request)) CountWaiting(request, -1);
  for (const auto& sequence : request.sequences) {
    if (blocked_attempt_.sequence == sequence.get()) blocked_attempt_ = {};
  }
  reserved_pages_ -= request.reserved_pages;
  request.reserved_pages = 0;
  tenants_.Leave(request);
}

// Checks for safe mode that the reservations fit the pool, no request has more pages than its own
// reservation, and no sequence is preempted.
absl::Status Admission::CheckReservations() const {
  std::uint32_t reserved = 0;
  const ScheduledRequest* last = nullptr;
  absl::flat_hash_map<const ScheduledRequest*, std::uint32_t> held;
  for (const Sequence* s : rows_->running()) {
    if (s->request != last) reserved += s->request->reserved_pages;
    last = s->request;
    held[s->request] += cache_->num_private_pages(*s->row);
  }
  if (rows_->preempted().empty() && reserved != reserved_pages_) {
    return absl::InternalError(absl::StrCat("reservations add up to ", reserved, " pages, ",
                                            reserved_pages_, " are counted"));
  }
  if (mode_ != AdmissionMode::kSafe) return absl::OkStatus();
  if (reserved_pages_ > cache_->usable_pages() || !rows_->preempted().empty()) {
    return absl::InternalError(absl::StrCat(reserved_pages_, " pages of ", cache_->usable_pages(),
                                            " are reserved, ", rows_->preempted().size(),
                                            " sequences are preempted in safe mode"));
  }
  for (const auto& [request, pages] : held) {
    if (pages <= request->reserved_pages) continue;
    return absl::InternalError(absl::StrCat("request ", request->request.id, " holds ", pages,
                                            " pages, ", request->reserved_pages,
                                            " are reserved for it"));
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(CheckReservations());
  QUIRE_RETURN_IF_ERROR(tenants_.CheckIntegrity());
  return waiting_requests_.CheckIntegrity();
}

}  // namespace quire::engine
