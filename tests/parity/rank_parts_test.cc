// Tensor-parallel models on several CPU ranks. The joint logits are compared with transformers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "kernels/comm/host_communicator.h"
#include "models/config/rank_part.h"
#include "runtime/model.h"
#include "runtime/runner_options.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

// Replays on a group of references.size() ranks.
RankReplays ReplayOnCpus(const std::string& folder, const std::vector<Reference>& references,
                         const ReplayOptions& options) {
  const auto files = formats::ModelFiles::FromDirectory(FixturePath(folder));
  EXPECT_TRUE(files.ok()) << files.status();
  auto group =
      kernels::HostCommunicator::CreateGroup(static_cast<std::uint32_t>(references.size()));
  EXPECT_TRUE(group.ok()) << group.status();
  std::vector<kernels::Communicator*> ranks;
  for (const auto& rank : *group) ranks.push_back(rank.get());
  return ReplayOnRanks(*files, references, options, ranks);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Reference MustRead(const std::string& folder) {
  auto reference = ReadReference(folder);
  EXPECT_TRUE(reference.ok()) << reference.status();
  return reference.ok() ? *std::move(reference) : Reference();
}

struct Case {
  const char* folder;
  std::uint32_t ranks;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.folder << " on " << c.ranks;
}

class RankPartsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    reference_ = MustRead(GetParam().folder);
    ASSERT_FALSE(reference_.prompts.empty());
  }

  // Returns the result of rank 0 after asserting that all ranks agree.
  std::vector<ReplayedPrompt> MustReplay(const ReplayOptions& options) {
    const RankReplays results = ReplayOnCpus(
        GetParam().folder, std::vector<Reference>(GetParam().ranks, reference_), options);
    for (const auto& result : results) {
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) return {};
      EXPECT_EQ(result->size(), results[0]->size());
      for (std::size_t i = 0; i < result->size(); ++i) {
        EXPECT_TRUE(SameBits((*result)[i].logits, (*results[0])[i].logits));
        EXPECT_EQ((*result)[i].sampled, (*results[0])[i].sampled);
      }
    }
    return *results[0];
  }

  Reference reference_;
};

TEST_P(RankPartsTest, LogitsEqualTheReferenceOnEveryRank) {
  const auto got = MustReplay({});
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s on %u ranks: logits differ by %.2e relative, %.2e at most\n", GetParam().folder,
              GetParam().ranks, deviation.relative, deviation.max_abs);
  EXPECT_TRUE(Passes(got, reference_));
}

TEST_P(RankPartsTest, BitsDependOnTheSequenceOnly) {
  const auto together = MustReplay({.generated = 8});
  const auto cut = MustReplay({.threads = 2, .chunk = 5, .seed = 9, .generated = 8});
  ASSERT_EQ(together.size(), reference_.prompts.size());
  ASSERT_EQ(cut.size(), together.size());
  for (std::size_t i = 0; i < together.size(); ++i) {
    EXPECT_TRUE(SameBits(cut[i].logits, together[i].logits)) << i;
    EXPECT_EQ(cut[i].logprobs, together[i].logprobs) << i;
  }
  for (const std::size_t i : {std::size_t{1}, together.size() - 1}) {
    const auto alone = MustReplay({.chunk = 3, .seed = 4, .only = {i}, .generated = 8});
    ASSERT_EQ(alone.size(), 1u);
    EXPECT_TRUE(SameBits(alone[0].logits, together[i].logits)) << i;
    EXPECT_EQ(alone[0].logprobs, together[i].logprobs) << i;
  }
}

// 4 ranks share 2 KV heads, or 1. Biases on o and down are added once.
INSTANTIATE_TEST_SUITE_P(Fixtures, RankPartsTest,
                         testing::Values(Case{"llama-bias-bf16", 2}, Case{"llama-bias-bf16", 4},
                                         Case{"llama-newstyle-bf16", 2},
                                         Case{"llama-newstyle-bf16", 4},
                                         Case{"llama-gqa-tied-bf16", 4}, Case{"llama-mha-f32", 2},
                                         Case{"qwen2-bf16", 4}, Case{"gemma2-bf16", 2}));

// Loads rank 0's part.
absl::StatusOr<std::unique_ptr<runtime::Model>> LoadPart(const std::string& folder,
                                                         runtime::LoadOptions options) {
  ThreadPool pool(1);
  auto backend = kernels::Backend::Create(Device::Cpu(), &pool, kernels::CpuActivations::kInt8);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return runtime::LoadModel(FixturePath(folder), *backend, options);
}

TEST(RankPartsLoadTest, RankLoadsItsPartOfTheLayers) {
  const auto whole = LoadPart("llama-newstyle-bf16", {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  std::int64_t last = (*whole)->weight_bytes;
  for (const std::uint32_t size : {2u, 4u}) {
    const auto part = LoadPart("llama-newstyle-bf16", {.part = {.rank = 1, .size = size}});
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ((*part)->spec.layers[0].heads.num_heads, 4 / size);
    EXPECT_EQ((*part)->spec.layers[0].heads.num_kv_heads, 1u);
    EXPECT_EQ((*part)->spec.layers[0].dense.intermediate, 128 / size);
    EXPECT_EQ((*part)->fingerprint, (*whole)->fingerprint);
    EXPECT_LT((*part)->weight_bytes, last);
    last = (*part)->weight_bytes;
  }
}

TEST(RankPartsLoadTest, RejectsIndivisibleModelsByName) {
  const struct {
    const char* folder;
    std::uint32_t size;
    absl::StatusCode code;
    const char* text;
  } cases[] = {
      {"llama-bias-bf16", 3, absl::StatusCode::kInvalidArgument,
       "layer 0: num_attention_heads 4 cannot be divided among 3 devices"},
      {"olmo2-bf16", 2, absl::StatusCode::kUnimplemented, "heads.qk_norm over all heads"},
      {"mixtral-bf16", 2, absl::StatusCode::kUnimplemented, "a mixture of experts"},
      {"deepseek-v2-bf16", 2, absl::StatusCode::kUnimplemented, "layer 0: MLA cannot be divided"},
      {"gpt-oss-bf16", 2, absl::StatusCode::kUnimplemented, "cannot be divided among devices"},
      {"qwen35-bf16", 2, absl::StatusCode::kUnimplemented,
       "layer 0: a recurrent layer cannot be divided"},
      {"phi3-bf16", 2, absl::StatusCode::kUnimplemented, "self_attn.qkv_proj"},
  };
  for (const auto& c : cases) {
    const auto part = LoadPart(c.folder, {.part = {.rank = 0, .size = c.size}});
    EXPECT_EQ(part.status().code(), c.code) << c.folder << ": " << part.status();
    EXPECT_THAT(std::string(part.status().message()),
                testing::AllOf(testing::HasSubstr(c.folder), testing::HasSubstr(c.text)));
  }
  const auto beyond = LoadPart("llama-bias-bf16", {.part = {.rank = 2, .size = 2}});
  EXPECT_THAT(std::string(beyond.status().message()), testing::HasSubstr("rank 2 of 2"));
  const auto packed =
      LoadPart("llama-bias-bf16", {.packed_dir = "/tmp", .part = {.rank = 0, .size = 2}});
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(packed.status().message()), testing::HasSubstr("model.packed_dir"));
}

TEST(RankPartsLoadTest, CommunicatorMustMatchThePart) {
  const auto group = kernels::HostCommunicator::CreateGroup(2);
  ASSERT_TRUE(group.ok());
  ThreadPool pool(1);
  const auto cpu = kernels::Backend::Create(Device::Cpu(), &pool, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_TRUE(runtime::CheckCommunicator({}, {}, *cpu).ok());
  EXPECT_TRUE(
      runtime::CheckCommunicator({.rank = 1, .size = 2}, {.comm = (*group)[1].get()}, *cpu).ok());
  EXPECT_EQ(runtime::CheckCommunicator({.rank = 1, .size = 2}, {}, *cpu),
            absl::InvalidArgumentError("the communicator is of rank 0 of 1, the model's part is of "
                                       "rank 1 of 2"));
  EXPECT_FALSE(
      runtime::CheckCommunicator({.rank = 1, .size = 2}, {.comm = (*group)[0].get()}, *cpu).ok());
  EXPECT_FALSE(runtime::CheckCommunicator({}, {.comm = (*group)[0].get()}, *cpu).ok());
}

// One rank's step is rejected. The other rank waits for its sums and gets the same error.
TEST(RankPartsErrorsTest, StepThatFailsOnOneRankEndsOnAll) {
  const Reference good = MustRead("llama-bias-bf16");
  ASSERT_FALSE(good.prompts.empty());
  Reference bad = good;
  bad.prompts.back().tokens.back() = 1 << 20;
  const RankReplays results = ReplayOnCpus("llama-bias-bf16", {good, bad}, {});
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInvalidArgument) << results[1].status();
  EXPECT_EQ(results[0].status(), results[1].status());
}

}  // namespace
}  // namespace quire::models::parity
