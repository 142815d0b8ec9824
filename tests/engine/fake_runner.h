#pragma once

// A StepRunner whose tokens are a known function of the content of the pages.
//
// Every page row contains a number that hashes the token, its position and the number of the
// preceding row, which is read through the lookup table. A sample reads the numbers of all rows of
// its sequence, or of the window's rows in a layer group with a window. So a wrong page id, a
// missing copy, a page that was assigned twice or too early, or a token computed at the wrong
// position changes the tokens that follow.
//
// With state slots it also computes the states of a recurrent layer: one number per slot that
// hashes all tokens before it, without pages. Then every sample depends on that number too, so a
// state that is lost, stale, advanced twice or another sequence's changes the tokens that follow.
//
// With two steps in flight the runner computes as late as is legal, at Collect, from copies that
// Run made of the tables. It also checks for possible errors of overlap scheduling: a page that a
// step in flight names must not belong to another sequence in the next step, a fed-back token must
// be the token sampled at that position, and the data of a launched batch must not change.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {

struct FakeRunnerOptions {
  std::uint32_t num_blocks = 0;  // the null page included
  std::uint32_t page_size = 0;
  std::vector<cache::CacheGroup> groups = {cache::CacheGroup{}};
  std::uint32_t num_state_slots = 0;  // the null slot included; 0: no recurrent layers
  std::int32_t vocab_size = 259;
  // A sequence with this token has non-finite logits. -1: none.
  std::int32_t poison_token = -1;
  // This token is sampled with probability 1 / `end_period` instead of the hashed token. 0: never.
  std::int32_t end_token = -1;
  std::uint32_t end_period = 0;
  int max_steps_in_flight = 1;
};

// The rows that a step computed as (tokens before, new tokens), in the batch's order.
struct FakeStep {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> rows;
  std::uint32_t num_tokens = 0;
};

class FakeRunner : public runtime::StepRunner {
 public:
  using RunHook = std::function<absl::Status(const runtime::StepBatch&)>;
  using CollectHook = std::function<absl::Status()>;

  explicit FakeRunner(const FakeRunnerOptions& options);

  absl::Status Run(const runtime::StepBatch& batch) override;
  void SampleLate(const runtime::StepBatch& batch) override;
  absl::StatusOr<const runtime::StepResult*> Collect() override;
  int max_steps_in_flight() const override { return options_.max_steps_in_flight; }
  bool can_pool() const override { return true; }
  // Returns the hidden state of a row whose sequence reads back as `state`.
  static constexpr std::size_t kHidden = 2;
  static std::array<float, kHidden> HiddenOf(std::uint64_t state);

  // Sets a function that is called at the start of each Run. If it returns an error, Run computes
  // nothing and returns the error. May be called from any thread. A running hook completes before
  // it is destroyed.
  void SetHook(RunHook hook) {
    MutexLock lock(&hook_mutex_);
    hook_ = std::make_shared<const RunHook>(std::move(hook));
  }
  // The same for the start of each Collect. On an error the oldest step is lost and not computed.
  void SetCollectHook(CollectHook hook) {
    MutexLock lock(&hook_mutex_);
    collect_hook_ = std::make_shared<const CollectHook>(std::move(hook));
  }
  void RecordSteps(bool on) { records_ = on; }
  const std::vector<FakeStep>& steps() const { return steps_; }

 private:
  // A part of a page that a step reads or writes, for a row at a column or for a page copy.
  struct PageUse {
    static constexpr std::uint32_t kCopy = 0xffffffffu;
    std::uint32_t page = 0;
    std::uint32_t row = kCopy;
    std::uint32_t group = 0;
    std::uint32_t column = 0;
    std::uint32_t read_end = 0;  // reads page rows [0, read_end)
    std::uint32_t write_begin = 0, write_end = 0;
  };
  // The state of the recurrent layer after some tokens.
  struct State {
    std::uint64_t hash = 0;
    bool is_poisoned = false;
  };
  // A copy of a step made when it was launched.
  struct Launch {
    const runtime::StepBatch* batch = nullptr;
    std::vector<std::int32_t> tokens;
    std::vector<runtime::StepRow> rows;
    std::vector<std::vector<std::uint32_t>> tables;  // by group
    std::vector<std::uint32_t> lengths;
    std::uint32_t stride = 0;
    std::vector<State> states;  // after each token of `tokens`, with state slots
    std::vector<PageUse> uses;
    std::vector<std::vector<kernels::TokenCount>> histories;  // by sample
    std::vector<std::vector<std::uint32_t>> allowed;          // by sample; empty: no mask
    std::vector<std::vector<kernels::LogitBias>> biases;      // by sample
    std::vector<bool> completed;                              // by sample, of late ones
    bool awaits_masks = false;
    std::uint64_t fingerprint = 0;  // hash of the other data that the samples point to
  };

  Launch Snapshot(const runtime::StepBatch& batch) const;
  // Returns the words of the mask; empty: no mask.
  std::vector<std::uint32_t> AllowedOf(const runtime::StepSample& sample) const;
  void ListUses(const runtime::StepBatch& batch, Launch* launch) const;
  void CheckPages(const Launch& launch) const;
  void CheckFeedback(const Launch& launch) const;
  void Execute(Launch& launch);
  std::uint32_t PageOf(const Launch& launch, std::uint32_t group, std::uint32_t row,
                       std::uint32_t column) const {
    return launch.tables[group][row * launch.stride + column];
  }
  std::uint64_t& At(const Launch& launch, std::uint32_t group, const runtime::StepRow& row,
                    std::uint32_t position);
  // Returns the first position that the token at `position` reads.
  std::uint32_t FirstRead(std::uint32_t group, std::uint32_t position) const;
  void ComputeStates(Launch& launch, const runtime::StepRow& row);
  void ComputeRow(const Launch& launch, std::uint32_t group, const runtime::StepRow& row);
  std::uint64_t ReadBack(const Launch& launch, std::uint32_t token, bool* poisoned);
  void CheckSampleInFlight(const Launch& launch, const runtime::StepSample& sample) const;
  void CompleteHistories(Launch& launch) const;
  runtime::StepToken Sample(const Launch& launch, std::size_t index);
  runtime::StepToken PromptLogprob(const Launch& launch,
                                   const runtime::StepPromptLogprob& prompt_logprob);
  std::span<const float> Pool(const Launch& launch, const runtime::StepPool& pool);
  void ListBest(std::uint64_t state, std::int32_t count, runtime::StepToken* token);

  const FakeRunnerOptions options_;
  std::vector<std::uint64_t> rows_;     // [num_blocks, page_size]
  std::vector<std::uint8_t> poisoned_;  // the same
  std::vector<State> slots_;
  std::vector<kernels::TopLogprob> top_;
  std::deque<Launch> in_flight_;                               // oldest first
  std::map<std::uint32_t, std::array<float, kHidden>> pools_;  // by batch row
  std::vector<std::int32_t> last_samples_;                     // of the last collected step
  runtime::StepResult result_;
  Mutex hook_mutex_;
  std::shared_ptr<const RunHook> hook_ ABSL_GUARDED_BY(hook_mutex_);
  std::shared_ptr<const CollectHook> collect_hook_ ABSL_GUARDED_BY(hook_mutex_);
  std::vector<FakeStep> steps_;
  bool records_ = false;
};

}  // namespace quire::engine
