// Numeric parity with Hugging Face transformers for one fixture of every special feature of the
// other families than Llama, read from the runner that the daemon uses.
// tests/testdata/models/README.md derives the tolerances.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

struct Fixture {
  const char* folder;
  // For longrope models: prompts that need more context than this are replayed separately, since
  // they use another rope table.
  std::uint32_t border = 1u << 30;
  // For quantized weights: kAuto keeps integers and quantizes activations to match, kNone does not.
  Quantization quantization = Quantization::kAuto;
};

void PrintTo(const Fixture& fixture, std::ostream* stream) {
  *stream << fixture.folder;
}

constexpr Fixture kFixtures[] = {
    {"mistral-window-bf16"}, {"ministral-bf16"},
    {"qwen2-bf16"},          {"qwen3-hd128-bf16"},
    {"smollm3-bf16"},        {"granite-bf16"},
    {"gemma2-bf16"},         {"gemma3-text-bf16"},
    {"phi3-bf16"},           {"phi3-longrope-bf16", 140},
    {"phi4-mini-bf16", 140}, {"olmo2-bf16"},
    {"mixtral-bf16"},        {"qwen3-moe-bf16"},
    {"gpt-oss-bf16"},        {"gpt-oss-mxfp4", 1u << 30, Quantization::kNone},
    {"deepseek-v2-bf16"},    {"deepseek-v2-lite-bf16"},
    {"deepseek-v3-bf16"},    {"deepseek-v3-noqlora-bf16"},
    {"olmo3-bf16"},          {"glm4-moe-bf16"},
    {"glm4-moe-lite-bf16"},  {"minimax-m2-bf16"},
    {"qwen3-next-bf16"},     {"qwen35-bf16"},
    {"qwen35-moe-bf16"},     {"llama4-bf16"},
    {"deepseek-v32-bf16"},   {"glm-moe-dsa-bf16"},
    {"granite-hybrid-bf16"}, {"nemotron-h-bf16"},
    {"lfm2-bf16"},           {"kimi-linear-bf16"},
    {"gemma4-bf16"},         {"gemma4-moe-bf16"}};

// Returns a factor on the errors that rounded pages may cause. The recorded error is that over all
// positions. The positions that are compared may have larger errors. A float64 model that rounds
// its pages has errors as large as those of the runner: 2.16 times the record for lfm2-bf16. For
// kimi-linear-bf16 in fp8_e4m3 it is 44.6 times, because one token chooses another expert.
double PageErrorOf(const std::string& folder) {
  if (folder == "lfm2-bf16") return 1.2;
  return folder == "kimi-linear-bf16" ? 1.5 : 1;
}

class FamiliesParityTest : public testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    auto read = ReadReference(GetParam().folder);
    ASSERT_TRUE(read.ok()) << read.status();
    reference_ = *std::move(read);
    ASSERT_GE(reference_.prompts.size(), 11u);
    auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam().folder));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }

  std::vector<ReplayedPrompt> MustReplay(ReplayOptions options) {
    options.quantization = GetParam().quantization;
    auto replayed = ReplayByContext(files_, reference_, options, GetParam().border);
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *std::move(replayed) : std::vector<ReplayedPrompt>();
  }

  Reference reference_;
  formats::ModelFiles files_ = formats::ModelFiles::FromMemory("", {});
};

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST_P(FamiliesParityTest, Float32PagesGiveTheReferenceTokensAndLogits) {
  const auto got = MustReplay({.threads = 2});
  ASSERT_EQ(got.size(), reference_.prompts.size());
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s: f32 pages, logits differ by %.2e relative, %.2e at most\n", GetParam().folder,
              deviation.relative, deviation.max_abs);
  EXPECT_LE(deviation.relative, kMaxRelative);
  EXPECT_LE(deviation.max_abs, kMaxAbsolute);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const ReferencePrompt& want = reference_.prompts[i];
    EXPECT_EQ(got[i].sampled, want.greedy) << want.id;
    for (std::size_t step = 0; step < want.greedy.size(); ++step) {
      EXPECT_NEAR(got[i].logprobs[step], want.greedy_logprobs[step], kMaxAbsolute)
          << want.id << " step " << step;
    }
    for (std::size_t step = 0; step < want.top5_ids.size(); ++step) {
      EXPECT_EQ(got[i].top_ids[step][0], want.top5_ids[step][0]);
      for (std::size_t rank = 0; rank < want.top5_ids[step].size(); ++rank) {
        EXPECT_NEAR(got[i].top_logprobs[step][rank], want.top5_logprobs[step][rank], kMaxAbsolute);
      }
    }
  }
}

TEST_P(FamiliesParityTest, Bf16PagesStayWithinTwiceTheRecordedError) {
  const auto got = MustReplay({.kv_dtype = DType::kBF16, .threads = 2, .feed_reference = true});
  ASSERT_EQ(got.size(), reference_.prompts.size());
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s: bf16 pages differ by %.2e relative, recorded %.2e\n", GetParam().folder,
              deviation.relative, reference_.bf16_cache_error);
  EXPECT_LE(deviation.relative, 2 * PageErrorOf(GetParam().folder) * reference_.bf16_cache_error);
  // Rounded pages must have an effect, otherwise the pages were not bf16.
  EXPECT_GT(deviation.relative, kMaxRelative);
}

// As in llama_parity_test.cc, int8 loses four times and fp8_e4m3 sixteen times as much as bf16.
TEST_P(FamiliesParityTest, QuantizedPagesLoseAtMostTheirElementError) {
  for (const auto& [dtype, times] : {std::pair{DType::kI8, 4}, {DType::kF8E4M3, 16}}) {
    const auto got = MustReplay({.kv_dtype = dtype, .threads = 2, .feed_reference = true});
    ASSERT_EQ(got.size(), reference_.prompts.size());
    const Deviation deviation = CompareLogits(got, reference_);
    std::printf("%s: %s pages differ by %.2e relative, %.1f times bf16\n", GetParam().folder,
                std::string(DTypeName(dtype)).c_str(), deviation.relative,
                deviation.relative / reference_.bf16_cache_error);
    EXPECT_LE(deviation.relative,
              2 * times * PageErrorOf(GetParam().folder) * reference_.bf16_cache_error)
        << DTypeName(dtype);
    EXPECT_GT(deviation.relative, kMaxRelative) << DTypeName(dtype);
  }
}

TEST_P(FamiliesParityTest, BitsDependOnTheSequenceOnly) {
  const auto together = MustReplay({.threads = 1, .seed = 3});
  const auto threaded = MustReplay({.threads = 3, .chunk = 7, .seed = 4, .preempt_at = 9});
  ASSERT_EQ(together.size(), reference_.prompts.size());
  ASSERT_EQ(threaded.size(), reference_.prompts.size());
  for (std::size_t i = 0; i < together.size(); ++i) {
    SCOPED_TRACE(reference_.prompts[i].id);
    EXPECT_EQ(together[i].sampled, threaded[i].sampled);
    ExpectSameBits(together[i].logits, threaded[i].logits);
    ExpectSameBits(together[i].logprobs, threaded[i].logprobs);
  }
  // One short prompt, and one longer than every window and border.
  for (const std::size_t i : {std::size_t{4}, std::size_t{9}}) {
    SCOPED_TRACE(reference_.prompts[i].id);
    for (const std::uint32_t chunk : {256u, 64u, 1u}) {
      const auto alone = MustReplay({.threads = 2, .chunk = chunk, .seed = 5, .only = {i}});
      ASSERT_EQ(alone.size(), 1u);
      EXPECT_EQ(together[i].sampled, alone[0].sampled);
      ExpectSameBits(together[i].logits, alone[0].logits);
      ExpectSameBits(together[i].logprobs, alone[0].logprobs);
    }
  }
}

TEST_P(FamiliesParityTest, ChunksOfAnySizeGiveTheBitsOfOnePass) {
  for (const DType pages : {DType::kF32, DType::kBF16}) {
    const auto whole =
        MustReplay({.kv_dtype = pages, .threads = 2, .chunk = 512, .seed = 3, .generated = 8});
    ASSERT_EQ(whole.size(), reference_.prompts.size());
    for (const std::uint32_t chunk : {1u, 7u, 64u}) {
      const auto got = MustReplay(
          {.kv_dtype = pages, .threads = 3, .chunk = chunk, .seed = 4 + chunk, .generated = 8});
      ASSERT_EQ(got.size(), whole.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(absl::StrCat(reference_.prompts[i].id, " in chunks of ", chunk));
        EXPECT_EQ(got[i].sampled, whole[i].sampled);
        ExpectSameBits(got[i].logits, whole[i].logits);
      }
    }
  }
}

// A much smaller error than the recorded one would mean that most products did not round.
TEST_P(FamiliesParityTest, Bf16ActivationsHaveTheRecordedError) {
  for (const DType pages : {DType::kF32, DType::kBF16}) {
    const auto got = MustReplay({.kv_dtype = pages,
                                 .threads = 2,
                                 .feed_reference = true,
                                 .cpu_activations = kernels::CpuActivations::kBF16});
    const auto ratio =
        Bf16ErrorRatio(got, reference_, absl::StrCat("models/", GetParam().folder), pages);
    ASSERT_TRUE(ratio.ok()) << ratio.status();
    EXPECT_LE(ratio->relative, 1.5);
    EXPECT_GE(ratio->relative, 1 / 1.5);
    if (pages == DType::kF32) {
      EXPECT_LE(ratio->max_abs, 1.5);
    }
  }
}

TEST_P(FamiliesParityTest, Bf16ActivationBitsDependOnTheSequenceOnly) {
  constexpr auto kBF16 = kernels::CpuActivations::kBF16;
  for (const DType pages : {DType::kF32, DType::kBF16}) {
    const auto together =
        MustReplay({.kv_dtype = pages, .threads = 1, .seed = 3, .cpu_activations = kBF16});
    const auto other = MustReplay({.kv_dtype = pages,
                                   .threads = 3,
                                   .chunk = 7,
                                   .seed = 4,
                                   .preempt_at = 9,
                                   .cpu_activations = kBF16});
    const auto alone = MustReplay({.kv_dtype = pages,
                                   .threads = 2,
                                   .chunk = 256,
                                   .seed = 5,
                                   .only = {9},
                                   .cpu_activations = kBF16});
    ASSERT_EQ(together.size(), reference_.prompts.size());
    ASSERT_EQ(other.size(), together.size());
    ASSERT_EQ(alone.size(), 1u);
    for (std::size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(together[i].sampled, other[i].sampled);
      ExpectSameBits(together[i].logits, other[i].logits);
      ExpectSameBits(together[i].logprobs, other[i].logprobs);
    }
    EXPECT_EQ(together[9].sampled, alone[0].sampled);
    ExpectSameBits(together[9].logits, alone[0].logits);
  }
}

TEST_P(FamiliesParityTest, HiddenStatesOfEveryLayerAgree) {
  const ReferencePrompt& prompt = reference_.prompts[4];
  ASSERT_FALSE(prompt.hidden.empty());
  const auto hidden =
      ReplayHidden(files_, prompt, {.threads = 2, .quantization = GetParam().quantization});
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  EXPECT_LE(Compare(*hidden, prompt.hidden).relative, kMaxRelative);
  // Each plane is compared separately, so that a large one does not hide a small one.
  ASSERT_EQ(hidden->size(), prompt.hidden.size());
  const std::size_t planes = reference_.num_layers + 2;
  const std::size_t plane = hidden->size() / planes;
  for (std::size_t i = 0; i < planes; ++i) {
    const auto part = [&](const std::vector<float>& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * plane);
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(plane));
    };
    EXPECT_LE(Compare(part(*hidden), part(prompt.hidden)).relative, kMaxRelative) << "plane " << i;
  }
}

// Models with recurrent layers or short convolutions.
class RecurrentParityTest : public FamiliesParityTest {};

// A state that is lost or taken from another sequence changes the logits, so the comparisons above
// depend on the states.
TEST_P(RecurrentParityTest, LogitsDependOnTheStates) {
  const auto got =
      MustReplay({.edit_state = [](const ModelSpec&, const LayerGroups&, std::span<float> slot) {
        for (float& value : slot) value *= 0.5f;
      }});
  EXPECT_GT(CompareLogits(got, reference_).relative, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RecurrentParityTest,
                         testing::Values(Fixture{"qwen3-next-bf16"}, Fixture{"qwen35-bf16"},
                                         Fixture{"qwen35-moe-bf16"}, Fixture{"granite-hybrid-bf16"},
                                         Fixture{"nemotron-h-bf16"}, Fixture{"kimi-linear-bf16"},
                                         Fixture{"lfm2-bf16"}),
                         [](const auto& info) {
                           std::string name = info.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(Fixtures, FamiliesParityTest, testing::ValuesIn(kFixtures),
                         [](const auto& info) {
                           std::string name = info.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
