#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <tuple>

#include "engine/output/token_stream.h"
#include "engine/request/engine_options.h"
#include "engine/scheduler/preemption.h"

namespace quire::engine {
namespace {

// The automatic target: so many steps without prompts, between these two. With more than half as
// many prompts as streams it is larger: rows that start sooner share the reading of the weights.
constexpr int kAutoTargetSteps = 3;
constexpr int kAutoTargetStepsOfPrompts = 4;
// That of a step which no stream waits for: who comes meanwhile does, and reading the weights for
// fewer tokens takes at most so much of the time.
constexpr int kAutoTargetStepsOfPromptsAlone = 16;
constexpr absl::Duration kMinAutoTarget = absl::Milliseconds(20);
constexpr absl::Duration kMaxAutoTarget = absl::Milliseconds(500);
constexpr absl::Duration kMinAutoTargetOfPromptsAlone = absl::Milliseconds(5);
// Where prompts hold up, or would hold up, another tenant. Throughput is worth less than that.
constexpr absl::Duration kMinAutoTargetOfTenants = absl::Milliseconds(1);
// A tenant that has had a request beside another one's is expected to have the next one within
// this. It comes into steps that were planned without it.
constexpr absl::Duration kTimeToReturn = absl::Seconds(10);
// Steps are planned for this share of the target, since some take longer than expected.
constexpr double kAimedShare = 0.9;
// Where time bounds a chunk, the rows of the step, those that decode among them, are a multiple of
// this: the CPU's tiles compute so many together. It is also what the first prompt gets at least.
constexpr std::uint32_t kTimedRows = 8;

// Of so many steps with prompts one serves the oldest prompt first, the others the shortest.
constexpr std::uint64_t kStepsForOneOfTheOldest = 4;

}  // namespace

Scheduler::Scheduler(const EngineOptions& options, cache::CacheManager* cache)
    : options_(options),
      cache_(cache),
      page_size_(cache->page_size()),
      max_window_chunk_(MaxChunkTokens(options, page_size_)),
      waiting_(options.priority_aging_interval) {
  const auto rows = static_cast<std::uint32_t>(options.max_running_sequences);
  num_rows_ = rows;
  for (std::uint32_t row = rows; row > 0; --row) free_rows_.push_back(row - 1);
  running_.reserve(rows);
  scratch_.reserve(rows);
  plan_.decodes.reserve(rows);
  plan_.prefills.reserve(rows);
  prompts_.reserve(rows);
}

void Scheduler::OptionsChanged() {
  for (auto& [tenant, requests] : tenants_) requests.max_running = MaxRunning(tenant);
  waiting_.SetAgingInterval(options_.priority_aging_interval);
  blocked_ = {};
}

const StepPlan& Scheduler::Plan(absl::Time now, bool ahead) {
  plan_.Clear();
  stuck_ = nullptr;
  must_wait_ = false;
  budget_ = static_cast<std::uint32_t>(options_.max_step_tokens);
  prompt_budget_ =
      std::max(static_cast<std::uint32_t>(options_.max_step_prompt_tokens), page_size_);
  fork_pages_ = 0;
  MarkSkips(now);
  PlanDecodes(ahead);
  if (must_wait_) {
    plan_.Clear();
    return plan_;
  }
  if (tenants_.size() > 1) shared_until_ = now + kTimeToReturn;
  time_target_ = StepTimeTarget(now);
  PlanPrompts(now);
  return plan_;
}

bool Scheduler::awaits_step() const {
  const auto is_read = [](const Sequence* sequence) {
    return sequence->request->full_since == absl::InfiniteFuture();
  };
  if (!running_.empty()) return std::ranges::any_of(running_, is_read);
  return waiting_.AnyMayStart() || std::ranges::any_of(preempted_, is_read);
}

void Scheduler::MarkSkips(absl::Time now) {
  auto mark = [&](Sequence* sequence) {
    ScheduledRequest& request = *sequence->request;
    const bool is_full = request.request.output.stream &&
                         request.accepted->stream->unread_tokens() >= options_.stream_queue_tokens;
    if (!is_full) {
      request.full_since = absl::InfiniteFuture();
    } else if (request.full_since == absl::InfiniteFuture()) {
      request.full_since = now;
    }
    const bool skips = is_full || !IsOutputReady(request) || sequence->awaits_mask;
    if (skips != sequence->skips) {
      sequence->skips = skips;
      RefreshState(request);
    }
  };
  for (Sequence* sequence : running_) mark(sequence);
  for (Sequence* sequence : preempted_) mark(sequence);
}

// One token is left to compute, sampled already or by a step in flight, and it is not the last one.
bool Scheduler::CanDecode(const Sequence& sequence) const {
  if (sequence.state() != SequenceState::kDecode && sequence.samples_in_flight == 0) return false;
  return sequence.active() && sequence.launched() + kDecodeTokens == sequence.known() &&
         sequence.output_tokens() + static_cast<std::int32_t>(sequence.samples_in_flight) <
             sequence.request->prompt.max_tokens;
}

// The choices of the request part with the sample in flight, and no page may be missing then.
bool Scheduler::NeedsOutcome(const Sequence& sequence) const {
  const ScheduledRequest& request = *sequence.request;
  return sequence.samples_in_flight > 0 && !request.forked && request.choices() > 1;
}

// Pages are taken for all decode rows before any is planned: a row that was planned cannot become
// the victim of a later one.
void Scheduler::PlanDecodes(bool ahead) {
  scratch_.clear();
  stream_waits_ = false;
  num_prompts_ = preempted_.size() + waiting_.size();
  bool has_prefill = !preempted_.empty();
  for (Sequence* sequence : running_) {
    if (sequence->state() == SequenceState::kPrefill && sequence->launched() < sequence->total()) {
      has_prefill = true;
      ++num_prompts_;
    }
    must_wait_ |= NeedsOutcome(*sequence);
    if (!CanDecode(*sequence)) continue;
    if (!sequence->skips) scratch_.push_back(sequence);
    // One that is stalled because output of its own is held up wants its next token all the same; a
    // client that leaves its tokens unread does not.
    stream_waits_ |= sequence->request->full_since == absl::InfiniteFuture();
  }
  if (must_wait_) return;
  std::vector<PlannedDecode>& ready = plan_.decodes;
  for (Sequence* sequence : scratch_) {
    if (sequence->active() && Grow(*sequence, sequence->launched() + kDecodeTokens, ahead)) {
      ready.push_back({sequence});
    }
  }
  if (cache_->demand().has_windows()) GrowPrompts(ahead);
  std::erase_if(ready, [](const PlannedDecode& decode) { return !decode.sequence->active(); });
  const std::uint32_t rows = budget_ / kDecodeTokens;
  const std::uint32_t without_page =
      budget_ > page_size_ ? (budget_ - page_size_) / kDecodeTokens : rows;
  // Only where a page for prompts would cost rows is it worth looking whether anybody needs it.
  if (ready.size() > without_page && (has_prefill || waiting_.AnyMayStart())) {
    ready.resize(without_page);
  }
  if (ready.size() > rows) ready.resize(rows);
  for (const PlannedDecode& decode : ready) {
    plan_.work.AddDecode(decode.sequence->launched());
  }
  plan_.num_tokens = kDecodeTokens * static_cast<std::uint32_t>(ready.size());
  budget_ -= plan_.num_tokens;
}

// The same for the chunks of prompts that the step may have room for: in window groups they could
// not be taken with the admission.
void Scheduler::GrowPrompts(bool ahead) {
  OrderPrompts();
  std::uint32_t left = std::min(budget_, prompt_budget_);
  for (Sequence* sequence : prompts_) {
    if (left == 0 || must_wait_) return;
    if (!sequence->active()) continue;
    const std::uint32_t remaining = sequence->total() - sequence->launched();
    left -= GrowPrompt(*sequence, std::min({remaining, ChunkLimit(), left}), ahead);
  }
}

// Takes the pages of as much of the chunk as there are pages for. A victim gives its own only where
// the row could compute nothing otherwise. Returns the tokens that have pages.
std::uint32_t Scheduler::GrowPrompt(Sequence& sequence, std::uint32_t chunk, bool ahead) {
  const std::uint32_t begin = sequence.launched();
  std::uint32_t reserved = cache_->reserved_tokens(*sequence.row);
  while (reserved < begin + chunk) {
    std::uint32_t columns = cache_->available_pages() / cache_->demand().num_window_groups();
    if (reserved == begin) columns = std::max(columns, 1u);
    if (columns == 0) break;
    const std::uint64_t end = reserved + std::uint64_t{columns} * page_size_;
    if (!Grow(sequence, static_cast<std::uint32_t>(std::min<std::uint64_t>(begin + chunk, end)),
              ahead)) {
      if (!sequence.active()) return 0;
      break;
    }
    reserved = cache_->reserved_tokens(*sequence.row);
  }
  return std::min(reserved - begin, chunk);
}

// Takes the pages for the first `tokens` tokens. False: the row is stalled this step, or was
// preempted itself. In safe mode a page can be missing only while pages are being cleared, copied
// or held by a step in flight, which ends with the next step.
bool Scheduler::Grow(Sequence& sequence, std::uint32_t tokens, bool ahead) {
  if (tokens <= cache_->reserved_tokens(*sequence.row)) return true;
  while (true) {
    const absl::Status status =
        cache_->Reserve(*sequence.row, std::max(tokens, sequence.total()), tokens);
    if (status.ok()) {
      SetPages(sequence, cache_->num_pages(*sequence.row));
      return true;
    }
    if (options_.admission == AdmissionMode::kSafe) return false;
    if (ahead) {  // a victim would be in flight, and its pages of no use before it has landed
      must_wait_ = true;
      return false;
    }
    Sequence* victim = ChooseVictim(running_, page_size_, [this](const Sequence& candidate) {
      return cache_->num_private_pages(*candidate.row) > 0;
    });
    if (victim == nullptr) return false;
    Preempt(*victim);
    if (victim == &sequence) return false;
  }
}

// A target that is set bounds only steps that a stream waits for. The automatic one bounds the
// others too, once it is known what a step without prompts takes.
absl::Duration Scheduler::StepTimeTarget(absl::Time now) const {
  const bool is_set = options_.step_time_target.has_value();
  if (is_set && stream_waits_) return *options_.step_time_target;
  if (is_set || !options_.auto_step_time_target) return absl::InfiniteDuration();
  if (!stream_waits_) {
    StepWork row;
    row.AddDecode(/*stored=*/0);
    if (!step_time_.Knows(row)) return absl::InfiniteDuration();
    return std::clamp(kAutoTargetStepsOfPromptsAlone * step_time_.Predict(row),
                      kMinAutoTargetOfPromptsAlone, kMaxAutoTarget);
  }
  const bool prompts_prevail = 2 * num_prompts_ > plan_.decodes.size();
  const int steps = prompts_prevail ? kAutoTargetStepsOfPrompts : kAutoTargetSteps;
  return std::clamp(steps * step_time_.Predict(plan_.work),
                    now < shared_until_ ? kMinAutoTargetOfTenants : kMinAutoTarget, kMaxAutoTarget);
}

// Of one row in one step.
std::uint32_t Scheduler::ChunkLimit() const {
  const auto chunk = static_cast<std::uint32_t>(options_.prefill_chunk_tokens);
  return cache_->demand().has_windows() ? std::min(chunk, max_window_chunk_) : chunk;
}

// `room`: tokens after those computed that have pages, or may have them.
std::uint32_t Scheduler::ChunkTokens(std::uint32_t computed, std::uint32_t total,
                                     std::uint32_t room) const {
  const std::uint32_t remaining = total - computed;
  std::uint32_t chunk = std::min({remaining, ChunkLimit(), room, budget_, prompt_budget_});
  if (time_target_ == absl::InfiniteDuration()) {
    if (chunk == remaining) return chunk;
    const std::uint32_t past_page = (computed + chunk) % page_size_;
    return chunk > past_page ? chunk - past_page : 0;
  }
  const absl::Duration left = time_target_ * kAimedShare - step_time_.Predict(plan_.work);
  const std::uint32_t least = plan_.prefills.empty() ? kTimedRows : 0;
  chunk = std::min(chunk, std::max(step_time_.PromptTokensWithin(left, computed), least));
  if (chunk == remaining || chunk <= least) return chunk;
  const std::uint32_t past_tile = (plan_.num_tokens + chunk) % kTimedRows;
  return std::max(chunk > past_tile ? chunk - past_tile : 0, least);
}

// Safe mode: the pages that the choices of a request copy when the chunk that ends at `end` has
// completed its prompt. Its reservation has room for them, but pages that no row holds may still
// have to be cleared, so the chunk waits until they are there. No row takes pages between a plan
// and the fork after its step: the next plan waits for it (NeedsOutcome).
std::uint32_t Scheduler::ForkPages(const Sequence& sequence, std::uint32_t end) const {
  const ScheduledRequest& request = *sequence.request;
  if (options_.admission != AdmissionMode::kSafe || request.forked) return 0;
  if (end < sequence.total() || end % page_size_ == 0) return 0;
  return (request.choices() - 1) * cache_->num_groups();
}

void Scheduler::AddChunk(Sequence& sequence, std::uint32_t num_tokens) {
  fork_pages_ += ForkPages(sequence, sequence.launched() + num_tokens);
  plan_.prefills.push_back({&sequence, num_tokens});
  plan_.work.AddPrompt(sequence.launched(), num_tokens);
  plan_.num_tokens += num_tokens;
  budget_ -= num_tokens;
  prompt_budget_ -= num_tokens;
}

// The prompts that are being computed, in the order in which the step serves them: those of each
// tenant by their rank, the first ones of all tenants before the second ones, so that no tenant's
// priority puts its prompts before those of another one. Shortest first, so that a long one does
// not hold up the first tokens of short ones; by age now and then, so that it gets on whatever else
// comes.
void Scheduler::OrderPrompts() {
  prompts_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->state() != SequenceState::kPrefill || sequence->skips) continue;
    if (sequence->launched() < sequence->total()) prompts_.push_back(sequence);
  }
  if (prompts_.empty()) return;
  const auto begin = prompts_.begin() + (IsStepOfTheOldest() ? 1 : 0);
  const auto sort_by = [&](const auto& key) {
    std::sort(begin, prompts_.end(),
              [&key](const Sequence* a, const Sequence* b) { return key(*a) < key(*b); });
  };
  sort_by([](const Sequence& sequence) {
    return std::tuple(RankOf(sequence), sequence.admission, sequence.choice);
  });
  // The turns of tenants change nothing where there is one.
  const bool has_one_tenant = std::all_of(begin, prompts_.end(), [&](const Sequence* sequence) {
    return sequence->request->of_tenant == prompts_.back()->request->of_tenant;
  });
  if (has_one_tenant) return;
  for (Sequence* sequence : prompts_) sequence->request->of_tenant->num_prompts = 0;
  for (auto it = begin; it != prompts_.end(); ++it) {
    (*it)->prompt_turn = (*it)->request->of_tenant->num_prompts++;
  }
  sort_by([](const Sequence& sequence) {
    return std::tuple(sequence.prompt_turn, RankOf(sequence).length_class, sequence.admission,
                      sequence.choice);
  });
}

bool Scheduler::IsStepOfTheOldest() const {
  return prompt_steps_ % kStepsForOneOfTheOldest == kStepsForOneOfTheOldest - 1;
}

Scheduler::PromptRank Scheduler::RankOf(const Sequence& sequence) {
  return {sequence.request->request.priority, LengthClass(sequence.total() - sequence.launched())};
}

// Whether a request with that rank, not admitted yet, comes before a prompt that is being computed.
// Between tenants the length alone counts: which of them waits first was decided before.
bool Scheduler::ComesBefore(const ScheduledRequest& request, const PromptRank& rank,
                            const Sequence& sequence) {
  const PromptRank other = RankOf(sequence);
  const bool is_same_tenant = request.of_tenant == sequence.request->of_tenant;
  return is_same_tenant ? rank < other : rank.length_class < other.length_class;
}

void Scheduler::PlanPrompts(absl::Time now) {
  OrderPrompts();
  bool comes_first = IsStepOfTheOldest();
  bool admits = true;
  for (Sequence* sequence : prompts_) {
    // Requests that wait pass longer prompts, but not the oldest one in its step.
    if (!comes_first && admits) admits = AdmitBefore(sequence, now);
    comes_first = false;
    const std::uint32_t room = cache_->reserved_tokens(*sequence->row) - sequence->launched();
    const std::uint32_t chunk = ChunkTokens(sequence->launched(), sequence->total(), room);
    if (chunk == 0) {
      admits = false;  // no request behind it passes
      break;
    }
    const std::uint32_t fork_pages = ForkPages(*sequence, sequence->launched() + chunk);
    if (fork_pages > 0 && fork_pages_ + fork_pages > cache_->available_pages()) continue;
    AddChunk(*sequence, chunk);
  }
  if (admits) AdmitBefore(/*next=*/nullptr, now);
  if (!plan_.prefills.empty()) ++prompt_steps_;
}

}  // namespace quire::engine
