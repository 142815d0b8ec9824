// Tensor-parallel models on several emulated GPUs. The joint logits are compared with transformers,
// and bitwise where bits must not change.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/emulated_nccl.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

// Indices of prompts of 2, 17, 65 and 37 tokens, since emulation is slow.
constexpr std::size_t kSome[] = {1, 4, 6, 10};
constexpr std::uint32_t kGenerated = 6;

RankReplays ReplayOnGpus(const std::string& folder, const std::vector<Reference>& references,
                         ReplayOptions options, ReplayCounters* counters = nullptr) {
  const auto files = formats::ModelFiles::FromDirectory(FixturePath(folder));
  EXPECT_TRUE(files.ok()) << files.status();
  const kernels::EmulatedRanks gpus(static_cast<std::uint32_t>(references.size()));
  std::vector<kernels::Communicator*> group;
  for (std::uint32_t rank = 0; rank < gpus.size(); ++rank) group.push_back(&gpus.comm(rank));
  options.cuda = true;
  options.generated = kGenerated;
  return ReplayOnRanks(*files, references, options, group, counters);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSameBits(const ReplayedPrompt& a, const ReplayedPrompt& b) {
  EXPECT_EQ(a.sampled, b.sampled);
  EXPECT_TRUE(SameBits(a.logits, b.logits));
  EXPECT_TRUE(SameBits(a.logprobs, b.logprobs));
}

// Reads the prompts of kSome.
Reference MustRead(const std::string& folder) {
  auto reference = ReadReference(folder);
  EXPECT_TRUE(reference.ok()) << reference.status();
  if (!reference.ok()) return Reference();
  std::vector<ReferencePrompt> some;
  for (const std::size_t i : kSome) some.push_back(reference->prompts[i]);
  reference->prompts = std::move(some);
  return *std::move(reference);
}

struct Case {
  const char* folder;
  std::uint32_t ranks;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.folder << " on " << c.ranks;
}

class RankPartsCudaTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    cuda_emulator::Reset();
    reference_ = MustRead(GetParam().folder);
    ASSERT_FALSE(reference_.prompts.empty());
  }

  // Returns the result of rank 0 after asserting that all ranks agree.
  std::vector<ReplayedPrompt> MustReplay(const ReplayOptions& options,
                                         ReplayCounters* counters = nullptr) {
    const RankReplays results = ReplayOnGpus(
        GetParam().folder, std::vector<Reference>(GetParam().ranks, reference_), options, counters);
    for (const auto& result : results) {
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) return {};
      EXPECT_EQ(result->size(), results[0]->size());
      for (std::size_t i = 0; i < result->size(); ++i) {
        ExpectSameBits((*result)[i], (*results[0])[i]);
      }
    }
    return *results[0];
  }

  static ReplayOptions With(DType dtype) {
    return {.kv_dtype = dtype, .activation = dtype, .graphs = false};
  }

  Reference reference_;
};

TEST_P(RankPartsCudaTest, LogitsEqualTheReferenceOnEveryRank) {
  const auto got = MustReplay(With(DType::kF32));
  ASSERT_EQ(got.size(), reference_.prompts.size());
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s on %u GPUs: logits differ by %.2e relative, %.2e at most\n", GetParam().folder,
              GetParam().ranks, deviation.relative, deviation.max_abs);
  EXPECT_LE(deviation.relative, kMaxRelative);
  EXPECT_LE(deviation.max_abs, kMaxAbsolute);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::vector<std::int32_t>& greedy = reference_.prompts[i].greedy;
    EXPECT_EQ(got[i].sampled,
              std::vector<std::int32_t>(greedy.begin(), greedy.begin() + kGenerated));
  }
}

TEST_P(RankPartsCudaTest, HalfPathStaysWithinTwiceTheRecordedError) {
  ReplayOptions options = With(DType::kBF16);
  options.feed_reference = true;
  const Deviation deviation = CompareLogits(MustReplay(options), reference_);
  std::printf("%s on %u GPUs: bf16 logits differ by %.2e relative, recorded %.2e\n",
              GetParam().folder, GetParam().ranks, deviation.relative, reference_.half_error);
  EXPECT_LE(deviation.relative, 2 * reference_.half_error);
  EXPECT_GT(deviation.relative, kMaxRelative);
}

TEST_P(RankPartsCudaTest, BitsDependOnTheSequenceOnly) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto together = MustReplay(With(dtype));
    ASSERT_EQ(together.size(), reference_.prompts.size());
    ReplayOptions options = With(dtype);
    options.chunk = 7;
    options.seed = 9;
    options.overlap = true;
    const auto cut = MustReplay(options);
    ASSERT_EQ(cut.size(), together.size());
    for (std::size_t i = 0; i < together.size(); ++i) ExpectSameBits(cut[i], together[i]);
    options.only = {2};
    const auto alone = MustReplay(options);
    ASSERT_EQ(alone.size(), 1u);
    ExpectSameBits(alone[0], together[2]);
  }
}

// 4 ranks share 2 KV heads. Biases on o and down are added once. Some branches have a norm after
// them.
INSTANTIATE_TEST_SUITE_P(Fixtures, RankPartsCudaTest,
                         testing::Values(Case{"llama-bias-bf16", 2}, Case{"llama-bias-bf16", 4},
                                         Case{"llama-rope-llama3-bf16", 2},
                                         Case{"gemma2-bf16", 2}));

// One rank's step is rejected. The other rank waits for its sums and gets the same error.
TEST(RankPartsCudaErrorsTest, StepThatFailsOnOneRankEndsOnAll) {
  cuda_emulator::Reset();
  const Reference good = MustRead("llama-bias-bf16");
  ASSERT_FALSE(good.prompts.empty());
  Reference bad = good;
  bad.prompts.back().tokens.back() = 1 << 20;
  const RankReplays results = ReplayOnGpus("llama-bias-bf16", {good, bad}, {.graphs = false});
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInvalidArgument) << results[1].status();
  EXPECT_EQ(results[0].status(), results[1].status());
  EXPECT_EQ(kernels::NumNcclComms(), 0u);
}

TEST(RankPartsCudaErrorsTest, ReportsRanksWithDifferentSteps) {
  cuda_emulator::Reset();
  const Reference good = MustRead("llama-bias-bf16");
  ASSERT_FALSE(good.prompts.empty());
  Reference longer = good;
  longer.prompts[0].tokens.push_back(5);
  const RankReplays results = ReplayOnGpus("llama-bias-bf16", {good, longer}, {.graphs = false});
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results[0].status().message()), testing::HasSubstr("begins a step of"));
  EXPECT_EQ(results[0].status(), results[1].status());
}

TEST(RankPartsCudaErrorsTest, RejectsDecodeGraphs) {
  cuda_emulator::Reset();
  const Reference good = MustRead("llama-bias-bf16");
  for (const auto& result : ReplayOnGpus("llama-bias-bf16", {good, good}, {.graphs = true})) {
    EXPECT_EQ(result.status(),
              absl::UnimplementedError(
                  "decode graphs are not supported for a model that is divided among GPUs"));
  }
}

}  // namespace
}  // namespace quire::models::parity
