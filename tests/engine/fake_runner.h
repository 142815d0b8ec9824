#pragma once

// A StepRunner whose tokens are a known function of the page contents.
//
// Every page row stores a hash of the token, its position and the value of the previous row, which
// is read through the lookup table. A sample reads the values of all rows of its sequence, or of
// those in the window for a windowed layer group. A wrong page id, a missing copy, a page handed
// out twice or too early, or a token computed at the wrong position therefore changes the following
// tokens.
//
// With two steps in flight it computes as late as is legal, at Collect, from copies of the tables
// made at Run. It checks for errors of overlap scheduling. A page that a step in flight names must
// not belong to another sequence in the next step. A fed-back token must have been sampled at that
// position. Data that a launched batch points to must not change.

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
  std::uint32_t num_blocks = 0;  // includes the null page
  std::uint32_t page_size = 0;
  std::vector<cache::CacheGroup> groups = {cache::CacheGroup{}};
  std::int32_t vocab_size = 259;
  // A sequence that contains this token has non-finite logits. -1 means none.
  std::int32_t poison_token = -1;
  // The end token is sampled with probability 1 / `end_period` instead of the hashed token. 0 means
  // never.
  std::int32_t end_token = -1;
  std::uint32_t end_period = 0;
  int max_steps_in_flight = 1;
};

// The rows that a step computed, as (tokens before, new tokens), in batch order.
struct FakeStep {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> rows;
  std::uint32_t num_tokens = 0;
};

class FakeRunner : public models::StepRunner {
 public:
  using RunHook = std::function<absl::Status(const models::StepBatch&)>;
  using CollectHook = std::function<absl::Status()>;

  explicit FakeRunner(const FakeRunnerOptions& options);

  absl::Status Run(const models::StepBatch& batch) override;
  void SampleLate(const models::StepBatch& batch) override;
  absl::StatusOr<const models::StepResult*> Collect() override;
  int max_steps_in_flight() const override { return options_.max_steps_in_flight; }
  bool can_pool() const override { return true; }
  // Returns the hidden state of a row whose sequence reads back as `state`.
  static constexpr std::size_t kHidden = 2;
  static std::array<float, kHidden> HiddenOf(std::uint64_t state);

  // Sets a hook that is called at the start of each Run. If it returns an error, Run returns that
  // error and computes nothing. Thread-safe; a running hook ends before it is destroyed.
  void SetHook(RunHook hook) {
    MutexLock lock(&hook_mutex_);
    hook_ = std::make_shared<const RunHook>(std::move(hook));
  }
  // Sets a hook for the start of each Collect. If it returns an error, the oldest step is lost and
  // nothing of it is computed.
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
  // A step as it was launched.
  struct Launch {
    const models::StepBatch* batch = nullptr;
    std::vector<std::int32_t> tokens;
    std::vector<models::StepRow> rows;
    std::vector<std::vector<std::uint32_t>> tables;  // by group
    std::vector<std::uint32_t> lengths;
    std::uint32_t stride = 0;
    std::vector<PageUse> uses;
    std::vector<std::vector<kernels::TokenCount>> histories;  // by sample
    std::vector<std::vector<std::uint32_t>> allowed;          // by sample; empty: no mask
    std::vector<std::vector<kernels::LogitBias>> biases;      // by sample
    std::vector<bool> completed;                              // by sample, of late ones
    bool awaits_masks = false;
    std::uint64_t fingerprint = 0;  // hash of the other data that the samples point to
  };

  Launch Snapshot(const models::StepBatch& batch) const;
  void ListUses(const models::StepBatch& batch, Launch* launch) const;
  void CheckPages(const Launch& launch) const;
  void CheckFeedback(const Launch& launch) const;
  void Execute(Launch& launch);
  std::uint32_t PageOf(const Launch& launch, std::uint32_t group, std::uint32_t row,
                       std::uint32_t column) const {
    return launch.tables[group][row * launch.stride + column];
  }
  std::uint64_t& At(const Launch& launch, std::uint32_t group, const models::StepRow& row,
                    std::uint32_t position);
  // Returns the first position that the token at `position` reads.
  std::uint32_t FirstRead(std::uint32_t group, std::uint32_t position) const;
  void ComputeRow(const Launch& launch, std::uint32_t group, const models::StepRow& row);
  std::uint64_t ReadBack(const Launch& launch, std::uint32_t token, bool* poisoned);
  void CheckSampleInFlight(const Launch& launch, const models::StepSample& sample) const;
  void CompleteHistories(Launch& launch) const;
  models::StepToken Sample(const Launch& launch, std::size_t index);
  models::StepToken PromptLogprob(const Launch& launch,
                                  const models::StepPromptLogprob& prompt_logprob);
  std::span<const float> Pool(const Launch& launch, const models::StepPool& pool);
  void ListBest(std::uint64_t state, std::int32_t count, models::StepToken* token);

  const FakeRunnerOptions options_;
  std::vector<std::uint64_t> rows_;     // [num_blocks, page_size]
  std::vector<std::uint8_t> poisoned_;  // the same
  std::vector<kernels::TopLogprob> top_;
  std::deque<Launch> in_flight_;                               // oldest first
  std::map<std::uint32_t, std::array<float, kHidden>> pools_;  // by batch row
  std::vector<std::int32_t> last_samples_;                     // samples of the step collected last
  models::StepResult result_;
  Mutex hook_mutex_;
  std::shared_ptr<const RunHook> hook_ ABSL_GUARDED_BY(hook_mutex_);
  std::shared_ptr<const CollectHook> collect_hook_ ABSL_GUARDED_BY(hook_mutex_);
  std::vector<FakeStep> steps_;
  bool records_ = false;
};

}  // namespace quire::engine
