// Attention over latent rows, K and V in one, on the emulated GPU: against double precision over
// the same pages, and bits against themselves under every change that must not show.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr char kKernel[] = "attention latent";

AttentionShape Latent(std::uint32_t heads, std::uint32_t rank, std::uint32_t rope,
                      DType kv = DType::kBF16, DType activations = DType::kBF16) {
  AttentionShape shape{heads, 1, rank + rope, 16, kv, activations, 0};
  shape.value_columns = rank;
  shape.loudness = 4;
  return shape;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `is_latent`: whether the kernel of latent rows is to run.
void ExpectExact(const AttentionBackend& cuda, const AttentionShape& shape,
                 const std::vector<StepRows>& step, bool is_latent) {
  SCOPED_TRACE(absl::StrCat(shape.heads, " heads of ", shape.head_size, " columns, ",
                            DTypeName(shape.kv), " pages, ", DTypeName(shape.activations)));
  std::vector<std::uint32_t> lengths;
  for (const StepRows& r : step) lengths.push_back(r.cached + r.prompt + r.generated);
  const AttentionRig rig(shape, lengths, 21);
  const std::uint64_t before = cuda_emulator::LaunchCount(kKernel);
  const bool is_quantised = shape.kv == DType::kF8E4M3 || shape.kv == DType::kI8;
  EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), shape.activations == DType::kF32
                                                                     ? 2e-5
                                                                 : is_quantised ? 1e-2
                                                                                : 6e-3);
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(cuda_emulator::LaunchCount(kKernel) != before, is_latent);
  }
}

TEST(AttentionLatentTest, TensorCoreKernelEqualsDoublePrecision) {
  const AttentionBackend cuda(2);
  // Prompt and decode tokens, a border of tiles and one of spans, sequences without rows.
  const std::vector<StepRows> step = {{0, 2047, 3, 0}, {1, 33, 0, 1}, {2, 9, 0, 0}, {3, 0, 5, 1}};
  for (const auto& [rank, rope] : {std::pair{512u, 64u}, {128u, 16u}, {320u, 32u}, {256u, 128u}}) {
    ExpectExact(cuda, Latent(3, rank, rope), step, true);
  }
  ExpectExact(cuda, Latent(128, 512, 64), {{0, 70, 0, 1}, {1, 30, 2, 0}}, true);
  AttentionShape large_pages = Latent(16, 512, 64);
  large_pages.page_size = 64;
  ExpectExact(cuda, large_pages, {{0, 190, 3, 0}, {1, 100, 0, 2}}, true);
}

TEST(AttentionLatentTest, OtherShapesAndTypesRunInTheOtherKernels) {
  const AttentionBackend cuda(2);
  const std::vector<StepRows> step = {{0, 70, 2, 0}, {1, 33, 0, 1}};
  ExpectExact(cuda, Latent(2, 32, 16), step, false);
  ExpectExact(cuda, Latent(2, 64, 8), step, false);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kI8), step, false);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kF8E4M3), step, false);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kF16), step, false);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kF32, DType::kF32), step, false);
}

TEST(AttentionLatentTest, MoreValueColumnsThanAHeadHasAreRefused) {
  const AttentionBackend cuda;
  AttentionShape shape = Latent(2, 32, 16);
  shape.value_columns = 49;
  const AttentionRig rig(shape, {5}, 3);
  EXPECT_EQ(DeviceStep(rig, cuda, {{0, 4, 0, 1}}).Enqueue().message(),
            "attention wants 49 columns of values, heads have 48");
}

TEST(AttentionLatentBitsTest, ChunksAndClassesDoNotShow) {
  const AttentionBackend cuda;
  const AttentionRig rig(Latent(3, 128, 32), {2100}, 9);
  const std::vector<float> once = rig.Run(cuda, {{0, 2030, 70, 0}});
  std::vector<float> chunks;
  for (const StepRows& rows : {StepRows{0, 2030, 1, 0}, StepRows{0, 2031, 30, 0},
                               StepRows{0, 2061, 0, 1}, StepRows{0, 2062, 37, 1}}) {
    const std::vector<float> out = rig.Run(cuda, {rows});
    chunks.insert(chunks.end(), out.begin(), out.end());
  }
  EXPECT_TRUE(SameBits(once, chunks));
}

// Spans as items of their own, or one after the other in one block, and whatever else the step has.
TEST(AttentionLatentBitsTest, TheCutDoesNotShow) {
  const std::vector<std::uint32_t> lengths = {4200, 40, 2049};
  const std::vector<StepRows> alone = {{0, 4199, 0, 1}};
  const std::vector<StepRows> step = {{0, 4199, 0, 1}, {1, 39, 0, 1}, {2, 2048, 0, 1}};
  const AttentionBackend many(64);
  const AttentionBackend one(1, 3);
  // Has room for fewer partial results than 4200 tokens have spans. 32 heads fill a partial result,
  // so that one too many runs into what lies behind the plan's memory.
  const AttentionBackend two(2);
  // Cancelling values show the order of the reductions, loud queries their factors.
  for (const bool cancelling : {true, false}) {
    SCOPED_TRACE(cancelling);
    AttentionShape shape = Latent(32, 128, 16);
    shape.cancelling = cancelling;
    const AttentionRig rig(shape, lengths, 5);
    const std::vector<float> cut = rig.Run(many, alone);
    EXPECT_TRUE(SameBits(cut, rig.Run(one, alone)));
    EXPECT_TRUE(SameBits(cut, rig.Run(two, alone)));
    std::vector<float> rest = rig.Run(one, step);
    EXPECT_TRUE(SameBits(rest, rig.Run(many, step)));
    EXPECT_TRUE(SameBits(rest, rig.Run(two, step)));
    rest.resize(cut.size());
    EXPECT_TRUE(SameBits(cut, rest));
  }
}

// More sequences than are counted at once.
TEST(AttentionLatentBitsTest, LongBatchesAreCountedThrough) {
  std::vector<std::uint32_t> lengths;
  std::vector<StepRows> step;
  for (std::uint32_t s = 0; s < 300; ++s) {
    lengths.push_back(1 + s % 3);
    step.push_back({s, s % 3, 0, s % 7 == 0 ? 0u : 1u});
  }
  const AttentionRig rig(Latent(2, 128, 16), lengths, 6);
  const AttentionBackend cuda(2);
  EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), 6e-3);
}

}  // namespace
}  // namespace quire::kernels
