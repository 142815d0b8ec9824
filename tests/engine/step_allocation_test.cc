// Allocations of the engine thread per step after its buffers have grown, without those of the fake
// runner and of other threads.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/masks/token_texts.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/allocation_count.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

class UncountedRunner final : public runtime::StepRunner {
 public:
  explicit UncountedRunner(runtime::StepRunner* runner) : runner_(*runner) {}

  absl::Status Run(const runtime::StepBatch& batch) override {
    const std::uint64_t before = NumAllocations();
    absl::Status status = runner_.Run(batch);
    allocations_ += NumAllocations() - before;
    return status;
  }
  void SampleLate(const runtime::StepBatch& batch) override {
    const std::uint64_t before = NumAllocations();
    runner_.SampleLate(batch);
    allocations_ += NumAllocations() - before;
  }
  absl::StatusOr<const runtime::StepResult*> Collect() override {
    const std::uint64_t before = NumAllocations();
    auto result = runner_.Collect();
    allocations_ += NumAllocations() - before;
    return result;
  }
  int max_steps_in_flight() const override { return runner_.max_steps_in_flight(); }
  bool can_pool() const override { return runner_.can_pool(); }

  std::uint64_t allocations() const { return allocations_; }

 private:
  runtime::StepRunner& runner_;
  std::uint64_t allocations_ = 0;
};

struct Case {
  std::string name;
  SamplingParams sampling;
};

std::vector<Case> Cases() {
  std::vector<Case> cases(4);
  cases[0].name = "nothing";
  cases[1].name = "penalties";
  cases[1].sampling.repetition_penalty = 1.1f;
  cases[1].sampling.frequency_penalty = 0.1f;
  cases[2].name = "DRY";
  cases[2].sampling.dry.multiplier = 0.8f;
  cases[3].name = "both";
  cases[3].sampling = cases[1].sampling;
  cases[3].sampling.dry = cases[2].sampling.dry;
  return cases;
}

class StepAllocationTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr std::int32_t kWarmUp = 32;
  static constexpr std::int32_t kCounted = 128;

  StepAllocationTest()
      : harness_(MakeHarnessOptions({.usable_pages = 64}, GetParam())),
        runner_(&harness_.runner),
        core_(harness_.options, harness_.cache.get(), &runner_, &harness_.clock, &harness_.limiter,
              &harness_.probe) {
    harness_.runner.RecordSteps(false);
  }

  void Submit(const std::string& id, const SamplingParams& sampling) {
    Request request = MakeRequest(id, MakePrompt(++submitted_, 20), kWarmUp + kCounted + 8);
    request.sampling = sampling;
    request.accept_time = harness_.clock.Now();
    const auto live = std::make_shared<AcceptedRequest>(std::move(request), ++submitted_, 0,
                                                        std::make_shared<TokenStream>());
    harness_.probe.requests.Received();
    ASSERT_TRUE(harness_.limiter.EnterRequest(live->request.tenant, {}).ok());
    Signal arrived{.kind = Signal::Kind::kArrived, .request = live};
    core_.Handle(arrived, harness_.clock.Now());
    auto prompt = PrepareRequest(harness_.options,
                                 {.hash_key = harness_.cache->hash_key(),
                                  .page_size = harness_.cache->page_size(),
                                  .usable_pages = harness_.cache->usable_pages(),
                                  .demand = harness_.cache->demand()},
                                 *harness_.tokenizer, harness_.clock, *live);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    if (NeedsTokenTexts(live->request)) {
      AddTextRules(live->request,
                   std::make_shared<TokenTexts>(*harness_.tokenizer, harness_.options.vocab_size),
                   prompt->get());
    }
    ASSERT_TRUE(CountPrompt(live->request, &harness_.limiter, prompt->get()).ok());
    Signal prepared{.kind = Signal::Kind::kPrepared, .request = live, .status = absl::OkStatus()};
    prepared.prompt = *std::move(prompt);
    core_.Handle(prepared, harness_.clock.Now());
  }

  // Runs `steps` steps and returns the number of allocations outside the runner.
  std::uint64_t Allocations(std::int32_t steps) {
    const std::uint64_t before = NumAllocations() - runner_.allocations();
    for (std::int32_t i = 0; i < steps; ++i) {
      EXPECT_TRUE(core_.Step(harness_.clock.Now()));
      items_.clear();
      core_.TakeOutput(&items_);
    }
    return NumAllocations() - runner_.allocations() - before;
  }

  void Finish() {
    while (!core_.idle()) Allocations(1);
  }

  Harness harness_;
  UncountedRunner runner_;
  EngineCore core_;
  std::vector<OutputItem> items_;
  std::uint64_t submitted_ = 0;
};

TEST_P(StepAllocationTest, PenaltiesAllocateNothingPerOutputToken) {
  for (const Case& kind : Cases()) {
    SCOPED_TRACE(kind.name);
    for (const bool is_counted : {false, true}) {
      for (const char* id : {"a", "b", "c"}) Submit(kind.name + id, kind.sampling);
      Allocations(kWarmUp);
      const std::uint64_t allocations = Allocations(kCounted);
      if (is_counted) {
        // A few allocations occur as lists grow, in steps of any kind, but none per token.
        EXPECT_LT(allocations, kCounted / 8u);
      }
      Finish();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, StepAllocationTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace quire::engine
