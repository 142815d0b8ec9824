// Errors that the fake runner must detect in an engine with overlap scheduling. Otherwise tests
// that pass on it would prove nothing.

#include "tests/engine/fake_runner.h"

#include "gtest/gtest.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

constexpr std::uint32_t kP = 16;

// Two rows of a tiny cache. Row 0 computes 20 tokens and samples the next one, which is in flight.
class FakeRunnerDeathTest : public ::testing::Test {
 protected:
  FakeRunnerDeathTest() {
    EXPECT_TRUE(cache_->Reserve(BatchRow{0}, 2 * kP).ok());
    Fill(&first_, BatchRow{0}, 0, std::vector<std::int32_t>(20, 5));
    EXPECT_TRUE(runner_.Run(first_).ok());
  }

  void Fill(runtime::StepBatch* batch, BatchRow row, std::uint32_t cached,
            std::vector<std::int32_t> tokens) {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    batch->token_ids = std::move(tokens);
    batch->rows = {
        {.batch_row = row, .cache_length = cached, .first_token = 0, .num_tokens = count}};
    batch->logits_tokens = {count - 1};
    batch->samples.resize(1);
    batch->samples[0].row.position = cached + count;
    const cache::RowStep step{row, cached, count};
    batch->kv = cache_->PrepareStep({&step, 1});
  }
  void RunSecond(BatchRow row, std::uint32_t cached, std::vector<std::int32_t> tokens) {
    Fill(&second_, row, cached, std::move(tokens));
    runner_.Run(second_).IgnoreError();
  }

  std::unique_ptr<cache::CacheManager> cache_ =
      MakeCache({.usable_pages = 4, .page_size = kP, .max_rows = 2, .max_context_tokens = 4 * kP});
  FakeRunner runner_{{.num_blocks = 5, .page_size = kP, .max_steps_in_flight = 2}};
  runtime::StepBatch first_, second_;
};

TEST_F(FakeRunnerDeathTest, AcceptsTheTokenOfThePreviousStep) {
  RunSecond(BatchRow{0}, 20, {-1});
  EXPECT_TRUE(runner_.Collect().ok());
  EXPECT_TRUE(runner_.Collect().ok());
}

TEST_F(FakeRunnerDeathTest, RejectsAMissingSample) {
  EXPECT_DEATH(RunSecond(BatchRow{0}, 20, {-2}), "index < before.samples.size");
}

TEST_F(FakeRunnerDeathTest, RejectsATokenOfAnotherPosition) {
  EXPECT_DEATH(RunSecond(BatchRow{0}, 20, {4, -1}), "sample.row.position == row.cache_length");
}

TEST_F(FakeRunnerDeathTest, RejectsATokenOfAnotherRow) {
  EXPECT_TRUE(cache_->Reserve(BatchRow{1}, 2 * kP).ok());
  EXPECT_DEATH(RunSecond(BatchRow{1}, 20, {-1}), "sampled_for->batch_row == row.batch_row");
}

TEST_F(FakeRunnerDeathTest, RejectsATokenThatWasNotSampled) {
  EXPECT_TRUE(runner_.Collect().ok());
  EXPECT_DEATH(RunSecond(BatchRow{0}, 20, {-1}), "in_flight_.empty");
}

TEST_F(FakeRunnerDeathTest, RejectsAPageWithANewOwnerInFlight) {
  cache_->CompleteStep();  // not true: the step is still in flight
  cache_->Free(BatchRow{0});
  EXPECT_TRUE(cache_->Reserve(BatchRow{1}, 2 * kP).ok());
  EXPECT_DEATH(RunSecond(BatchRow{1}, 0, {5, 6}), "writes");
}

TEST_F(FakeRunnerDeathTest, RejectsAPageContinuedAtTheWrongPosition) {
  EXPECT_DEATH(RunSecond(BatchRow{0}, 19, {5}), "continues");
}

TEST_F(FakeRunnerDeathTest, RejectsABatchThatChangesInFlight) {
  first_.token_ids[3] = 6;
  EXPECT_DEATH(runner_.Collect().IgnoreError(), "batch.token_ids == launch.tokens");
}

TEST_F(FakeRunnerDeathTest, RejectsASampleThatChangesInFlight) {
  first_.samples[0].row.position = 3;
  EXPECT_DEATH(runner_.Collect().IgnoreError(), "FingerprintOf");
}

}  // namespace
}  // namespace quire::engine
