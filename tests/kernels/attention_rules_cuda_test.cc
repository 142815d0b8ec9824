// Windows, soft caps and sinks of attention on the emulated GPU: against double precision over the
// same pages, and bits against themselves under every change that must not show.

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr DType kElements[] = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8};

// What a layer may ask beside the causal mask. With the loudness scores reach 15 or so, and caps
// and sinks change what comes out by far more than a tolerance.
struct Rules {
  std::uint32_t window;
  float softcap;
  bool sinks;
};
constexpr Rules kRules[] = {{1, 0, false},   {17, 0, false},  {64, 0, false}, {65, 0, true},
                            {100, 3, false}, {600, 0, false}, {0, 3, false},  {0, 0, true}};
constexpr float kLoudness = 6;

AttentionShape With(AttentionShape shape, const Rules& rules) {
  shape.window = rules.window;
  shape.softcap = rules.softcap;
  shape.sinks = rules.sinks;
  shape.loudness = kLoudness;
  return shape;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double Tolerance(const AttentionShape& shape) {
  if (shape.activations == DType::kF32) return 2e-5;
  return shape.kv == DType::kF8E4M3 || shape.kv == DType::kI8 ? 1e-2 : 6e-3;
}

void ExpectExact(const AttentionBackend& cuda, const AttentionShape& shape,
                 const std::vector<StepRows>& step) {
  SCOPED_TRACE(absl::StrCat(DTypeName(shape.kv), " heads of ", shape.head_size, ", window ",
                            shape.window, ", softcap ", shape.softcap, shape.sinks ? ", sinks" : "",
                            shape.tensor_maps ? ", tensor maps" : ""));
  std::vector<std::uint32_t> lengths;
  for (const StepRows& r : step) lengths.push_back(r.cached + r.prompt + r.generated);
  const AttentionRig rig(shape, lengths, 11);
  const std::vector<float> out = rig.Run(cuda, step);
  EXPECT_LE(RelativeError(out, rig.Exact(step)), Tolerance(shape));
  // The rules show: without them the result is another.
  AttentionShape plain = shape;
  plain.window = 0;
  plain.softcap = 0;
  plain.sinks = false;
  EXPECT_GT(RelativeError(out, AttentionRig(plain, lengths, 11).Exact(step)), 0.02);
}

TEST(AttentionRulesTest, EveryTileKernelEqualsDoublePrecision) {
  const AttentionBackend cuda(2);
  std::uint32_t i = 0;
  for (const DType kv : kElements) {
    for (const std::uint32_t head_size : {64u, 80u, 128u}) {
      for (std::uint32_t j = 0; j < 2; ++j, ++i) {
        const Rules& rules = kRules[i % std::size(kRules)];
        AttentionShape shape{6, 2, head_size, i % 2 == 0 ? 16u : 64u, kv, DType::kBF16, 0};
        shape = With(shape, rules);
        // Beyond every window, and inside of it; prefill tokens beside decode tokens.
        ExpectExact(cuda, shape, {{0, 690, 0, 3}, {1, 130, 75, 2}, {2, 9, 0, 1}});
      }
    }
  }
}

// A window at the borders of tiles, spans and groups, whatever the cut.
TEST(AttentionRulesTest, WindowsEndAnywhere) {
  for (const int sms : {1, 8, 64}) {
    const AttentionBackend cuda(sms);
    for (const std::uint32_t window : {63u, 512u, 513u, 1025u}) {
      AttentionShape shape{7, 1, 64, 64, DType::kBF16, DType::kBF16, 0};
      ExpectExact(cuda, With(shape, {window, 0, window == 513}), {{0, 2599, 0, 1}});
    }
  }
}

TEST(AttentionRulesTest, ScalarKernelEqualsDoublePrecision) {
  const AttentionBackend cuda;
  std::uint32_t i = 0;
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const std::uint32_t head_size : {16u, 256u}) {
      for (const Rules& rules : {kRules[1 + i % 4], kRules[6 + i % 2]}) {
        AttentionShape shape{4, 2, head_size, 16, kv, DType::kF32, 0};
        ExpectExact(cuda, With(shape, rules), {{0, 150, 9, 1}, {1, 40, 0, 1}});
      }
      ++i;
    }
  }
}

// Pages before the windows may hold anything.
TEST(AttentionRulesTest, TilesBeforeTheWindowsAreNotRead) {
  const AttentionBackend cuda;
  for (const DType activations : {DType::kBF16, DType::kF32}) {
    for (const bool maps : {false, true}) {
      if (maps && activations == DType::kF32) continue;
      AttentionShape shape{4, 2, 64, 16, DType::kBF16, activations, 0};
      shape.tensor_maps = maps;
      shape = With(shape, {100, 0, false});
      shape.nan_tokens = 640;
      for (const StepRows& rows : {StepRows{0, 760, 0, 2}, StepRows{0, 740, 20, 0}}) {
        const AttentionRig rig(shape, {762}, 5);
        EXPECT_LE(RelativeError(rig.Run(cuda, {rows}), rig.Exact({rows})), Tolerance(shape));
      }
    }
  }
}

TEST(AttentionRulesTest, HopperDecodeHasTheBitsOfThePortableKernel) {
  const AttentionBackend cuda;
  for (const Rules& rules : kRules) {
    AttentionShape shape{8, 2, 64, 16, DType::kBF16, DType::kBF16, 0, true};
    shape = With(shape, rules);
    const std::vector<StepRows> step = {{0, 699, 0, 1}, {1, 33, 0, 2}};
    const std::uint64_t before = cuda_emulator::LaunchCount("attention decode sm_90a");
    const std::vector<float> out = AttentionRig(shape, {700, 35}, 7).Run(cuda, step);
    if (cuda_emulator::IsEmulated()) {
      EXPECT_EQ(cuda_emulator::LaunchCount("attention decode sm_90a"), before + 1);
    }
    shape.tensor_maps = false;
    EXPECT_TRUE(SameBits(out, AttentionRig(shape, {700, 35}, 7).Run(cuda, step)));
  }
}

TEST(AttentionRulesTest, APlanOfAShorterWindowIsRefused) {
  const AttentionBackend cuda;
  for (const std::uint32_t window : {0u, 65u}) {
    AttentionShape shape{4, 2, 64, 16, DType::kBF16, DType::kBF16, 0};
    shape.window = window;
    shape.plan_window = 64;
    const AttentionRig rig(shape, {90}, 5);
    EXPECT_EQ(DeviceStep(rig, cuda, {{0, 89, 0, 1}}).Enqueue().message(),
              absl::StrCat("attention has a window of ", window, " tokens, its plan one of 64"));
  }
}

// The kernel of 9.0 for prefill tokens knows the causal mask alone.
TEST(AttentionRulesTest, PromptRowsWithRulesRunInThePortableKernel) {
  const AttentionBackend cuda;
  for (const Rules& rules : {kRules[2], kRules[6], kRules[7]}) {
    AttentionShape shape{4, 2, 64, 16, DType::kBF16, DType::kBF16, 0, true};
    const std::uint64_t before = cuda_emulator::LaunchCount("attention prefill sm_90a");
    ExpectExact(cuda, With(shape, rules), {{0, 70, 60, 0}});
    EXPECT_EQ(cuda_emulator::LaunchCount("attention prefill sm_90a"), before);
  }
}

TEST(AttentionRulesBitsTest, ChunksOfAPromptDoNotShow) {
  const AttentionBackend cuda;
  for (const DType kv : {DType::kBF16, DType::kI8}) {
    AttentionShape shape{6, 2, 64, 16, kv, DType::kBF16, 0};
    const AttentionRig rig(With(shape, {70, 3, false}), {251}, 9);
    const std::vector<float> once = rig.Run(cuda, {{0, 0, 251, 0}});
    std::vector<float> chunks;
    for (const auto& [first, count] :
         {std::pair{0u, 50u}, {50u, 1u}, {51u, 80u}, {131u, 119u}, {250u, 1u}}) {
      const std::vector<float> out = rig.Run(cuda, {{0, first, count, 0}});
      chunks.insert(chunks.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(once, chunks)) << DTypeName(kv);
  }
}

// Decode tokens one by one and together, over windows that begin in different tiles and spans.
TEST(AttentionRulesBitsTest, GeneratedRowsDoNotDependOnTheirStep) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    AttentionShape shape{7, 1, 64, 16, kv, DType::kBF16, 0};
    const AttentionRig rig(With(shape, {60, 0, true}), {580}, 8);
    const std::vector<float> together = rig.Run(cuda, {{0, 568, 0, 12}});
    std::vector<float> alone;
    for (std::uint32_t i = 0; i < 12; ++i) {
      const std::vector<float> out = rig.Run(cuda, {{0, 568 + i, 0, 1}});
      alone.insert(alone.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(together, alone)) << DTypeName(kv);
  }
}

TEST(AttentionRulesBitsTest, CutsOfARowDoNotShow) {
  AttentionShape shape{8, 1, 64, 64, DType::kBF16, DType::kBF16, 0};
  shape = With(shape, {1500, 3, false});
  std::vector<std::uint32_t> lengths = {2700};
  std::vector<StepRows> step = {{0, 2699, 0, 1}};
  for (std::uint32_t s = 1; s < 35; ++s) {
    lengths.push_back(20 + s);
    step.push_back({s, lengths.back() - 1, 0, 1});
  }
  const AttentionRig rig(shape, lengths, 4);
  const std::vector<float> spans = rig.Run(AttentionBackend(64), step);
  EXPECT_TRUE(SameBits(spans, rig.Run(AttentionBackend(8), step)));
  EXPECT_TRUE(SameBits(spans, rig.Run(AttentionBackend(1), step)));
}

// Leaving out the spans before a window, in any cut, is no other reduction than passing over them.
TEST(AttentionRulesBitsTest, AWindowThatThePlanKnowsDoesNotShow) {
  for (const std::uint32_t window : {1u, 100u, 513u, 1500u, 2600u}) {
    AttentionShape shape{8, 1, 64, 64, DType::kBF16, DType::kBF16, 0};
    shape = With(shape, {window, 0, window == 100});
    const std::vector<std::uint32_t> lengths = {5200, 2600, 40};
    const std::vector<StepRows> step = {{0, 5199, 0, 1}, {1, 2590, 5, 5}, {2, 39, 0, 1}};
    shape.plan_window = 0;
    const std::vector<float> passed =
        AttentionRig(shape, lengths, 4).Run(AttentionBackend(64), step);
    shape.plan_window = window;
    for (const int sms : {64, 2, 1}) {
      EXPECT_TRUE(
          SameBits(passed, AttentionRig(shape, lengths, 4).Run(AttentionBackend(sms), step)))
          << window << ", " << sms;
    }
  }
}

}  // namespace
}  // namespace quire::kernels
