// The last layers of Gemma 4 write no K and V. On a GPU they compute only the tokens whose logits
// are wanted, with the bits that they have if all tokens are computed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/emulator.h"
#include "tests/models/cuda_stage.h"
#include "tests/models/test_files.h"
#include "tests/testing/paths.h"

namespace quire::models {
namespace {

// The tokens of a row in a step.
struct Part {
  std::uint32_t row;
  std::uint32_t cached;
  std::uint32_t count;
  std::uint32_t prompt;  // prompt tokens of them
  std::uint32_t wanted;  // last tokens with logits
};

// Rows wait for their logits, want several, decode, and begin behind their cached tokens. Batch
// rows are not in the order of the step.
const std::vector<std::vector<Part>> kSteps = {
    {{3, 0, 17, 17, 1}, {0, 0, 30, 30, 0}},
    {{0, 30, 20, 20, 3}, {1, 0, 13, 13, 0}, {3, 17, 1, 0, 1}},
    {{1, 13, 6, 6, 0}},
    {{1, 19, 4, 2, 3}, {3, 18, 1, 0, 1}},
};

class CudaTailTest : public testing::TestWithParam<DType> {
 protected:
  using Logits = std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<float>>;

  void SetUp() override { cuda_emulator::Reset(); }

  // Runs a step and adds the wanted logits to `logits`, by row and position. With `all`, the logits
  // of all tokens are computed.
  static void Run(Stage& stage, const std::vector<Part>& parts, bool all, Logits* logits) {
    const std::size_t vocab = stage.model().spec.vocab_size;
    runtime::StepBatch batch;
    std::vector<cache::RowStep> steps;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> places;
    for (const Part& part : parts) {
      ASSERT_TRUE(stage.cache().Reserve(BatchRow{part.row}, part.cached + part.count).ok());
      steps.push_back({BatchRow{part.row}, part.cached, part.count});
      const auto first = static_cast<std::uint32_t>(batch.token_ids.size());
      batch.rows.push_back({BatchRow{part.row}, part.cached, first, part.count, part.prompt});
      for (std::uint32_t i = 0; i < part.count; ++i) {
        const std::uint32_t position = part.cached + i;
        batch.token_ids.push_back(static_cast<std::int32_t>((part.row * 31 + position * 7) % 300));
        if (!all && i + part.wanted < part.count) continue;
        batch.logits_tokens.push_back(first + i);
        places.emplace_back(part.row, position);
      }
    }
    std::vector<float> out(places.size() * vocab);
    batch.logits_out = out.data();
    batch.kv = stage.cache().PrepareStep(steps);
    batch.copies = stage.cache().TakeCopies();
    batch.clears = stage.cache().TakeClears();
    ASSERT_TRUE(stage.runner().Run(batch).ok());
    const auto collected = stage.runner().Collect();
    ASSERT_TRUE(collected.ok()) << collected.status();
    stage.cache().CompleteStep();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto at = out.begin() + static_cast<std::ptrdiff_t>(i * vocab);
      (*logits)[places[i]].assign(at, at + static_cast<std::ptrdiff_t>(vocab));
    }
  }

  static void RunAll(DType dtype, bool all, Logits* logits) {
    Stage stage(/*cuda=*/true, dtype);
    const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/gemma4-bf16"));
    ASSERT_TRUE(files.ok()) << files.status();
    ASSERT_TRUE(stage.Start(*files).ok());
    for (const std::vector<Part>& step : kSteps) {
      const std::uint64_t moves = cuda_emulator::LaunchCount("gather_rows");
      const std::uint64_t plans = cuda_emulator::LaunchCount("attention plan");
      Run(stage, step, all, logits);
      if (!cuda_emulator::IsEmulated()) continue;
      // A tail moves x and the inputs per layer, twice each, and plans its attention. Without
      // wanted logits it computes nothing.
      const bool has_tail = !all && std::any_of(step.begin(), step.end(),
                                                [](const Part& part) { return part.wanted > 0; });
      EXPECT_EQ(cuda_emulator::LaunchCount("gather_rows") - moves, has_tail ? 4u : 0u);
      EXPECT_EQ(cuda_emulator::LaunchCount("attention plan") - plans, has_tail ? 4u : 2u);
    }
    EXPECT_TRUE(stage.pool().CheckIntegrity().ok()) << stage.pool().CheckIntegrity();
  }
};

TEST_P(CudaTailTest, WantedTokensHaveTheBitsOfAStepWithAllLogits) {
  Logits wanted, all;
  RunAll(GetParam(), /*all=*/false, &wanted);
  RunAll(GetParam(), /*all=*/true, &all);
  EXPECT_EQ(wanted.size(), 9u);
  for (const auto& [place, logits] : wanted) {
    ASSERT_TRUE(all.contains(place));
    EXPECT_EQ(std::memcmp(logits.data(), all[place].data(), logits.size() * sizeof(float)), 0)
        << "row " << place.first << " position " << place.second;
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, CudaTailTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace quire::models
