// Numeric parity of GGUF files with Hugging Face transformers on the dequantized weights in
// float32, for every fixture of tests/testdata/gguf/models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

struct Fixture {
  const char* folder;
  bool has_blocks;  // weights that kAuto multiplies as integers
};

void PrintTo(const Fixture& fixture, std::ostream* stream) {
  *stream << fixture.folder;
}

constexpr Fixture kFixtures[] = {{"llama-align64", false},
                                 {"llama-bf16", false},
                                 {"llama-bias", false},
                                 {"llama-f16", false},
                                 {"llama-f32", false},
                                 {"llama-metadata", false},
                                 {"llama-q4_0", true},
                                 {"llama-q4_1", true},
                                 {"llama-q4_k", true},
                                 {"llama-q4_k_m", true},
                                 {"llama-q4_k_m-odd-rows", true},
                                 {"llama-q5_0", true},
                                 {"llama-q5_k", true},
                                 {"llama-q5_k_m", true},
                                 {"llama-q6_k", true},
                                 {"llama-q8_0", true},
                                 {"llama-rope-linear", false},
                                 {"llama-rope-llama3", false},
                                 {"llama-rope-yarn", false},
                                 {"llama-spm", false},
                                 {"llama-tied", false}};

// Number of tokens in the references.
constexpr std::uint32_t kGenerated = 48;
// Allowed error of quantizing activations to 8 bits per group. llama.cpp has 1e-3 to 6e-3 on these
// files, whose random weights give widely spread logits.
constexpr double kMaxMeanKl = 1e-2;

// Divergence of softmax(got) from softmax(want), in nats.
double KlDivergence(std::span<const float> want, std::span<const float> got) {
  const auto log_sum = [](std::span<const float> logits) {
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - top);
    return top + std::log(sum);
  };
  const double want_sum = log_sum(want);
  const double got_sum = log_sum(got);
  double divergence = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double log_p = want[i] - want_sum;
    divergence += std::exp(log_p) * (log_p - (got[i] - got_sum));
  }
  return divergence;
}

class GgufParityTest : public testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    auto read = ReadGgufReference(GetParam().folder);
    ASSERT_TRUE(read.ok()) << read.status();
    reference_ = *std::move(read);
    ASSERT_EQ(reference_.prompts.size(), 6u);
    for (const ReferencePrompt& prompt : reference_.prompts) {
      ASSERT_EQ(prompt.greedy.size(), kGenerated);
      ASSERT_EQ(prompt.logits.size(), reference_.vocab_size);
    }
    auto files = formats::ModelFiles::FromPath(GgufFixturePath(GetParam().folder) + "/model.gguf");
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }

  std::vector<ReplayedPrompt> MustReplay(const formats::ModelFiles& files, ReplayOptions options) {
    options.generated = kGenerated;
    auto replayed = Replay(files, reference_, options);
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *std::move(replayed) : std::vector<ReplayedPrompt>();
  }

  Reference reference_;
  formats::ModelFiles files_ = formats::ModelFiles::FromMemory("", {});
};

TEST_P(GgufParityTest, UnquantizedGivesTheReferenceTokensAndLogits) {
  const auto got = MustReplay(files_, {.quantization = Quantization::kNone});
  ASSERT_EQ(got.size(), reference_.prompts.size());
  const Deviation deviation = CompareLogits(got, reference_);
  std::printf("%s: logits differ by %.2e relative, %.2e at most\n", GetParam().folder,
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
  }
}

// Products of integers are exact with f32 activations. What remains is that the embedding is
// rounded to bf16, and scales of K-quants to f16.
TEST_P(GgufParityTest, F32ActivationsAreNotRounded) {
  const auto got = MustReplay(
      files_, {.feed_reference = true, .cpu_activations = kernels::CpuActivations::kF32});
  ASSERT_EQ(got.size(), reference_.prompts.size());
  EXPECT_LE(CompareLogits(got, reference_).relative, GetParam().has_blocks ? 4e-3 : kMaxRelative);
}

TEST_P(GgufParityTest, Bf16ActivationsHaveTheRecordedError) {
  for (const Quantization quantization : {Quantization::kNone, Quantization::kAuto}) {
    const auto got = MustReplay(files_, {.threads = 2,
                                         .feed_reference = true,
                                         .cpu_activations = kernels::CpuActivations::kBF16,
                                         .quantization = quantization});
    const auto ratio =
        Bf16ErrorRatio(got, reference_, absl::StrCat("gguf/models/", GetParam().folder));
    ASSERT_TRUE(ratio.ok()) << ratio.status();
    EXPECT_LE(ratio->relative, 1.5);
    EXPECT_GE(ratio->relative, 1 / 1.5);
    EXPECT_LE(ratio->max_abs, 1.5);
  }
}

TEST_P(GgufParityTest, StoredFormatIsCloseAndInvariantToThreadsAndChunks) {
  const auto got = MustReplay(files_, {.feed_reference = true});
  ASSERT_EQ(got.size(), reference_.prompts.size());
  double total = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    total += KlDivergence(reference_.prompts[i].logits, got[i].logits);
  }
  const double mean = total / static_cast<double>(got.size());
  std::printf("%s: mean KL divergence %.2e\n", GetParam().folder, mean);
  if (GetParam().has_blocks) {
    EXPECT_LE(mean, kMaxMeanKl);
    // Activation quantization must have an effect, otherwise this would not be the integer path.
    EXPECT_GT(CompareLogits(got, reference_).relative, kMaxRelative);
  } else {
    EXPECT_LE(CompareLogits(got, reference_).relative, kMaxRelative);
  }
  const auto other =
      MustReplay(files_, {.threads = 2, .chunk = 7, .feed_reference = true, .seed = 5});
  ASSERT_EQ(other.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(other[i].logits, got[i].logits);
    EXPECT_EQ(other[i].sampled, got[i].sampled);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GgufParityTest, testing::ValuesIn(kFixtures),
                         [](const testing::TestParamInfo<Fixture>& info) {
                           std::string name(info.param.folder);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Injected faults prove that the comparison detects what a reader could omit.
struct Fault {
  const char* name;
  const char* folder;
  std::string from;
  std::string to;
};
void PrintTo(const Fault& fault, std::ostream* stream) {
  *stream << fault.name;
}

class GgufFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(GgufFaultTest, IsDetected) {
  const auto reference = ReadGgufReference(GetParam().folder);
  ASSERT_TRUE(reference.ok()) << reference.status();
  std::ifstream stream(GgufFixturePath(GetParam().folder) + "/model.gguf", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const std::size_t at = bytes.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(GetParam().from.size(), GetParam().to.size());
  bytes.replace(at, GetParam().to.size(), GetParam().to);
  const formats::ModelFiles files = formats::ModelFiles::FromMemory(
      "changed", {{"model.gguf", std::as_bytes(std::span(bytes.data(), bytes.size()))}});
  const auto got =
      Replay(files, *reference, {.generated = kGenerated, .quantization = Quantization::kNone});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_FALSE(Passes(*got, *reference));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, GgufFaultTest,
    testing::Values(
        // Renames keys to names that the reader does not know.
        Fault{"LinearFactor", "llama-rope-linear", "llama.rope.scaling.factor",
              "other.rope.scaling.factor"},
        Fault{"RotationBase", "llama-rope-llama3", "llama.rope.freq_base", "other.rope.freq_base"}),
    [](const testing::TestParamInfo<Fault>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::models::parity
