// Linear of compute capability 9.0 on the emulated GPU or a real one, compared with double
// precision and bitwise with the portable kernel.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/device_graph.h"
#include "base/logging.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"
#include "tests/kernels/portable_device.h"

namespace quire::kernels {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr char kKernel[] = "linear sm_90a";
using Options = Run;  // testing::Test also has a member Run

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::uint64_t Launches() {
  return cuda_emulator::LaunchCount(kKernel);
}

struct Case {
  std::uint32_t n, k, rows;
  bool splits;  // whether K has several sub-ranges
};

// One sub-range: tiles of 64 and 128 tokens with one row block and two, and the tile of 256 where
// the 4 emulated multiprocessors have no room for these. Several sub-ranges with a shorter last
// one. K and N end inside a tile, and K has more tiles than there are stages.
constexpr Case kCases[] = {{5, 8, 17, false},      {200, 440, 64, false},  {5, 8, 65, false},
                           {200, 136, 127, false}, {130, 440, 128, false}, {136, 440, 129, false},
                           {648, 440, 129, false}, {300, 72, 385, false},  {130, 584, 200, true},
                           {300, 1032, 129, true}};

TEST(LinearSm90Test, RowsAreNearDoublePrecisionAndEqualThePortableKernel) {
  const CudaBackend cuda;
  for (const Case& c : kCases) {
    ASSERT_EQ(cuda::LinearReductionOf(c.n, c.k).splits > 1, c.splits);
    const auto w = Rounded(RandomFloats(std::size_t{c.n} * c.k, 1, 0.05f), kBF16);
    const PackedLinear packed = Pack(cuda, w, kBF16, c.n, c.k);
    const Inputs in(c.rows, c.n, c.k, kBF16);
    for (const Options& run : {Options{}, Options{.y_dtype = kBF16, .extras = true}}) {
      SCOPED_TRACE(absl::StrCat(c.n, "x", c.k, " rows ", c.rows, " y ", DTypeName(run.y_dtype)));
      const std::uint64_t before = Launches();
      const std::vector<float> y = Compute(cuda, packed, in, run, 0, c.rows);
      EXPECT_EQ(Launches() - before, cuda_emulator::IsEmulated() ? 1u : 0u);
      const auto exact = run.extras ? Exact(in.x, w, in.bias, in.residual, c.rows, c.n, c.k)
                                    : Exact(in.x, w, {}, {}, c.rows, c.n, c.k);
      EXPECT_LE(RelativeError(y, exact), Tolerance(run.y_dtype));
      if (!cuda_emulator::IsEmulated()) continue;
      const PortableDevice portable;
      EXPECT_TRUE(
          SameBits(y, Compute(*portable, Pack(*portable, w, kBF16, c.n, c.k), in, run, 0, c.rows)));
      EXPECT_EQ(Launches(), before + 1);
    }
  }
}

// There are more than two tiles of 128 rows per multiprocessor, so that on every GPU pairs of
// blocks of 256 and of 128 rows process them. Single rows use the portable kernel, and 64 rows of
// one sub-range the tile of 64.
TEST(LinearSm90Test, SingleRowsEqualThoseInManyBlocksBitwise) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 136;
  for (const std::uint32_t k : {200u, 600u}) {
    const std::uint32_t rows = (*cuda).cuda()->num_sms * 128 + 2;
    const PackedLinear packed = Pack(cuda, RandomFloats(kN * k, 1, 0.05f), kBF16, kN, k);
    const Inputs in(rows, kN, k, kBF16);
    const Options run{.extras = true};
    const std::uint64_t before = Launches();
    const std::vector<float> all = Compute(cuda, packed, in, run, 0, rows);
    EXPECT_EQ(Launches() - before, cuda_emulator::IsEmulated() ? 1u : 0u);
    for (const std::uint32_t count : {1u, 9u, 64u}) {
      for (const std::uint32_t first : {0u, rows / 2, rows - count}) {
        const std::vector<float> alone = Compute(cuda, packed, in, run, first, count);
        EXPECT_EQ(std::memcmp(alone.data(), all.data() + std::size_t{first} * kN,
                              alone.size() * sizeof(float)),
                  0)
            << count << " rows from " << first << " of " << rows << ", k " << k;
      }
    }
  }
}

TEST(LinearSm90Test, ThreadAndBlockOrderDoNotChangeBits) {
  constexpr std::uint32_t kN = 129, kK = 584, kRows = 130;
  const auto w = RandomFloats(kN * kK, 1, 0.05f);
  const Inputs in(kRows, kN, kK, kBF16);
  std::vector<float> reference;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    auto options = cuda_emulator::GetOptions();
    options.seed = seed;
    cuda_emulator::SetOptions(options);
    const CudaBackend cuda;
    const PackedLinear packed = Pack(cuda, w, kBF16, kN, kK);
    const auto y = Compute(cuda, packed, in, {}, 0, kRows);
    if (reference.empty()) reference = y;
    EXPECT_TRUE(SameBits(y, reference)) << seed;
  }
  cuda_emulator::Reset();
}

TEST(LinearSm90Test, NonFiniteValuesStayInTheirRow) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 40, kK = 72, kRows = 130;
  const PackedLinear packed = Pack(cuda, RandomFloats(kN * kK, 1), kBF16, kN, kK);
  Inputs in(kRows, kN, kK, kBF16);
  in.x[4 * kK + 70] = std::numeric_limits<float>::quiet_NaN();
  in.x[129 * kK] = std::numeric_limits<float>::infinity();
  const auto y = Compute(cuda, packed, in, {}, 0, kRows);
  for (std::uint32_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(std::isfinite(y[i]), i / kN != 4 && i / kN != 129) << i;
  }
}

// A captured launch keeps its tensor maps and reads the current memory when it runs.
TEST(LinearSm90Test, CapturedLaunchesReadNewRows) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 128, kK = 64, kRows = 129;
  const PackedLinear packed = Pack(cuda, RandomFloats(kN * kK, 1, 0.05f), kBF16, kN, kK);
  DeviceRows x(cuda, kBF16, kRows, kK, kK);
  DeviceRows y(cuda, DType::kF32, kRows, kN, kN);
  const LinearParams params{.x = x.ptr(),
                            .weight = &packed,
                            .y = y.ptr(),
                            .x_stride = x.stride(),
                            .y_stride = y.stride(),
                            .num_rows = kRows};
  Inputs in(kRows, kN, kK, kBF16);
  x.Put(in.x);
  ASSERT_TRUE(Linear(*cuda, params).ok());
  auto graph = DeviceGraph::Capture(cuda.stream(), [&] { return Linear(*cuda, params); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (float& value : in.x) value = -value;
  x.Put(in.x);
  ASSERT_TRUE(graph->Launch(cuda.stream()).ok());
  EXPECT_TRUE(SameBits(y.Get(), Compute(cuda, packed, in, {}, 0, kRows)));
}

// The weights' map is encoded when the matrix is packed, the map of x at each launch.
TEST(LinearSm90Test, LaunchesEncodeOnlyTheMapOfTheRows) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "counts are those of the emulator";
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 600, kK = 80, kRows = 129;
  const std::uint64_t before = cuda_emulator::TensorMapCount();
  const PackedLinear packed = Pack(cuda, RandomFloats(kN * kK, 1, 0.05f), kBF16, kN, kK);
  EXPECT_EQ(cuda_emulator::TensorMapCount() - before, 1u);
  const Inputs in(kRows, kN, kK, kBF16);
  Compute(cuda, packed, in, {}, 0, kRows);
  const std::uint64_t calls = cuda_emulator::FunctionCallCount();
  const std::uint64_t maps = cuda_emulator::TensorMapCount();
  Compute(cuda, packed, in, {}, 0, kRows);
  EXPECT_EQ(cuda_emulator::TensorMapCount() - maps, 1u);
  EXPECT_EQ(cuda_emulator::FunctionCallCount(), calls);
}

// The fallback is logged once.
TEST(LinearSm90Test, UsesThePortableKernelWithoutMapsOrClusters) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "needs an emulated driver";
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 600, kK = 80, kRows = 129;
  const std::vector<float> weights = RandomFloats(kN * kK, 1, 0.05f);
  const PackedLinear packed = Pack(cuda, weights, kBF16, kN, kK);
  const Inputs in(kRows, kN, kK, kBF16);
  const std::vector<float> y = Compute(cuda, packed, in, {}, 0, kRows);
  const std::uint64_t before = Launches();
  const std::uint64_t portable = cuda_emulator::LaunchCount("linear");
  const std::string path = testing::TempDir() + "linear_sm90_log";
  std::remove(path.c_str());
  ASSERT_TRUE(log::Configure({.file = path}).ok());
  const char* const calls[] = {"cudaGetDriverEntryPointByVersion", "cudaDeviceGetAttribute"};
  for (const char* const call : calls) {
    cuda_emulator::InjectFault({.where = call, .error = cudaErrorInvalidValue});
    const PackedLinear unmapped = Pack(cuda, weights, kBF16, kN, kK);
    EXPECT_TRUE(SameBits(Compute(cuda, unmapped, in, {}, 0, kRows), y));
  }
  // The driver has no map of x.
  cuda_emulator::InjectFault({.where = calls[0], .error = cudaErrorInvalidValue});
  EXPECT_TRUE(SameBits(Compute(cuda, packed, in, {}, 0, kRows), y));
  EXPECT_TRUE(log::Flush(absl::Seconds(20)));
  ASSERT_TRUE(log::Configure({}).ok());
  EXPECT_EQ(Launches(), before);
  EXPECT_EQ(cuda_emulator::LaunchCount("linear"), portable + 3);
  std::ifstream lines(path);
  std::string line, more;
  EXPECT_TRUE(std::getline(lines, line));
  EXPECT_NE(line.find("matrix products use the portable kernel"), line.npos) << line;
  EXPECT_FALSE(std::getline(lines, more)) << more;
}

}  // namespace
}  // namespace quire::kernels
