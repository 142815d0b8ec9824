// Windows, chunks, soft caps and sinks of attention on the emulated GPU. Results are compared with
// double precision over the same pages, and must be bitwise invariant to batching, chunking and
// scheduling.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr DType kElements[] = {DType::kBF16, DType::kF8E4M3, DType::kI8};

// The score rules of a layer in addition to the causal mask. The loudness gives scores up to about
// 15, so that caps and sinks change the result by far more than the tolerance.
struct Rules {
  std::uint32_t window;
  float softcap;
  bool sinks;
  std::uint32_t chunk = 0;
};
constexpr Rules kRules[] = {{1, 0, false},   {17, 0, false},  {64, 0, false}, {65, 0, true},
                            {100, 3, false}, {600, 0, false}, {0, 3, false},  {0, 0, true}};
constexpr float kLoudness = 6;

AttentionShape With(AttentionShape shape, const Rules& rules) {
  shape.window = rules.window;
  shape.chunk = rules.chunk;
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
                            shape.window, ", chunk ", shape.chunk, ", softcap ", shape.softcap,
                            shape.sinks ? ", sinks" : "",
                            shape.tensor_maps ? ", tensor maps" : ""));
  std::vector<std::uint32_t> lengths;
  for (const StepRows& r : step) lengths.push_back(r.cached + r.prompt + r.generated);
  const AttentionRig rig(shape, lengths, 11);
  const std::vector<float> out = rig.Run(cuda, step);
  EXPECT_LE(RelativeError(out, rig.Exact(step)), Tolerance(shape));
  // The rules have an effect: without them the result differs.
  AttentionShape plain = shape;
  plain.window = 0;
  plain.chunk = 0;
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
        // Covers lengths outside of and inside every window, and prefill next to decode tokens.
        ExpectExact(cuda, shape, {{0, 690, 0, 3}, {1, 130, 75, 2}, {2, 9, 0, 1}});
      }
    }
  }
}

// The window ends at boundaries of tiles, spans and groups, for any cut.
TEST(AttentionRulesTest, WindowsEndAnywhere) {
  for (const int sms : {1, 8, 64}) {
    const AttentionBackend cuda(sms);
    for (const std::uint32_t window : {63u, 512u, 513u, 1025u}) {
      AttentionShape shape{7, 1, 64, 64, DType::kBF16, DType::kBF16, 0};
      ExpectExact(cuda, With(shape, {window, 0, window == 513}), {{0, 2599, 0, 1}});
    }
  }
}

// Chunks begin inside a tile, at the borders of tiles and spans, and inside a step. The plan has a
// window of the length of the chunk.
TEST(AttentionRulesTest, ChunksBeginAnywhere) {
  const AttentionBackend cuda(2);
  std::uint32_t i = 0;
  for (const std::uint32_t chunk : {1u, 48u, 64u, 128u, 257u, 512u, 600u}) {
    for (const bool maps : {false, true}) {
      const DType kv = kElements[i++ % std::size(kElements)];
      AttentionShape shape{6, 2, 64, 16, kv, DType::kBF16, 0, maps};
      ExpectExact(cuda, With(shape, {0, 0, chunk == 48, chunk}),
                  {{0, 690, 0, 3}, {1, 130, 175, 2}, {2, 599, 0, 1}, {3, 9, 0, 1}});
    }
    if (chunk > 128) continue;
    AttentionShape scalar{4, 2, 16, 16, DType::kF32, DType::kF32, 0};
    ExpectExact(cuda, With(scalar, {0, 0, false, chunk}), {{0, 250, 9, 1}, {1, 40, 0, 1}});
  }
}

// Decode tokens of one step are in two chunks, and prompts are computed in pieces.
TEST(AttentionRulesBitsTest, ChunkMasksDoNotDependOnTheStep) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    for (const bool maps : {false, true}) {
      AttentionShape shape{7, 1, 64, 16, kv, DType::kBF16, 0, maps};
      const AttentionRig rig(With(shape, {0, 0, true, 96}), {580}, 8);
      const std::vector<float> together = rig.Run(cuda, {{0, 570, 0, 10}});
      std::vector<float> alone;
      for (std::uint32_t i = 0; i < 10; ++i) {
        const std::vector<float> out = rig.Run(cuda, {{0, 570 + i, 0, 1}});
        alone.insert(alone.end(), out.begin(), out.end());
      }
      EXPECT_TRUE(SameBits(together, alone)) << DTypeName(kv);
      const std::vector<float> once = rig.Run(cuda, {{0, 150, 160, 0}});
      std::vector<float> parts = rig.Run(cuda, {{0, 150, 43, 0}});
      const std::vector<float> rest = rig.Run(cuda, {{0, 193, 117, 0}});
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_TRUE(SameBits(once, parts)) << DTypeName(kv);
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

// Pages before the windows may contain anything.
TEST(AttentionRulesTest, DoesNotReadTilesBeforeTheWindows) {
  const AttentionBackend cuda;
  for (const DType activations : {DType::kBF16, DType::kF32}) {
    for (const bool maps : {false, true}) {
      if (maps && activations == DType::kF32) continue;
      for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
        AttentionShape shape{4, 2, 64, 16, kv, activations, 0};
        shape.tensor_maps = maps;
        shape.nan_tokens = 640;
        for (const Rules& rules : {Rules{100, 0, false}, Rules{0, 0, false, 700}}) {
          shape = With(shape, rules);
          for (const StepRows& rows : {StepRows{0, 760, 0, 2}, StepRows{0, 740, 20, 0}}) {
            const AttentionRig rig(shape, {762}, 5);
            EXPECT_LE(RelativeError(rig.Run(cuda, {rows}), rig.Exact({rows})), Tolerance(shape));
          }
        }
      }
    }
  }
}

TEST(AttentionRulesTest, HopperDecodeEqualsThePortableKernelBitwise) {
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

TEST(AttentionRulesTest, RejectsAPlanOfAShorterWindow) {
  const AttentionBackend cuda;
  for (const std::uint32_t window : {0u, 65u}) {
    AttentionShape shape{4, 2, 64, 16, DType::kBF16, DType::kBF16, 0};
    shape.window = window;
    shape.plan_window = 64;
    const AttentionRig rig(shape, {90}, 5);
    EXPECT_EQ(DeviceStep(rig, cuda, {{0, 89, 0, 1}}).Enqueue().message(),
              absl::StrCat("attention has a window of ", window,
                           " tokens (0: no limit), its plan supports at most 64"));
  }
}

constexpr char kHopper[] = "attention prefill sm_90a";
constexpr char kHopperBytes[] = "attention prefill bytes sm_90a";
constexpr char kPortable[] = "attention prefill";

TEST(AttentionRulesSm90Test, PromptRowsUseTheKernelOfTheirDevice) {
  const AttentionBackend cuda;
  for (const Rules& rules : kRules) {
    for (const bool maps : {true, false}) {
      const DType kv = kElements[(&rules - kRules) % std::size(kElements)];
      AttentionShape shape{4, 2, 64, 16, kv, DType::kBF16, 0, maps};
      const char* const kernel = DTypeSize(kv) == 1 ? kHopperBytes : kHopper;
      const std::uint64_t hopper = cuda_emulator::LaunchCount(kernel);
      const std::uint64_t portable = cuda_emulator::LaunchCount(kPortable);
      ExpectExact(cuda, With(shape, rules), {{0, 70, rules.window == 600 ? 560u : 60u, 0}});
      if (!cuda_emulator::IsEmulated()) continue;
      EXPECT_EQ(cuda_emulator::LaunchCount(kernel), hopper + (maps ? 1 : 0));
      EXPECT_EQ(cuda_emulator::LaunchCount(kPortable), portable + (maps ? 0 : 1));
    }
  }
}

// Windows end in the first tile, between tiles of 128 and far back. Each rule is tested alone and
// with the others. Prompts are at and around tile boundaries, with and without a cached prefix.
TEST(AttentionRulesSm90Test, PromptRowsEqualDoublePrecision) {
  const AttentionBackend cuda(2);
  const struct {
    Rules rules;
    std::uint32_t heads, kv_heads, cached, prompt;
  } cases[] = {{{1, 0, false}, 2, 1, 0, 129},     {{1, 2, true}, 3, 1, 127, 3},
               {{2, 0, true}, 6, 2, 126, 131},    {{31, 3, false}, 7, 1, 0, 200},
               {{127, 0, false}, 4, 2, 250, 140}, {{128, 0, true}, 3, 1, 0, 300},
               {{129, 3, false}, 2, 2, 255, 66},  {{130, 0, false}, 16, 1, 383, 5},
               {{200, 3, true}, 5, 1, 511, 90},   {{257, 0, false}, 1, 1, 0, 700},
               {{0, 3, true}, 6, 2, 130, 70},     {{0, 0, true}, 7, 1, 0, 64},
               {{0, 2, false}, 4, 1, 0, 257},     {{384, 0, true}, 2, 1, 640, 129}};
  constexpr std::uint32_t kPages[] = {16, 64, 128, 32};
  constexpr std::uint32_t kHeadSizes[] = {64, 128, 96, 80};
  std::uint32_t i = 0;
  for (const auto& c : cases) {
    for (const DType kv : {DType::kBF16, i % 2 == 0 ? DType::kF8E4M3 : DType::kI8}) {
      AttentionShape shape{
          c.heads, c.kv_heads, kHeadSizes[(i + i / 4) % 4], kPages[i % 4], kv, DType::kBF16,
          0,       true};
      ExpectExact(cuda, With(shape, c.rules), {{0, c.cached, c.prompt, 0}});
    }
    ++i;
  }
}

// Each block has several items, with decode tokens next to them.
TEST(AttentionRulesSm90Test, MixedStepsEqualDoublePrecision) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    AttentionShape shape{6, 2, 64, 16, kv, DType::kBF16, 0, true};
    ExpectExact(AttentionBackend(1), With(shape, {90, 4, true}),
                {{0, 0, 0, 0}, {1, 20, 230, 5}, {2, 300, 40, 0}, {3, 200, 0, 1}, {4, 0, 150, 0}});
  }
}

// An infinite product has the cap as its score.
TEST(AttentionRulesSm90Test, CapsInfiniteScores) {
  const AttentionBackend cuda;
  AttentionShape shape{4, 2, 64, 16, DType::kBF16, DType::kBF16, 0, true};
  shape.softcap = 3;
  shape.loudness = 1e38f;
  const AttentionRig rig(shape, {200}, 5);
  const std::vector<StepRows> step = {{0, 60, 140, 0}};
  EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), Tolerance(shape));
}

// Rows that see a NaN token are NaN, whatever the maximum, the cap and the sink.
TEST(AttentionRulesSm90Test, PropagatesNan) {
  const AttentionBackend cuda;
  for (const DType kv : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    for (const bool all : {false, true}) {
      AttentionShape shape{3, 1, 64, 16, kv, DType::kBF16, 0, true};
      shape = With(shape, {100, all ? 3.0f : 0.0f, all});
      shape.nan_tokens = 128;
      const AttentionRig rig(shape, {250}, 5);
      const std::vector<float> out = rig.Run(cuda, {{0, 128, 99, 0}});
      EXPECT_EQ(std::count_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }),
                static_cast<std::ptrdiff_t>(out.size()));
      const std::vector<StepRows> behind = {{0, 227, 23, 0}};
      EXPECT_LE(RelativeError(rig.Run(cuda, behind), rig.Exact(behind)), Tolerance(shape));
    }
  }
}

TEST(AttentionRulesSm90Test, WindowBeyondThePromptDoesNotChangeBits) {
  const AttentionBackend cuda;
  AttentionShape shape{6, 2, 128, 16, DType::kBF16, DType::kBF16, 0, true};
  const std::vector<StepRows> step = {{0, 30, 270, 0}, {1, 0, 5, 0}};
  const std::vector<float> all = AttentionRig(shape, {300, 5}, 3).Run(cuda, step);
  for (const std::uint32_t window : {300u, 1u << 20, 0xffffffffu}) {
    shape.window = window;
    EXPECT_TRUE(SameBits(all, AttentionRig(shape, {300, 5}, 3).Run(cuda, step))) << window;
  }
}

TEST(AttentionRulesBitsTest, HopperRowsDoNotDependOnChunksAndBatch) {
  const std::pair<Rules, DType> cases[] = {{{70, 3, true}, DType::kBF16},
                                           {{1, 0, false}, DType::kBF16},
                                           {{129, 0, true}, DType::kBF16},
                                           {{70, 3, true}, DType::kF8E4M3},
                                           {{129, 0, true}, DType::kI8}};
  for (const auto& [rules, kv] : cases) {
    AttentionShape shape{6, 2, 64, 16, kv, DType::kBF16, 0, true};
    const AttentionRig rig(With(shape, rules), {300, 140}, 9);
    const std::vector<float> once =
        rig.Run(AttentionBackend(1, 5), {{0, 0, 300, 0}, {1, 0, 140, 0}});
    const AttentionBackend cuda;
    std::vector<float> chunks;
    for (const auto& [first, count] :
         {std::pair{0u, 50u}, {50u, 1u}, {51u, 80u}, {131u, 125u}, {256u, 44u}}) {
      const std::vector<float> out = rig.Run(cuda, {{0, first, count, 0}});
      chunks.insert(chunks.end(), out.begin(), out.end());
    }
    const std::vector<float> other = rig.Run(cuda, {{1, 0, 140, 0}});
    chunks.insert(chunks.end(), other.begin(), other.end());
    EXPECT_TRUE(SameBits(once, chunks)) << rules.window;
  }
}

TEST(AttentionRulesBitsTest, ChunkingDoesNotChangeBits) {
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

// Decode tokens run one by one and together, with windows that start in different tiles and spans.
TEST(AttentionRulesBitsTest, DecodeRowsDoNotDependOnTheStep) {
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

TEST(AttentionRulesBitsTest, CutsOfARowDoNotChangeBits) {
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

// Omitting the spans before a window gives the same reduction as skipping them, for any cut.
TEST(AttentionRulesBitsTest, PlanningWithTheWindowDoesNotChangeBits) {
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
