// Attention over MLA cache rows, which contain K and V, on the emulated GPU. Results are compared
// with double precision over the same pages, and must be bitwise invariant to batching, chunking
// and scheduling.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/attention/attention_work.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

// The kernel for GPUs before Hopper, and the kernel with tensor maps.
constexpr char kKernel[] = "attention latent";
constexpr char kHopperKernel[] = "attention latent sm_90a";

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

// `kernel` names the kernel that must run. Null means neither of the two.
void ExpectExact(const AttentionBackend& cuda, const AttentionShape& shape,
                 const std::vector<StepRows>& step, const char* kernel) {
  SCOPED_TRACE(absl::StrCat(shape.heads, " heads of ", shape.head_size, " columns, pages of ",
                            shape.page_size, " ", DTypeName(shape.kv), ", ",
                            DTypeName(shape.activations)));
  std::vector<std::uint32_t> lengths;
  for (const StepRows& r : step) lengths.push_back(r.cached + r.prompt + r.generated);
  const AttentionRig rig(shape, lengths, 21);
  const auto count = [](const char* name) { return cuda_emulator::LaunchCount(name); };
  const std::uint64_t before[] = {count(kKernel), count(kHopperKernel)};
  const bool is_quantized = shape.kv == DType::kF8E4M3 || shape.kv == DType::kI8;
  EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), shape.activations == DType::kF32
                                                                     ? 2e-5
                                                                 : is_quantized ? 1e-2
                                                                                : 6e-3);
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(count(kKernel) - before[0], kernel == kKernel ? 1u : 0u);
    EXPECT_EQ(count(kHopperKernel) - before[1], kernel == kHopperKernel ? 1u : 0u);
  }
}

// A partial row has 512 values, a maximum and a sum.
constexpr std::size_t kPartialFloats = 514;

// Runs a step and returns the number of rows of partial results written.
std::vector<float> RunAndCount(const AttentionRig& rig, const AttentionBackend& cuda,
                               const std::vector<StepRows>& step, std::size_t* partial_rows) {
  DeviceStep device(rig, cuda, step);
  std::vector<float> memory;
  const absl::Status status =
      device.Enqueue([&](const Backend& backend, const AttentionParams& params) -> absl::Status {
        const AttentionWorkLists lists = AttentionPlanAccess::Lists(*params.plan);
        memory.assign(std::size_t{MaxPartials(cuda.num_sms())} * lists.partial_floats,
                      std::numeric_limits<float>::quiet_NaN());
        const auto bytes = static_cast<std::int64_t>(memory.size() * sizeof(float));
        QUIRE_RETURN_IF_ERROR(cuda.stream().Copy(lists.partials, memory.data(), bytes));
        QUIRE_RETURN_IF_ERROR(PagedAttention(backend, params));
        QUIRE_RETURN_IF_ERROR(cuda.stream().Copy(memory.data(), lists.partials, bytes));
        return cuda.stream().Synchronize();
      });
  EXPECT_TRUE(status.ok()) << status;
  const auto written = static_cast<std::size_t>(
      std::count_if(memory.begin(), memory.end(), [](float x) { return !std::isnan(x); }));
  EXPECT_EQ(written % kPartialFloats, 0u);
  *partial_rows = written / kPartialFloats;
  return device.Read();
}

// Parameter: with or without tensor maps.
class AttentionLatentTest : public testing::TestWithParam<bool> {
 protected:
  static AttentionShape WithMaps(AttentionShape shape) {
    shape.tensor_maps = GetParam();
    return shape;
  }
  static const char* Kernel() { return GetParam() ? kHopperKernel : kKernel; }
};
INSTANTIATE_TEST_SUITE_P(Maps, AttentionLatentTest, testing::Bool());

TEST_P(AttentionLatentTest, TensorCoreKernelEqualsDoublePrecision) {
  const AttentionBackend cuda(2);
  // Prompt and decode tokens, a tile boundary and a span boundary, sequences without rows.
  const std::vector<StepRows> step = {{0, 2047, 3, 0}, {1, 33, 0, 1}, {2, 9, 0, 0}, {3, 0, 5, 1}};
  for (const auto& [rank, rope] : {std::pair{512u, 64u}, {128u, 16u}, {320u, 32u}, {256u, 128u}}) {
    ExpectExact(cuda, WithMaps(Latent(3, rank, rope)), step, Kernel());
  }
  ExpectExact(cuda, WithMaps(Latent(128, 512, 64)), {{0, 70, 0, 1}, {1, 30, 2, 0}}, Kernel());
  for (const std::uint32_t page_size : {32u, 64u, 128u}) {
    AttentionShape pages = WithMaps(Latent(16, 512, 64));
    pages.page_size = page_size;
    ExpectExact(cuda, pages, {{0, 190, 3, 0}, {1, 100, 0, 2}}, Kernel());
  }
}

// Warps, the two halves of a block and the copies run in different orders.
TEST_P(AttentionLatentTest, ThreadOrderDoesNotChangeBits) {
  const AttentionRig rig(WithMaps(Latent(16, 512, 64)), {1100, 130, 64}, 4);
  const std::vector<StepRows> step = {{0, 1098, 0, 2}, {1, 100, 30, 0}, {2, 63, 0, 1}};
  const std::vector<float> first = rig.Run(AttentionBackend(3, 1), step);
  EXPECT_LE(RelativeError(first, rig.Exact(step)), 6e-3);
  for (const std::uint64_t seed : {2, 3, 4, 5}) {
    EXPECT_TRUE(SameBits(first, rig.Run(AttentionBackend(3, seed), step))) << seed;
  }
}

TEST(AttentionLatentDispatchTest, OtherShapesAndTypesUseOtherKernels) {
  const AttentionBackend cuda(2);
  const std::vector<StepRows> step = {{0, 70, 2, 0}, {1, 33, 0, 1}};
  ExpectExact(cuda, Latent(2, 32, 16), step, nullptr);
  ExpectExact(cuda, Latent(2, 64, 8), step, nullptr);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kI8), step, nullptr);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kF8E4M3), step, nullptr);
  ExpectExact(cuda, Latent(2, 512, 64, DType::kF32, DType::kF32), step, nullptr);
}

// Shapes that the Hopper kernel does not support run in the portable one, also with maps.
TEST(AttentionLatentDispatchTest, UnalignedRowsUseThePortableKernel) {
  const AttentionBackend cuda(2);
  AttentionShape shape = Latent(3, 512, 64);
  shape.tensor_maps = true;
  ExpectExact(cuda, shape, {{0, 70, 2, 0}}, kHopperKernel);
  shape.out_gap = 4;
  ExpectExact(cuda, shape, {{0, 70, 2, 0}}, kKernel);
}

TEST(AttentionLatentDispatchTest, RejectsMoreValueColumnsThanTheHeadSize) {
  const AttentionBackend cuda;
  AttentionShape shape = Latent(2, 32, 16);
  shape.value_columns = 49;
  const AttentionRig rig(shape, {5}, 3);
  EXPECT_EQ(DeviceStep(rig, cuda, {{0, 4, 0, 1}}).Enqueue().message(),
            "attention has value_columns 49, it must be at most the head size 48");
}

TEST_P(AttentionLatentTest, ChunksAndClassesDoNotChangeBits) {
  const AttentionBackend cuda;
  const AttentionRig rig(WithMaps(Latent(3, 128, 32)), {2100}, 9);
  const std::vector<float> once = rig.Run(cuda, {{0, 2030, 70, 0}});
  std::vector<float> chunks;
  for (const StepRows& rows : {StepRows{0, 2030, 1, 0}, StepRows{0, 2031, 30, 0},
                               StepRows{0, 2061, 0, 1}, StepRows{0, 2062, 37, 1}}) {
    const std::vector<float> out = rig.Run(cuda, {rows});
    chunks.insert(chunks.end(), out.begin(), out.end());
  }
  EXPECT_TRUE(SameBits(once, chunks));
}

// Spans are separate items, or run in sequence in one block, whatever else the step contains.
TEST_P(AttentionLatentTest, TheCutDoesNotChangeBits) {
  const std::vector<std::uint32_t> lengths = {4200, 40, 2049};
  const std::vector<StepRows> alone = {{0, 4199, 0, 1}};
  const std::vector<StepRows> step = {{0, 4199, 0, 1}, {1, 39, 0, 1}, {2, 2048, 0, 1}};
  const AttentionBackend many(64);
  const AttentionBackend one(1, 3);
  // The plan fits 145 rows of partial results. 4200 tokens have five spans of 32.
  const AttentionBackend two(2);
  // Cancelling values reveal the order of the reductions, large queries their factors.
  for (const bool cancelling : {true, false}) {
    SCOPED_TRACE(cancelling);
    AttentionShape shape = WithMaps(Latent(32, 128, 16));
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

// There are ten blocks of the Hopper kernel (20 of the other) times three spans. Rows of the first
// eight tokens see two spans, so their third item has no tiles.
TEST_P(AttentionLatentTest, CutsBlocksOfASequenceSeparately) {
  const AttentionRig rig(WithMaps(Latent(32, 128, 16)), {2060}, 8);
  const std::vector<StepRows> step = {{0, 2040, 20, 0}};
  const AttentionBackend many(64);
  std::size_t partial_rows = 0;
  const std::vector<float> cut = RunAndCount(rig, many, step, &partial_rows);
  EXPECT_EQ(partial_rows, 32 * (8 * 2 + 12 * 3));
  EXPECT_LE(RelativeError(cut, rig.Exact(step)), 6e-3);
  EXPECT_TRUE(SameBits(cut, rig.Run(AttentionBackend(1, 3), step)));
}

// Partial results take the rows of a block, up to the limit of 290.
TEST_P(AttentionLatentTest, CutsAStepWhileItsRowsFitThePlanMemory) {
  const struct {
    std::uint32_t heads;
    std::vector<StepRows> step;
    std::size_t partial_rows;
  } cases[] = {
      {29, {{0, 4198, 2, 0}}, std::size_t{5} * 58},
      // 320 rows do not fit. Blocks that process all spans keep theirs.
      {32, {{0, 4198, 2, 0}}, 64},
      {16, {{0, 4199, 0, 1}, {1, 4198, 0, 1}, {2, 4197, 0, 1}}, std::size_t{5} * 48},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.heads);
    const AttentionRig rig(WithMaps(Latent(c.heads, 128, 16)), {4200, 4200, 4200}, 10);
    const AttentionBackend four(4);
    std::size_t partial_rows = 0;
    const std::vector<float> out = RunAndCount(rig, four, c.step, &partial_rows);
    EXPECT_EQ(partial_rows, c.partial_rows);
    EXPECT_LE(RelativeError(out, rig.Exact(c.step)), 6e-3);
    EXPECT_TRUE(SameBits(out, rig.Run(AttentionBackend(1, 3), c.step)));
  }
}

// There are more sequences than are counted in one pass.
TEST_P(AttentionLatentTest, CountsAllSequencesOfLongBatches) {
  std::vector<std::uint32_t> lengths;
  std::vector<StepRows> step;
  for (std::uint32_t s = 0; s < 300; ++s) {
    lengths.push_back(1 + s % 3);
    step.push_back({s, s % 3, 0, s % 7 == 0 ? 0u : 1u});
  }
  const AttentionRig rig(WithMaps(Latent(2, 128, 16)), lengths, 6);
  const AttentionBackend cuda(2);
  EXPECT_LE(RelativeError(rig.Run(cuda, step), rig.Exact(step)), 6e-3);
}

// A graph is captured for the largest number of sequences, but its time must depend on those with
// tokens.
TEST_P(AttentionLatentTest, SequencesWithoutTokensAreNotScanned) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "counts are those of the emulator";
  const AttentionRig rig(WithMaps(Latent(2, 128, 16)), std::vector<std::uint32_t>(300, 90), 6);
  const AttentionBackend cuda(2);
  const auto collectives = [&](const std::vector<StepRows>& step) {
    const std::uint64_t before = cuda_emulator::CollectiveCount();
    rig.Run(cuda, step);
    return cuda_emulator::CollectiveCount() - before;
  };
  std::vector<StepRows> padded = {{0, 89, 0, 1}};
  for (std::uint32_t s = 1; s < 300; ++s) padded.push_back({s, 89, 0, 0});
  const std::uint64_t alone = collectives({padded[0]});
  EXPECT_GT(alone, 0u);
  EXPECT_EQ(collectives(padded), alone);
}

}  // namespace
}  // namespace quire::kernels
