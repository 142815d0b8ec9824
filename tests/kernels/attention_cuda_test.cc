// Attention on the emulated GPU. Results are compared with double precision over the same pages,
// and must be bitwise invariant to batching, chunking and scheduling.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/device_graph.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

// Compares bit by bit, NaN included.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

double Tolerance(DType kv) {
  return kv == DType::kF8E4M3 || kv == DType::kI8 ? 6e-3 : 4e-3;
}

std::string Describe(const AttentionShape& s, const std::vector<StepRows>& step) {
  std::string text = absl::StrCat("heads ", s.heads, "/", s.kv_heads, " of ", s.head_size,
                                  ", pages of ", s.page_size, " ", DTypeName(s.kv), ":");
  for (const StepRows& r : step) {
    absl::StrAppend(&text, " {", r.cached, " + ", r.prompt, " + ", r.generated, "}");
  }
  return text;
}

void ExpectExact(const AttentionBackend& cuda, const AttentionShape& shape,
                 const std::vector<StepRows>& step, double tolerance) {
  SCOPED_TRACE(Describe(shape, step));
  std::vector<std::uint32_t> lengths;
  for (const StepRows& r : step) lengths.push_back(r.cached + r.prompt + r.generated);
  const AttentionRig rig(shape, lengths, 11);
  const std::vector<float> once = rig.Run(cuda, step);
  EXPECT_LE(RelativeError(once, rig.Exact(step)), tolerance);
  EXPECT_TRUE(SameBits(once, rig.Run(cuda, step))) << "a second run differs";
}

struct Heads {
  std::uint32_t heads;
  std::uint32_t kv_heads;
};
constexpr Heads kHeads[] = {{8, 8}, {32, 8}, {28, 4}, {16, 1}};
constexpr std::uint32_t kHeadSizes[] = {64, 128, 80, 96};
constexpr std::uint32_t kPageSizes[] = {16, 32, 64, 128};
constexpr DType kElements[] = {DType::kBF16, DType::kF8E4M3, DType::kI8};

// Lengths at and around pages, tiles, spans and groups. Every pair of values of the other axes
// occurs.
TEST(AttentionCudaTest, DecodeRowsEqualDoublePrecision) {
  const AttentionBackend cuda(1);
  const std::uint32_t lengths[] = {1,   15,  16,  17,  63,   64,   65,   127, 129,
                                   511, 512, 513, 577, 1000, 2047, 2049, 4097};
  const std::uint32_t rows[] = {1, 2, 5};
  std::uint32_t i = 0;
  for (const std::uint32_t length : lengths) {
    const Heads heads = length > 600 ? Heads{7, 1} : kHeads[(i / 4 + i) % 4];
    AttentionShape shape;
    shape.heads = heads.heads;
    shape.kv_heads = heads.kv_heads;
    shape.head_size = kHeadSizes[i % 4];
    shape.page_size = kPageSizes[(i / 2) % 4];
    shape.kv = kElements[(i + i / 4) % 3];
    const std::uint32_t count = std::min(rows[i % 3], length);
    ExpectExact(cuda, shape, {{0, length - count, 0, count}, {1, 33, 0, 1}}, Tolerance(shape.kv));
    ++i;
  }
}

TEST(AttentionCudaTest, EveryDecodeKernelEqualsDoublePrecision) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    for (const std::uint32_t head_size : {16u, 64u, 80u, 96u, 112u, 128u}) {
      AttentionShape shape{8, 2, head_size, 32, kv, DType::kBF16, 0};
      ExpectExact(cuda, shape, {{0, 98, 0, 3}}, Tolerance(kv));
    }
  }
}

TEST(AttentionCudaTest, EveryPrefillKernelEqualsDoublePrecision) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    for (const std::uint32_t head_size : {48u, 64u, 80u, 128u}) {
      AttentionShape shape{4, 2, head_size, 16, kv, DType::kBF16, 0};
      ExpectExact(cuda, shape, {{0, 67, 70, 0}}, Tolerance(kv));
    }
  }
}

TEST(AttentionCudaTest, PromptRowsEqualDoublePrecision) {
  const AttentionBackend cuda(2);
  const struct {
    Heads heads;
    std::uint32_t cached;
    std::uint32_t prompt;
  } cases[] = {{{8, 8}, 0, 1},    {{7, 1}, 0, 64},   {{16, 1}, 15, 5},  {{8, 2}, 0, 130},
               {{7, 1}, 449, 64}, {{16, 1}, 511, 2}, {{4, 2}, 127, 65}, {{2, 1}, 960, 70}};
  std::uint32_t i = 0;
  for (const auto& c : cases) {
    AttentionShape shape{c.heads.heads,
                         c.heads.kv_heads,
                         kHeadSizes[(i + i / 4) % 4],
                         kPageSizes[i % 4],
                         DType::kBF16,
                         DType::kBF16,
                         0};
    ExpectExact(cuda, shape, {{0, c.cached, c.prompt, 0}}, Tolerance(shape.kv));
    ++i;
  }
}

// Prefill and decode tokens of one sequence, sequences without rows, and both classes in one step.
TEST(AttentionCudaTest, MixedStepsEqualDoublePrecision) {
  const AttentionBackend cuda;
  const AttentionShape shape;
  ExpectExact(cuda, shape,
              {{0, 0, 0, 0}, {1, 20, 30, 5}, {2, 0, 0, 0}, {3, 600, 0, 1}, {4, 5, 9, 0}},
              Tolerance(shape.kv));
}

TEST(AttentionCudaTest, StepWithoutRowsWritesNothing) {
  const AttentionBackend cuda;
  const AttentionRig rig({}, {16, 16}, 5);
  EXPECT_TRUE(rig.Run(cuda, {{0, 7, 0, 0}, {1, 0, 0, 0}}).empty());
}

TEST(AttentionCudaTest, ScalarKernelEqualsDoublePrecision) {
  const AttentionBackend cuda;
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    for (const std::uint32_t head_size : {16u, 200u, 576u}) {
      AttentionShape shape{4, 2, head_size, 16, kv, DType::kF32, 0};
      ExpectExact(cuda, shape, {{0, 40, 3, 1}, {1, 0, 0, 0}, {2, 0, 1, 0}}, 1e-5);
    }
  }
  // Covers combinations that bf16 activations do not support elsewhere.
  ExpectExact(cuda, {4, 2, 40, 16, DType::kBF16, DType::kBF16, 0}, {{0, 30, 5, 2}}, 4e-3);
  ExpectExact(cuda, {4, 2, 64, 16, DType::kF32, DType::kBF16, 0}, {{0, 30, 5, 2}}, 4e-3);
  ExpectExact(cuda, {4, 2, 64, 16, DType::kI8, DType::kBF16, 16}, {{0, 30, 5, 2}}, 4e-3);
}

// Returns the output of a sequence's rows in a step of their own.
std::vector<float> Alone(const AttentionBackend& cuda, const AttentionRig& rig,
                         const StepRows& rows) {
  return rig.Run(cuda, {rows});
}

TEST(AttentionBitsTest, RowsDoNotDependOnTheBatch) {
  const AttentionBackend cuda;
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    AttentionShape shape{14, 2, 64, 32, kv, DType::kBF16, 0};
    const AttentionRig rig(shape, {700, 40, 130, 9}, 3);
    const std::vector<StepRows> step = {
        {0, 696, 0, 4}, {1, 10, 20, 0}, {2, 129, 0, 1}, {3, 0, 7, 2}};
    const std::vector<float> together = rig.Run(cuda, step);
    std::vector<float> alone;
    for (const StepRows& rows : step) {
      const std::vector<float> out = Alone(cuda, rig, rows);
      alone.insert(alone.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(together, alone)) << DTypeName(kv);
  }
}

// Decode tokens one step at a time, as first generated, and all in one step, as after preemption.
TEST(AttentionBitsTest, DecodeRowsDoNotDependOnTheStep) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    for (const bool cancelling : {false, true}) {
      AttentionShape shape{7, 1, 64, 16, kv, DType::kBF16, 0};
      shape.cancelling = cancelling;
      const AttentionRig rig(shape, {517}, 8);
      const std::vector<float> together = rig.Run(cuda, {{0, 509, 0, 8}});
      std::vector<float> alone;
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::vector<float> out = Alone(cuda, rig, {0, 509 + i, 0, 1});
        alone.insert(alone.end(), out.begin(), out.end());
      }
      EXPECT_TRUE(SameBits(together, alone)) << DTypeName(kv) << (cancelling ? " cancelling" : "");
    }
  }
}

TEST(AttentionBitsTest, ChunkingDoesNotChangeBits) {
  const AttentionBackend cuda;
  for (const DType kv : {DType::kBF16, DType::kI8}) {
    for (const bool cancelling : {false, true}) {
      AttentionShape shape{6, 2, 64, 16, kv, DType::kBF16, 0};
      shape.cancelling = cancelling;
      const AttentionRig rig(shape, {151}, 9);
      const std::vector<float> once = rig.Run(cuda, {{0, 0, 151, 0}});
      std::vector<float> chunks;
      for (const auto& [first, count] :
           {std::pair{0u, 50u}, {50u, 1u}, {51u, 80u}, {131u, 19u}, {150u, 1u}}) {
        const std::vector<float> out = rig.Run(cuda, {{0, first, count, 0}});
        chunks.insert(chunks.end(), out.begin(), out.end());
      }
      EXPECT_TRUE(SameBits(once, chunks)) << DTypeName(kv) << (cancelling ? " cancelling" : "");
    }
  }
}

// With more multiprocessors the same rows are cut into single spans, with fewer into groups, and
// with one not at all.
TEST(AttentionBitsTest, CutsOfARowDoNotChangeBits) {
  for (const bool cancelling : {false, true}) {
    AttentionShape shape{8, 1, 64, 64, DType::kBF16, DType::kBF16, 0};
    shape.cancelling = cancelling;
    std::vector<std::uint32_t> lengths = {2700};  // the second group has two spans
    std::vector<StepRows> step = {{0, 2699, 0, 1}};
    for (std::uint32_t s = 1; s < 35; ++s) {
      lengths.push_back(s == 1 ? 1100 : 20 + s);
      step.push_back({s, lengths.back() - 1, 0, 1});
    }
    const AttentionRig rig(shape, lengths, 4);
    const std::vector<float> spans = rig.Run(AttentionBackend(64), step);
    const std::vector<float> groups = rig.Run(AttentionBackend(8), step);
    const std::vector<float> rows = rig.Run(AttentionBackend(1), step);
    EXPECT_TRUE(SameBits(spans, groups)) << cancelling;
    EXPECT_TRUE(SameBits(spans, rows)) << cancelling;
    if (!cancelling) {
      EXPECT_LE(RelativeError(spans, rig.Exact(step)), 4e-3);
    }
  }
}

TEST(AttentionBitsTest, ThreadOrderDoesNotChangeBits) {
  for (const DType kv : {DType::kBF16, DType::kI8}) {
    AttentionShape shape{8, 2, 128, 16, kv, DType::kBF16, 0};
    const AttentionRig rig(shape, {530, 90}, 6);
    const std::vector<StepRows> step = {{0, 529, 0, 1}, {1, 20, 70, 0}};
    EXPECT_TRUE(
        SameBits(rig.Run(AttentionBackend(4, 1), step), rig.Run(AttentionBackend(4, 77), step)))
        << DTypeName(kv);
  }
}

// Planner and attention are captured once and then follow the lengths in device memory.
TEST(AttentionBitsTest, CapturedStepsFollowTheLengths) {
  const AttentionBackend cuda;
  const AttentionRig rig({8, 2, 64, 16, DType::kBF16, DType::kBF16, 0}, {900, 200, 60}, 12);
  const std::vector<StepRows> first = {{0, 30, 0, 1}, {1, 2, 9, 0}, {2, 0, 0, 0}};
  DeviceStep device(rig, cuda, first, 160);
  auto graph = DeviceGraph::Capture(cuda.stream(), [&] { return device.Enqueue(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<StepRows> steps[] = {first,
                                         {{0, 899, 0, 1}, {1, 60, 140, 0}, {2, 59, 0, 1}},
                                         {{2, 10, 20, 3}, {0, 510, 0, 5}, {1, 0, 0, 0}},
                                         {{0, 2, 0, 1}, {1, 0, 1, 0}, {2, 0, 0, 0}}};
  for (const std::vector<StepRows>& step : steps) {
    device.Set(step);
    ASSERT_TRUE(graph->Launch(cuda.stream()).ok());
    EXPECT_TRUE(SameBits(device.Read(), rig.Run(cuda, step))) << Describe(rig.shape(), step);
  }
}

// Pages are more than 2^32 bytes and 2^31 elements after the first.
TEST(AttentionBitsTest, AddressesPagesBeyond4GiB) {
  AttentionShape shape{8, 8, 128, 128, DType::kBF16, DType::kBF16, 0};
  const std::vector<StepRows> step = {{0, 150, 0, 1}, {1, 20, 30, 0}};
  const AttentionBackend cuda;
  const std::vector<float> near = AttentionRig(shape, {151, 50}, 13).Run(cuda, step);
  shape.first_page = (1u << 20) / shape.page_size;  // a token takes 4096 bytes
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  options.memory_bytes = std::uint64_t{8} << 30;
  cuda_emulator::SetOptions(options);
  const std::vector<float> far = AttentionRig(shape, {151, 50}, 13).Run(cuda, step);
  EXPECT_TRUE(SameBits(near, far));
}

TEST(AttentionErrorTest, NamesWhatIsWrong) {
  const AttentionBackend cuda;
  const auto message = [&](const AttentionShape& shape) {
    const AttentionRig rig(shape, {20}, 2);
    return std::string(DeviceStep(rig, cuda, {{0, 19, 0, 1}}).Enqueue().message());
  };
  EXPECT_EQ(message({2, 1, 592, 16, DType::kBF16, DType::kF32, 0}),
            "attention has heads of 592 columns, the limit is 576");
  EXPECT_EQ(message({2, 1, 64, 16, DType::kBF16, DType::kF16, 0}),
            "attention has queries in f16 and output in f16, supported are f32 or bf16 for both");
  EXPECT_EQ(message({2, 1, 64, 16, DType::kF16, DType::kBF16, 0}),
            "attention has f16 pages, supported on a GPU are f32, bf16, fp8_e4m3 and int8");
}

TEST(AttentionErrorTest, RejectsANegativeSoftCap) {
  const AttentionBackend cuda;
  AttentionShape shape;
  shape.softcap = -1;
  const AttentionRig rig(shape, {20}, 2);
  const absl::Status status = DeviceStep(rig, cuda, {{0, 19, 0, 1}}).Enqueue();
  EXPECT_EQ(status.message(), "attention has softcap -1, it must be at least 0");
}

// The items of a plan are distributed over as many blocks as shared memory allows. Their number
// must not change the result. A real GPU has only one capability.
TEST(AttentionBitsTest, BlocksPerMultiprocessorDoNotChangeBits) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "needs devices of two capabilities";
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  const struct {
    DType kv;
    std::uint32_t blocks_80, blocks_90;
  } cases[] = {{DType::kF8E4M3, 2, 3}, {DType::kI8, 2, 3}, {DType::kBF16, 1, 2}};
  for (const auto& c : cases) {
    const AttentionShape shape{8, 2, 128, 64, c.kv, DType::kBF16, 0};
    const AttentionRig rig(shape, {700, 600, 1100, 65, 300}, 4);
    const std::vector<StepRows> step = {
        {0, 699, 0, 1}, {1, 597, 0, 3}, {2, 1099, 0, 1}, {3, 64, 0, 1}, {4, 299, 0, 1}};
    std::vector<std::vector<float>> out;
    for (const auto& [capability, blocks] :
         {std::pair{80, c.blocks_80}, std::pair{90, c.blocks_90}}) {
      options.compute_capability = capability;
      cuda_emulator::SetOptions(options);
      const AttentionBackend cuda(2);
      const std::uint64_t before = cuda_emulator::BlockCount("attention decode");
      out.push_back(rig.Run(cuda, step));
      EXPECT_EQ(cuda_emulator::BlockCount("attention decode") - before, 2 * blocks);
    }
    EXPECT_TRUE(SameBits(out[0], out[1])) << DTypeName(c.kv);
  }
}

}  // namespace
}  // namespace quire::kernels
