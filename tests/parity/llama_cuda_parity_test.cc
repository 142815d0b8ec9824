// The Llama fixtures on an emulated GPU, with the kernels and host code of a real one. Results are
// compared with Hugging Face transformers, and bitwise where bits must not change.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "tests/cuda_emulator/emulator.h"
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
                                "llama-vocab-padded-bf16",
                                "qwen2-bf16"};

// Indices of prompts of 2, 17, 65 and 37 tokens, which the bitwise tests replay.
const std::vector<std::size_t> kSome = {1, 4, 6, 10};

class LlamaCudaParityTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    cuda_emulator::Reset();
    auto read = ReadReference(GetParam());
    ASSERT_TRUE(read.ok()) << read.status();
    reference_ = *std::move(read);
    auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam()));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }

  std::vector<ReplayedPrompt> MustReplay(ReplayOptions options,
                                         ReplayCounters* counters = nullptr) {
    options.cuda = true;
    auto replayed = Replay(files_, reference_, options, counters);
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *std::move(replayed) : std::vector<ReplayedPrompt>();
  }

  Reference reference_;
  formats::ModelFiles files_ = formats::ModelFiles::FromMemory("", {});
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSameBits(const std::vector<ReplayedPrompt>& a, const std::vector<ReplayedPrompt>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].sampled, b[i].sampled);
    EXPECT_TRUE(SameBits(a[i].logits, b[i].logits));
    EXPECT_TRUE(SameBits(a[i].logprobs, b[i].logprobs));
  }
}

TEST_P(LlamaCudaParityTest, ScalarPathGivesTheReferenceTokensAndLogits) {
  // A step takes milliseconds on an emulated GPU. The length lets a sequence start one or two new
  // pages.
  constexpr std::uint32_t kGenerated = 24;
  for (ReferencePrompt& prompt : reference_.prompts) prompt.greedy.resize(kGenerated);
  // Graphs also compute their padding. Another test checks that they change no bit.
  const auto got = MustReplay({.generated = kGenerated, .logprobs = false, .graphs = false});
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s: f32 logits differ by %.2e relative, %.2e at most\n", GetParam(),
              deviation.relative, deviation.max_abs);
  EXPECT_LE(deviation.relative, kMaxRelative);
  EXPECT_EQ(CountTokenMismatches(got, reference_), 0u);
}

TEST_P(LlamaCudaParityTest, HalfPathStaysWithinTwiceTheRecordedError) {
  // Recorded logits belong to prompts, so nothing is generated after them.
  const auto got = MustReplay({.kv_dtype = DType::kBF16,
                               .feed_reference = true,
                               .generated = 4,
                               .logprobs = false,
                               .activation = DType::kBF16});
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s: bf16 logits differ by %.2e relative, recorded %.2e\n", GetParam(),
              deviation.relative, reference_.half_error);
  // The figure was recorded in the fixture's own half type. A step of bf16 equals eight of f16.
  const double steps = absl::EndsWith(GetParam(), "-f16") ? 8 : 1;
  EXPECT_LE(deviation.relative, 2 * steps * reference_.half_error);
  // Rounding must have an effect, otherwise the activations were not bf16.
  EXPECT_GT(deviation.relative, kMaxRelative);
  const std::string folder = GetParam();
  if (folder == "llama-rope-llama3-bf16") {
    if (cuda_emulator::IsEmulated()) {
      EXPECT_GT(cuda_emulator::LaunchCount("attention prefill sm_90a"), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LlamaCudaParityTest, testing::ValuesIn(kFolders),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A fixture with grouped heads of size 64, in both types.
class LlamaCudaBitsTest : public LlamaCudaParityTest {
 protected:
  static ReplayOptions With(DType dtype) {
    return {.kv_dtype = dtype,
            .chunk = 16,
            .seed = 3,
            .only = kSome,
            .generated = 20,
            .activation = dtype};
  }
  static constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
};

TEST_P(LlamaCudaBitsTest, BatchChunksPagesAndThreadOrderDoNotChangeBits) {
  for (const DType dtype : kTypes) {
    const auto together = MustReplay(With(dtype));
    ReplayOptions options = With(dtype);
    options.chunk = 7;
    options.seed = 4;
    cuda_emulator::EmulatorOptions emulator = cuda_emulator::GetOptions();
    emulator.seed = 99;
    cuda_emulator::SetOptions(emulator);
    ExpectSameBits(together, MustReplay(options));
    options.chunk = 256;
    options.only = {kSome[2]};
    const auto alone = MustReplay(options);
    ASSERT_EQ(alone.size(), 1u);
    ExpectSameBits({together[2]}, alone);
  }
}

// Uses the kernels for devices below compute capability 9.0 on any device. They do not read pages
// through tensor maps.
TEST_P(LlamaCudaBitsTest, PortableKernelsStayWithinTwiceTheRecordedError) {
  const auto got = MustReplay({.kv_dtype = DType::kBF16,
                               .feed_reference = true,
                               .generated = 4,
                               .logprobs = false,
                               .compute_capability = 80,
                               .activation = DType::kBF16});
  const Deviation deviation = CompareLogits(got, reference_);
  EXPECT_LE(deviation.relative, 2 * reference_.half_error);
  EXPECT_GT(deviation.relative, kMaxRelative);
  if (cuda_emulator::IsEmulated()) {
    EXPECT_GT(cuda_emulator::LaunchCount("attention prefill"), 0u);
    EXPECT_EQ(cuda_emulator::LaunchCount("attention prefill sm_90a"), 0u);
  }
}

TEST_P(LlamaCudaBitsTest, GraphsDoNotChangeBits) {
  for (const DType dtype : kTypes) {
    ReplayCounters with;
    ReplayCounters without;
    const auto graphs = MustReplay(With(dtype), &with);
    ReplayOptions options = With(dtype);
    options.graphs = false;
    const auto plain = MustReplay(options, &without);
    ExpectSameBits(graphs, plain);
    EXPECT_GT(with.graph_steps, 10u);
    EXPECT_GE(with.graphs, 1u);
    EXPECT_EQ(without.graph_steps, 0u);
  }
}

TEST_P(LlamaCudaBitsTest, StepsInFlightDoNotChangeBits) {
  for (const DType dtype : kTypes) {
    const auto one = MustReplay(With(dtype));
    ReplayOptions options = With(dtype);
    options.overlap = true;
    ReplayCounters counters;
    ExpectSameBits(one, MustReplay(options, &counters));
    EXPECT_GT(counters.graph_steps, 10u);
  }
}

TEST_P(LlamaCudaBitsTest, RecomputationAfterPreemptionDoesNotChangeBits) {
  for (const DType dtype : kTypes) {
    const auto undisturbed = MustReplay(With(dtype));
    ReplayOptions options = With(dtype);
    options.preempt_at = 10;
    options.chunk = 24;  // a step contains both row classes of one sequence
    ExpectSameBits(undisturbed, MustReplay(options));
  }
}

TEST_P(LlamaCudaBitsTest, HiddenStatesOfEveryLayerAgree) {
  const ReferencePrompt& prompt = reference_.prompts[4];
  ASSERT_FALSE(prompt.hidden.empty());
  const auto hidden = ReplayHidden(files_, prompt, {.cuda = true});
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  EXPECT_LE(Compare(*hidden, prompt.hidden).relative, kMaxRelative);
}

TEST_P(LlamaCudaBitsTest, DetectsOneChangedPageId) {
  const auto untouched = MustReplay(With(DType::kF32));
  ReplayOptions options = With(DType::kF32);
  options.swap_one_page = true;
  const auto got = MustReplay(options);
  ASSERT_EQ(got.size(), kSome.size());
  for (std::size_t i = 0; i + 1 < got.size(); ++i) EXPECT_EQ(got[i].sampled, untouched[i].sampled);
  EXPECT_NE(got.back().sampled, untouched.back().sampled) << "the prompt with the wrong page";
}

TEST_P(LlamaCudaBitsTest, QuantizedPagesAreCloseAndInvariant) {
  for (const DType kv : {DType::kI8, DType::kF8E4M3}) {
    ReplayOptions options = With(DType::kBF16);
    options.kv_dtype = kv;
    options.feed_reference = true;
    options.generated = 4;
    const auto got = MustReplay(options);
    ASSERT_EQ(got.size(), kSome.size());
    Reference some = reference_;
    some.prompts.clear();
    for (const std::size_t i : kSome) some.prompts.push_back(reference_.prompts[i]);
    const Deviation deviation = CompareLogits(got, some);
    std::printf("%s: %s pages differ by %.2e relative\n", GetParam(),
                std::string(DTypeName(kv)).c_str(), deviation.relative);
    // In addition to bf16 activations, an element has an error of at most 2^-4 of itself (e4m3) or
    // 1/254 of the largest of its row (int8).
    EXPECT_LE(deviation.relative,
              2 * reference_.half_error + (kv == DType::kI8 ? 1.0 / 127 : 0.0625));
    EXPECT_GT(deviation.relative, kMaxRelative);
    options.graphs = false;
    options.chunk = 5;
    options.seed = 8;
    ExpectSameBits(got, MustReplay(options));
  }
}

INSTANTIATE_TEST_SUITE_P(Fixture, LlamaCudaBitsTest, testing::Values("llama-rope-llama3-bf16"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
