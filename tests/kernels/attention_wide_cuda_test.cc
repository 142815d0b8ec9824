// Heads of more than 128 columns on the emulated GPU or a real one. Results are compared with
// double precision over the same pages, and must be bitwise invariant to batching, chunking and
// scheduling. All bytes of the pool that no sequence owns are NaN.

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr char kDecode[] = "attention decode wide";
constexpr char kPrefill[] = "attention prefill wide";
constexpr char kScalar[] = "attention scalar";

AttentionShape Wide(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t head_size = 256,
                    std::uint32_t page_size = 16) {
  return {heads, kv_heads, head_size, page_size, DType::kBF16, DType::kBF16, 0};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::uint32_t> LengthsOf(const std::vector<StepRows>& step) {
  std::vector<std::uint32_t> lengths;
  for (const StepRows& rows : step) lengths.push_back(rows.cached + rows.prompt + rows.generated);
  return lengths;
}

void ExpectExact(const AttentionBackend& cuda, const AttentionShape& shape,
                 const std::vector<StepRows>& step) {
  SCOPED_TRACE(absl::StrCat(shape.heads, "/", shape.kv_heads, " heads of ", shape.head_size,
                            ", from ", step[0].cached, ", window ", shape.window));
  bool prompt = false;
  bool generated = false;
  for (const StepRows& rows : step) {
    prompt |= rows.prompt > 0;
    generated |= rows.generated > 0;
  }
  const std::uint64_t expected = (prompt ? 1 : 0) + (generated ? 1 : 0);
  const auto launches = [] {
    return cuda_emulator::LaunchCount(kPrefill) + cuda_emulator::LaunchCount(kDecode);
  };
  const std::uint64_t before = launches();
  const AttentionRig rig(shape, LengthsOf(step), 11);
  EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), 6e-3);
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(launches(), before + expected);
  }
}

// Lengths at and around the boundaries of half tiles, tiles and spans, for every head size.
TEST(AttentionWideTest, DecodeRowsEqualDoublePrecision) {
  const AttentionBackend cuda(2);
  constexpr std::uint32_t kHeadSizes[] = {256, 144, 192, 240};
  constexpr std::uint32_t kPages[] = {16, 64, 128, 32};
  std::uint32_t i = 0;
  for (const std::uint32_t length : {1u, 16u, 63u, 64u, 65u, 129u, 512u, 513u, 1025u}) {
    const AttentionShape shape =
        Wide(i % 3 == 0 ? 7 : 4, i % 3 == 0 ? 1 : 2, kHeadSizes[i % 4], kPages[i % 4]);
    const std::uint32_t count = std::min(1 + i % 3, length);
    ExpectExact(cuda, shape, {{0, length - count, 0, count}, {1, 33, 0, 1}});
    ++i;
  }
}

TEST(AttentionWideTest, PromptRowsEqualDoublePrecision) {
  const AttentionBackend cuda(2);
  const struct {
    std::uint32_t heads, kv_heads, head_size, cached, prompt;
  } cases[] = {{2, 1, 256, 0, 1},    {8, 4, 256, 0, 33},  {7, 1, 144, 0, 64}, {4, 2, 192, 31, 2},
               {16, 1, 256, 15, 18}, {1, 1, 256, 0, 130}, {3, 1, 160, 63, 2}, {2, 1, 256, 200, 65}};
  for (const auto& c : cases) {
    ExpectExact(cuda, Wide(c.heads, c.kv_heads, c.head_size), {{0, c.cached, c.prompt, 0}});
  }
}

TEST(AttentionWideTest, RulesEqualDoublePrecision) {
  const AttentionBackend cuda(2);
  const struct {
    std::uint32_t window;
    float softcap;
    bool sinks;
    std::uint32_t chunk = 0;
  } cases[] = {{1, 0, false}, {70, 3, true}, {33, 0, true}, {0, 2, false}, {0, 0, false, 50}};
  for (const auto& c : cases) {
    AttentionShape shape = Wide(6, 2);
    shape.window = c.window;
    shape.chunk = c.chunk;
    shape.softcap = c.softcap;
    shape.sinks = c.sinks;
    shape.loudness = 6;
    ExpectExact(cuda, shape, {{0, 140, 40, 2}, {1, 600, 0, 1}, {2, 0, 0, 0}});
  }
}

// Rows over int8 pages and wider heads run without tensor cores.
TEST(AttentionWideTest, OtherPagesAndSizesUseTheScalarKernel) {
  const AttentionBackend cuda;
  for (const auto& [head_size, kv] : {std::pair{256u, DType::kI8}, {272u, DType::kBF16}}) {
    AttentionShape shape = Wide(2, 1, head_size);
    shape.kv = kv;
    const std::uint64_t before = cuda_emulator::LaunchCount(kScalar);
    const AttentionRig rig(shape, {40}, 3);
    const std::vector<StepRows> step = {{0, 20, 19, 1}};
    EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), 6e-3);
    if (cuda_emulator::IsEmulated()) {
      EXPECT_EQ(cuda_emulator::LaunchCount(kScalar), before + 1);
    }
  }
}

TEST(AttentionWideBitsTest, ChunksAndBatchDoNotChangeBits) {
  const AttentionBackend cuda;
  for (const bool cancelling : {false, true}) {
    AttentionShape shape = Wide(6, 2);
    shape.cancelling = cancelling;
    shape.window = cancelling ? 0 : 70;
    const AttentionRig rig(shape, {170, 30}, 9);
    const std::vector<float> once =
        rig.Run(AttentionBackend(1, 5), {{0, 0, 170, 0}, {1, 0, 30, 0}});
    std::vector<float> chunks;
    for (const auto& [s, first, count] :
         {std::tuple{0u, 0u, 50u}, {0u, 50u, 1u}, {0u, 51u, 80u}, {0u, 131u, 39u}, {1u, 0u, 30u}}) {
      const std::vector<float> out = rig.Run(cuda, {{s, first, count, 0}});
      chunks.insert(chunks.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(once, chunks)) << cancelling;
  }
}

// Decode tokens run together and one by one, in whole rows, groups and spans.
TEST(AttentionWideBitsTest, StepsAndCutsDoNotChangeBits) {
  AttentionShape shape = Wide(8, 1, 256, 64);
  shape.cancelling = true;
  std::vector<std::uint32_t> lengths = {1100};
  std::vector<StepRows> step = {{0, 1096, 0, 4}};
  for (std::uint32_t s = 1; s < 35; ++s) {
    lengths.push_back(20 + s);
    step.push_back({s, lengths.back() - 1, 0, 1});
  }
  const AttentionRig rig(shape, lengths, 4);
  std::vector<float> together = rig.Run(AttentionBackend(64), step);
  EXPECT_TRUE(SameBits(together, rig.Run(AttentionBackend(8), step)));
  EXPECT_TRUE(SameBits(together, rig.Run(AttentionBackend(1, 7), step)));
  std::vector<float> alone;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::vector<float> out = rig.Run(AttentionBackend(64), {{0, 1096 + i, 0, 1}});
    alone.insert(alone.end(), out.begin(), out.end());
  }
  together.resize(alone.size());
  EXPECT_TRUE(SameBits(together, alone));
}

}  // namespace
}  // namespace quire::kernels
