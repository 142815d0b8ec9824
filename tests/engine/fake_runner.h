#pragma once

// A StepRunner whose tokens are a known function of what it finds in the pages.
//
// Every page row holds a number that hashes the token, its position and the number of the row
// before it, read back through the lookup table. A draw reads the numbers of all rows of its
// sequence again. So a wrong page id, a missing copy, a page handed out twice or a token computed
// at the wrong place changes the tokens that follow.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "models/step_runner.h"

namespace quire::engine {

struct FakeRunnerOptions {
  std::uint32_t num_blocks = 0;  // the null page included
  std::uint32_t page_size = 0;
  std::int32_t vocab_size = 259;
  // A sequence that contains this token has non-finite logits. -1: none.
  std::int32_t poison_token = -1;
  // Drawn with a chance of one in `end_period` instead of the hashed token. 0: never.
  std::int32_t end_token = -1;
  std::uint32_t end_period = 0;
};

// What a step computed: rows as (tokens before, new tokens), in the batch's order.
struct FakeStep {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> rows;
  std::uint32_t num_tokens = 0;
};

class FakeRunner : public models::StepRunner {
 public:
  explicit FakeRunner(const FakeRunnerOptions& options);

  absl::Status Run(const models::StepBatch& batch) override;
  absl::StatusOr<const models::StepResult*> Collect() override;

  // Called at the start of each Run; an error is what Run returns, with nothing computed.
  void SetHook(std::function<absl::Status(const models::StepBatch&)> hook) {
    hook_ = std::move(hook);
  }
  void RecordSteps(bool on) { records_ = on; }
  const std::vector<FakeStep>& steps() const { return steps_; }

 private:
  std::uint64_t& At(const models::StepBatch& batch, const models::StepRow& row,
                    std::uint32_t position);
  void ComputeRow(const models::StepBatch& batch, const models::StepRow& row);
  std::uint64_t ReadBack(const models::StepBatch& batch, std::uint32_t logits_index,
                         bool* poisoned);
  models::StepToken Draw(const models::StepBatch& batch, const models::StepDraw& draw);
  models::StepToken Score(const models::StepBatch& batch, const models::StepScore& score);
  void ListBest(std::uint64_t state, std::int32_t count, models::StepToken* token);

  const FakeRunnerOptions options_;
  std::vector<std::uint64_t> rows_;     // [num_blocks, page_size]
  std::vector<std::uint8_t> poisoned_;  // the same
  std::vector<kernels::TopLogprob> top_;
  models::StepResult result_;
  std::function<absl::Status(const models::StepBatch&)> hook_;
  std::vector<FakeStep> steps_;
  bool records_ = false;
};

}  // namespace quire::engine
