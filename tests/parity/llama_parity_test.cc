// Numeric parity with Hugging Face transformers for every Llama fixture, read from the runner that
// the daemon uses. tests/testdata/models/README.md derives the tolerances.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

const char* const kFolders[] = {"llama-bias-bf16",
                                "llama-extra-buffers-bf16",
                                "llama-gqa-hd80-bf16",
                                "llama-gqa-tied-bf16",
                                "llama-headdim-bf16",
                                "llama-mha-f32",
                                "llama-newstyle-bf16",
                                "llama-rope-linear-bf16",
                                "llama-rope-llama3-bf16",
                                "llama-rope-yarn-bf16",
                                "llama-rope-yarn-newstyle-bf16",
                                "llama-sharded-bf16",
                                "llama-theta500k-multieos-bf16",
                                "llama-untied-f16",
                                "llama-vocab-padded-bf16"};

class LlamaParityTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto read = ReadReference(GetParam());
    ASSERT_TRUE(read.ok()) << read.status();
    reference_ = *std::move(read);
    ASSERT_EQ(reference_.prompts.size(), 11u);
    auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam()));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }

  std::vector<ReplayedPrompt> MustReplay(const formats::ModelFiles& files,
                                         const ReplayOptions& options) {
    auto replayed = Replay(files, reference_, options);
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *std::move(replayed) : std::vector<ReplayedPrompt>();
  }

  Reference reference_;
  formats::ModelFiles files_ = formats::ModelFiles::FromMemory("", {});
};

TEST_P(LlamaParityTest, Float32PagesGiveTheReferenceTokensAndLogits) {
  for (const int threads : {1, 2}) {
    const auto got = MustReplay(files_, {.threads = threads});
    const Deviation deviation = CompareLogits(got, reference_);
    std::printf("%s: %d threads, logits differ by %.2e relative, %.2e at most\n", GetParam(),
                threads, deviation.relative, deviation.max_abs);
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
          EXPECT_NEAR(got[i].top_logprobs[step][rank], want.top5_logprobs[step][rank],
                      kMaxAbsolute);
        }
      }
    }
    EXPECT_TRUE(Passes(got, reference_));
  }
}

TEST_P(LlamaParityTest, Bf16PagesStayWithinTwiceTheRecordedError) {
  const auto got =
      MustReplay(files_, {.kv_dtype = DType::kBF16, .threads = 2, .feed_reference = true});
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s: bf16 pages differ by %.2e relative, recorded %.2e\n", GetParam(),
              deviation.relative, reference_.bf16_cache_error);
  EXPECT_LE(deviation.relative, 2 * reference_.bf16_cache_error);
  // Rounded pages must have an effect, otherwise the pages were not bf16.
  EXPECT_GT(deviation.relative, kMaxRelative);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const ReferencePrompt& want = reference_.prompts[i];
    for (std::size_t step = 0; step < want.greedy.size(); ++step) {
      // A log-probability changes by its own logit and by the sum, at most twice the largest
      // change.
      EXPECT_NEAR(got[i].logprobs[step], want.greedy_logprobs[step],
                  4 * reference_.bf16_cache_max_abs)
          << want.id << " step " << step;
    }
  }
}

// A much smaller error than the recorded one would mean that most products did not round.
TEST_P(LlamaParityTest, Bf16ActivationsHaveTheRecordedError) {
  for (const DType pages : {DType::kF32, DType::kBF16}) {
    const auto got = MustReplay(files_, {.kv_dtype = pages,
                                         .threads = 2,
                                         .feed_reference = true,
                                         .cpu_activations = kernels::CpuActivations::kBF16});
    const auto ratio = Bf16ErrorRatio(got, reference_, absl::StrCat("models/", GetParam()), pages);
    ASSERT_TRUE(ratio.ok()) << ratio.status();
    EXPECT_LE(ratio->relative, 1.5);
    EXPECT_GE(ratio->relative, 1 / 1.5);
    if (pages == DType::kF32) {
      EXPECT_LE(ratio->max_abs, 1.5);
    }
  }
}

// The relative error of an element is 0.16 % in bf16 (root mean square) and 2.5 % in fp8_e4m3, 16
// times as much. In int8 it is 0.6 % of the typical value of its head (steps of 1/127 of the
// largest), 4 times as much. The bounds have a margin of 2, like that of bf16.
TEST_P(LlamaParityTest, QuantizedPagesLoseAtMostTheirElementError) {
  for (const auto& [dtype, times] : {std::pair{DType::kI8, 4}, {DType::kF8E4M3, 16}}) {
    const auto got = MustReplay(files_, {.kv_dtype = dtype, .threads = 2, .feed_reference = true});
    const Deviation deviation = CompareLogits(got, reference_);
    std::printf("%s: %s pages differ by %.2e relative, %.1f times bf16\n", GetParam(),
                std::string(DTypeName(dtype)).c_str(), deviation.relative,
                deviation.relative / reference_.bf16_cache_error);
    EXPECT_LE(deviation.relative, 2 * times * reference_.bf16_cache_error) << DTypeName(dtype);
    EXPECT_GT(deviation.relative, reference_.bf16_cache_error) << DTypeName(dtype);
  }
}

TEST_P(LlamaParityTest, QuantizedPageBitsDependOnTheSequenceOnly) {
  for (const DType dtype : {DType::kI8, DType::kF8E4M3}) {
    const auto one = MustReplay(files_, {.kv_dtype = dtype, .threads = 1, .seed = 3});
    const auto other = MustReplay(files_, {.kv_dtype = dtype, .threads = 3, .chunk = 7, .seed = 8});
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].sampled, other[i].sampled) << DTypeName(dtype);
      ASSERT_EQ(one[i].logits.size(), other[i].logits.size());
      EXPECT_EQ(std::memcmp(one[i].logits.data(), other[i].logits.data(),
                            one[i].logits.size() * sizeof(float)),
                0)
          << DTypeName(dtype);
    }
  }
}

TEST_P(LlamaParityTest, BitsDependOnTheSequenceOnly) {
  const auto together = MustReplay(files_, {.threads = 1, .seed = 3});
  const auto threaded = MustReplay(files_, {.threads = 3, .chunk = 7, .seed = 4});
  for (std::size_t i = 0; i < reference_.prompts.size(); ++i) {
    const auto alone = MustReplay(files_, {.threads = 2, .chunk = 256, .seed = 5, .only = {i}});
    ASSERT_EQ(alone.size(), 1u);
    for (const ReplayedPrompt* other : {&threaded[i], &alone[0]}) {
      EXPECT_EQ(together[i].sampled, other->sampled);
      ASSERT_EQ(together[i].logits.size(), other->logits.size());
      EXPECT_EQ(std::memcmp(together[i].logits.data(), other->logits.data(),
                            other->logits.size() * sizeof(float)),
                0);
      EXPECT_EQ(std::memcmp(together[i].logprobs.data(), other->logprobs.data(),
                            other->logprobs.size() * sizeof(float)),
                0);
    }
  }
}

TEST_P(LlamaParityTest, HiddenStatesOfEveryLayerAgree) {
  const ReferencePrompt& prompt = reference_.prompts[4];
  ASSERT_FALSE(prompt.hidden.empty());
  auto hidden = ReplayHidden(files_, prompt, {.threads = 2});
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  EXPECT_LE(Compare(*hidden, prompt.hidden).relative, kMaxRelative);
}

// Three small injected faults prove that the comparison can fail. Each must be detected.
TEST_P(LlamaParityTest, DetectsOneChangedWeight) {
  EditedFixture edited(GetParam());
  // Flips the sign of one element of at least 0.1.
  bool changed = false;
  edited.EditTensors("model\\.layers\\.1\\.mlp\\.down_proj\\.weight$",
                     [&](std::vector<float>& values) {
                       for (float& value : values) {
                         if (std::abs(value) < 0.1f) continue;
                         value = -value;
                         changed = true;
                         return;
                       }
                     });
  ASSERT_TRUE(changed);
  const auto got = MustReplay(edited.Files(), {});
  EXPECT_FALSE(Passes(got, reference_));
  EXPECT_GT(CompareLogits(got, reference_).relative, kMaxRelative);
}

TEST_P(LlamaParityTest, DetectsOneChangedRopeFactor) {
  EditedFixture edited(GetParam());
  nlohmann::json& config = edited.config();
  const auto scale = [](nlohmann::json& value) { value = value.get<double>() * 1.01; };
  if (config.contains("rope_parameters")) {
    scale(config["rope_parameters"]["factor"]);
  } else if (config.contains("rope_scaling") && !config["rope_scaling"].is_null()) {
    scale(config["rope_scaling"]["factor"]);
  } else {
    config["rope_theta"] = 1.01 * config.value("rope_theta", 10000.0);
  }
  const auto got = MustReplay(edited.Files(), {});
  EXPECT_FALSE(Passes(got, reference_));
  EXPECT_GT(CompareLogits(got, reference_).relative, kMaxRelative);
}

TEST_P(LlamaParityTest, DetectsOneChangedPageId) {
  const auto untouched = MustReplay(files_, {});
  EXPECT_TRUE(Passes(untouched, reference_));
  const auto got = MustReplay(files_, {.swap_one_page = true});
  EXPECT_FALSE(Passes(got, reference_));
  EXPECT_EQ(CountTokenMismatches(got, reference_), 1u) << "only the prompt with the wrong page";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LlamaParityTest, testing::ValuesIn(kFolders),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
