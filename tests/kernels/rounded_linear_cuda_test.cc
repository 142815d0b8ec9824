// Products of e4m3 weights whose rows of x are rounded to e4m3, on the emulated GPU or a real one,
// against double precision on the rounded rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/linear/fp8_rows.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "kernels/linear/quantized_linear.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"
#include "tests/kernels/portable_device.h"
#include "tests/kernels/rounded_rows.h"

namespace quire::kernels {
namespace {

constexpr DType kBF16 = DType::kBF16;
using Options = Run;  // testing::Test has a Run, too

QuantizedShape Fp8(std::uint32_t n, std::uint32_t k, std::uint32_t group) {
  return {.format = WeightFormat::kFp8E4M3,
          .n = n,
          .k = k,
          .group = group,
          .quantizes_activations = true};
}

// A scale per feature and groups that the portable kernel takes.
const QuantizedShape kShapes[] = {Fp8(130, 584, 584), Fp8(130, 584, 128), Fp8(9, 200, 64),
                                  Fp8(5, 8, 8)};

TEST(RoundedLinearCudaTest, PortableRowsAreNearDoublePrecisionOfRoundedRows) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "needs a device of capability 8.0";
  const PortableDevice portable;
  const CudaBackend& cuda = *portable;
  for (const QuantizedShape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.n, "x", shape.k, " group ", shape.group));
    const Quantized made = MakeQuantized(shape);
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_TRUE(packed->quantizes_activations());
    for (const DType x_dtype : {kBF16, DType::kF32}) {
      for (const std::uint32_t rows : {1u, 9u, 70u}) {
        const Inputs in(rows, shape.n, shape.k, x_dtype);
        const auto exact = Exact(RoundedRows(in.x, shape.k), made.worth, in.bias, in.residual, rows,
                                 shape.n, shape.k);
        EXPECT_LE(
            RelativeError(Compute(cuda, *packed, in, {.x_dtype = x_dtype, .extras = true}, 0, rows),
                          exact),
            Tolerance(DType::kF32))
            << DTypeName(x_dtype) << " rows " << rows;
      }
    }
  }
}

// The bits of rows that were rounded before, by weights that round nothing.
TEST(RoundedLinearCudaTest, PortableBitsAreThoseOfRoundedRows) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "needs a device of capability 8.0";
  const PortableDevice portable;
  const CudaBackend& cuda = *portable;
  QuantizedShape shape = Fp8(130, 584, 128);
  const auto packed = MakeQuantized(shape).Pack(*cuda);
  shape.quantizes_activations = false;
  const auto exact = MakeQuantized(shape).Pack(*cuda);
  ASSERT_TRUE(packed.ok() && exact.ok()) << packed.status();
  constexpr std::uint32_t kRows = 66;
  for (const DType x_dtype : {kBF16, DType::kF32}) {
    Inputs in(kRows, shape.n, shape.k, x_dtype);
    for (std::uint32_t k = 0; k < shape.k; ++k) {
      in.x[shape.k + k] = 0;
      in.x[2 * shape.k + k] *= 0x1p-40f;
    }
    const Options run{.x_dtype = x_dtype};
    const std::vector<float> got = Compute(cuda, *packed, in, run, 0, kRows);
    in.x = RoundedRows(in.x, shape.k);
    EXPECT_EQ(got, Compute(cuda, *exact, in, run, 0, kRows)) << DTypeName(x_dtype);
  }
}

TEST(RoundedLinearCudaTest, WhatIsNotFiniteMakesItsRowNaN) {
  for (const bool is_portable : {false, true}) {
    if (is_portable && !cuda_emulator::IsEmulated()) continue;
    std::optional<PortableDevice> portable;
    std::optional<CudaBackend> own;
    if (is_portable) portable.emplace();
    const CudaBackend& cuda = is_portable ? **portable : own.emplace();
    QuantizedShape shape = Fp8(40, 200, 200);
    shape.allows_row_major = !is_portable;
    const auto packed = MakeQuantized(shape).Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    constexpr std::uint32_t kRows = 130;
    Inputs in(kRows, shape.n, shape.k, kBF16);
    in.x[4 * shape.k + 199] = std::numeric_limits<float>::quiet_NaN();
    in.x[17 * shape.k + 100] = 0x1p79f;
    in.x[129 * shape.k] = -std::numeric_limits<float>::infinity();
    const auto y = Compute(cuda, *packed, in, {}, 0, kRows);
    for (std::uint32_t i = 0; i < y.size(); ++i) {
      const std::uint32_t row = i / shape.n;
      ASSERT_EQ(std::isnan(y[i]), row == 4 || row == 17 || row == 129) << i;
    }
  }
}

// The kernel of codes by codes; on a device that has none the portable one.
constexpr char kKernel[] = "linear fp8 sm_90a";

QuantizedShape ByRows(std::uint32_t n, std::uint32_t k, std::uint32_t group) {
  QuantizedShape shape = Fp8(n, k, group);
  shape.allows_row_major = true;
  return shape;
}

struct Case {
  QuantizedShape shape;
  std::uint32_t rows;
};

// One sub-range and several, in blocks of their own and in one; tiles of 64, 128 and, where the 4
// emulated multiprocessors leave it, 256 tokens; a scale per feature and groups whose borders are
// not those of sub-ranges; N and K that end inside a tile; more tiles of K than stages.
const Case kCases[] = {
    {ByRows(5, 8, 8), 1},          {ByRows(200, 440, 440), 9},    {ByRows(130, 584, 128), 64},
    {ByRows(300, 1032, 256), 33},  {ByRows(200, 136, 128), 127},  {ByRows(300, 72, 72), 385},
    {ByRows(648, 1032, 384), 130}, {ByRows(130, 1672, 128), 600}, {ByRows(300, 200, 128), 517}};

// What the accumulation of the device leaves, 2.5e-4 in the emulator, and the store.
double Fp8Tolerance(DType y_dtype) {
  return 1e-3 + (y_dtype == kBF16 ? Tolerance(kBF16) : 0);
}

TEST(LinearFp8Sm90Test, RowsAreNearDoublePrecisionOfRoundedRows) {
  const CudaBackend cuda;
  for (const Case& c : kCases) {
    const Quantized made = MakeQuantized(c.shape);
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->size_bytes(), CudaQuantizedBytes(c.shape));
    EXPECT_EQ(packed->is_row_major(), (*cuda).cuda()->has_sm90a());
    const Inputs in(c.rows, c.shape.n, c.shape.k, kBF16);
    const std::vector<float> rounded = RoundedRows(in.x, c.shape.k);
    for (const Options& run : {Options{}, Options{.y_dtype = kBF16, .extras = true}}) {
      SCOPED_TRACE(absl::StrCat(c.shape.n, "x", c.shape.k, " group ", c.shape.group, " rows ",
                                c.rows, " y ", DTypeName(run.y_dtype)));
      const std::uint64_t before = cuda_emulator::LaunchCount(kKernel);
      const std::vector<float> y = Compute(cuda, *packed, in, run, 0, c.rows);
      if (cuda_emulator::IsEmulated()) {
        EXPECT_EQ(cuda_emulator::LaunchCount(kKernel) - before, 1u);
      }
      const auto exact =
          run.extras
              ? Exact(rounded, made.worth, in.bias, in.residual, c.rows, c.shape.n, c.shape.k)
              : Exact(rounded, made.worth, {}, {}, c.rows, c.shape.n, c.shape.k);
      const double error = RelativeError(y, exact);
      std::printf("%ux%u group %u rows %u y %s: differs by %.1e\n", c.shape.n, c.shape.k,
                  c.shape.group, c.rows, std::string(DTypeName(run.y_dtype)).c_str(), error);
      EXPECT_LE(error, Fp8Tolerance(run.y_dtype));
    }
  }
}

// What is summed to 14 bits is added up in f32 behind 128 inputs: small products behind large ones
// are not lost, whatever their sub-range.
TEST(LinearFp8Sm90Test, SmallSumsBehindLargeOnesCount) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 8, kK = 640;
  Quantized made = MakeQuantized(ByRows(kN, kK, kK));
  // 128 x 448 x 448, then 512 x 0.5 x 0.5.
  for (std::uint32_t i = 0; i < kN * kK; ++i) {
    made.q[i] = static_cast<std::int8_t>(F8E4M3::FromFloat(i % kK < 128 ? 448.0f : 0.5f).bits);
  }
  std::fill(made.scales.begin(), made.scales.end(), 1.0f);
  const auto packed = made.Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  for (const std::uint32_t rows : {1u, 130u, 600u}) {
    Inputs in(rows, kN, kK, kBF16);
    for (std::uint32_t i = 0; i < rows * kK; ++i) in.x[i] = i % kK < 128 ? 448.0f : 0.5f;
    for (const float y : Compute(cuda, *packed, in, {}, 0, rows)) {
      ASSERT_EQ(y, 128.0f * 448 * 448 + 512 * 0.25f) << rows;
    }
  }
}

// A row has its bits in every tile, however K is divided among blocks.
TEST(LinearFp8Sm90Test, RowsAloneHaveTheBitsOfThoseInManyBlocks) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 136;
  for (const std::uint32_t k : {200u, 600u}) {
    const std::uint32_t rows = (*cuda).cuda()->num_sms * 128 + 2;
    const auto packed = MakeQuantized(ByRows(kN, k, 128)).Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const Inputs in(rows, kN, k, kBF16);
    const Options run{.extras = true};
    const std::vector<float> all = Compute(cuda, *packed, in, run, 0, rows);
    for (const std::uint32_t count : {1u, 9u, 64u, 128u}) {
      for (const std::uint32_t first : {0u, rows / 2, rows - count}) {
        const std::vector<float> alone = Compute(cuda, *packed, in, run, first, count);
        EXPECT_EQ(std::memcmp(alone.data(), all.data() + std::size_t{first} * kN,
                              alone.size() * sizeof(float)),
                  0)
            << count << " rows from " << first << " of " << rows << ", k " << k;
      }
    }
  }
}

TEST(LinearFp8Sm90Test, OrderOfThreadsAndBlocksDoesNotShow) {
  const Quantized made = MakeQuantized(ByRows(129, 584, 128));
  for (const std::uint32_t rows : {7u, 260u}) {
    const Inputs in(rows, 129, 584, kBF16);
    std::vector<float> reference;
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      auto options = cuda_emulator::GetOptions();
      options.seed = seed;
      cuda_emulator::SetOptions(options);
      const CudaBackend cuda;
      const auto packed = made.Pack(*cuda);
      ASSERT_TRUE(packed.ok()) << packed.status();
      const auto y = Compute(cuda, *packed, in, {}, 0, rows);
      if (reference.empty()) reference = y;
      EXPECT_EQ(y, reference) << seed;
    }
  }
  cuda_emulator::Reset();
}

// The workspace has room for 127 rows of so many inputs beside partial sums.
TEST(LinearFp8Sm90Test, RowsOfSeveralLaunchesHaveTheBitsOfOne) {
  const CudaBackend cuda;
  constexpr std::uint32_t kK = 32768, kRows = 130;
  static_assert(cuda::Fp8RowsRoomOf(kK, true).rows == 127);
  static_assert(cuda::EvenRows(130, 127) == 127 && cuda::EvenRows(4096, 1462) == 1408 &&
                cuda::EvenRows(300, 300) == 300 && cuda::EvenRows(1409, 1408) == 768);
  const auto packed = MakeQuantized(ByRows(3, kK, kK)).Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const Inputs in(kRows, 3, kK, kBF16);
  const std::uint64_t before = cuda_emulator::LaunchCount(kKernel);
  const std::vector<float> all = Compute(cuda, *packed, in, {.extras = true}, 0, kRows);
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(cuda_emulator::LaunchCount(kKernel) - before, 2u);
  }
  for (const std::uint32_t row : {0u, 126u, 127u, 129u}) {
    const std::vector<float> alone = Compute(cuda, *packed, in, {.extras = true}, row, 1);
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + std::size_t{row} * 3, 12), 0) << row;
  }
}

// Launches that exchange no partial sums have rows where others have those: the counters of the
// launch behind them are still zero. So many rows are whole-K blocks for 4 multiprocessors.
TEST(LinearFp8Sm90Test, RowsOverThePartialSumsLeaveTheCountersZero) {
  const CudaBackend cuda;
  constexpr std::uint32_t kK = 65536, kN = 3, kRows = 385;
  constexpr std::uint32_t kRoom = cuda::Fp8RowsRoomOf(kK, false).rows;
  static_assert(kRoom == 319 && cuda::EvenRows(kRows, kRoom) == 256);
  const auto packed = MakeQuantized(ByRows(kN, kK, kK)).Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const Inputs in(kRows, kN, kK, kBF16);
  const Options run{.extras = true};
  const std::vector<float> first = Compute(cuda, *packed, in, run, 0, 1);
  const std::uint64_t before = cuda_emulator::LaunchCount(kKernel);
  const std::vector<float> all = Compute(cuda, *packed, in, run, 0, kRows);
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(cuda_emulator::LaunchCount(kKernel) - before, 2u);
  }
  const std::vector<float> last = Compute(cuda, *packed, in, run, kRows - 1, 1);
  EXPECT_EQ(std::memcmp(first.data(), all.data(), kN * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(last.data(), all.data() + all.size() - kN, kN * sizeof(float)), 0);
}

// Decided while the matrix is packed, since it lies in another order then.
TEST(LinearFp8Sm90Test, WithoutMapsOrClustersThePortableKernelRuns) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "needs an emulated driver";
  const CudaBackend cuda;
  const Quantized made = MakeQuantized(ByRows(130, 584, 128));
  const Inputs in(9, 130, 584, kBF16);
  const auto exact = Exact(RoundedRows(in.x, 584), made.worth, {}, {}, 9, 130, 584);
  for (const char* const call : {"cudaGetDriverEntryPointByVersion", "cudaDeviceGetAttribute"}) {
    cuda_emulator::InjectFault({.where = call, .error = cudaErrorInvalidValue});
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_FALSE(packed->is_row_major()) << call;
    EXPECT_LE(RelativeError(Compute(cuda, *packed, in, {}, 0, 9), exact), Tolerance(DType::kF32));
  }
}

// Groups that tiles of 128 inputs do not divide stay with the portable kernel.
TEST(LinearFp8Sm90Test, OtherGroupsArePortable) {
  const CudaBackend cuda;
  const Quantized made = MakeQuantized(ByRows(9, 200, 64));
  const auto packed = made.Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_FALSE(packed->is_row_major());
  const Inputs in(3, 9, 200, kBF16);
  EXPECT_LE(RelativeError(Compute(cuda, *packed, in, {}, 0, 3),
                          Exact(RoundedRows(in.x, 200), made.worth, {}, {}, 3, 9, 200)),
            Tolerance(DType::kF32));
}

TEST(LinearFp8Sm90Test, TakesBF16Only) {
  const CudaBackend cuda;
  if (!(*cuda).cuda()->has_sm90a()) GTEST_SKIP() << "needs a device of capability 9.0";
  const auto packed = MakeQuantized(ByRows(8, 64, 64)).Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  DeviceRows x(cuda, DType::kF32, 1, 64, 64), y(cuda, DType::kF32, 1, 8, 8);
  EXPECT_THAT(std::string(Linear(*cuda, {.x = x.ptr(),
                                         .weight = &*packed,
                                         .y = y.ptr(),
                                         .x_stride = 64,
                                         .y_stride = 8,
                                         .num_rows = 1})
                              .message()),
              testing::HasSubstr("x f32, weights that lie by rows take bf16"));
}

// Magnitudes of rows that differ in their scale: subnormals of bf16, the least scale and the first
// above it, 448 and the next value of bf16, the largest.
constexpr float kLargest[] = {0x1p-133f, 0x1p-126f, 0x1.cp-92f, 0x1.c2p-92f, 0x1.5p-3f,
                              448,       450,       0x1p30f,    0x1.fep78f};

// Every finite bf16 of less than 2^79, which has all ties between codes, and the values of f32 on
// either side; those above `largest` are `largest`.
std::vector<float> RowUpTo(float largest, bool is_f32) {
  std::vector<float> row;
  for (std::uint32_t bits = 0; bits < 2 * 0x6700u; ++bits) {
    const std::uint32_t sign = bits % 2 << 31;
    const std::uint32_t own = bits / 2 << 16;
    for (std::uint32_t i = 0; i < (is_f32 ? 3u : 1u); ++i) {
      const std::uint32_t beside = is_f32 && own != 0 ? own + i - 1 : own;
      const float magnitude = std::min(std::bit_cast<float>(beside), largest);
      row.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign));
    }
  }
  return row;
}

// The CPU's function says what is right: codes, scales and values have its bits.
TEST(RoundedRowsCudaTest, EveryValueHasTheBitsOfTheCpu) {
  const CudaBackend cuda;
  const CudaContext& context = *(*cuda).cuda();
  constexpr std::uint32_t kRows = std::size(kLargest);
  for (const DType dtype : {kBF16, DType::kF32}) {
    std::vector<float> x;
    for (const float largest : kLargest) {
      const std::vector<float> row = RowUpTo(largest, dtype == DType::kF32);
      x.insert(x.end(), row.begin(), row.end());
    }
    const auto k = static_cast<std::uint32_t>(x.size() / kRows);
    std::vector<float> want(x.size()), want_scales;
    std::vector<std::uint8_t> want_codes;
    for (std::uint32_t m = 0; m < kRows; ++m) {
      const float* const row = x.data() + std::size_t{m} * k;
      RoundRowFp8(row, k, 1, want.data() + std::size_t{m} * k);
      want_scales.push_back(Fp8RowScale(MagnitudeBits(kLargest[m])));
      for (std::uint32_t i = 0; i < k; ++i) {
        want_codes.push_back(
            F8E4M3::FromFloat(want[std::size_t{m} * k + i] / want_scales.back()).bits);
      }
    }
    DeviceRows from(cuda, dtype, kRows, k, k);
    from.Put(x);
    const internal::RowsToRound rows{
        .x = from.ptr(), .x_stride = from.stride(), .k = k, .num_rows = kRows};
    const auto elements = static_cast<std::int64_t>(x.size());
    const auto size = elements * DTypeSize(dtype);
    const DeviceBuffer y = *DeviceBuffer::Allocate(MemoryKind::kDevice, size);
    ASSERT_TRUE(internal::RoundFp8RowsCuda(context, rows, FloatPtr(y.data(), dtype)).ok());
    std::vector<std::byte> got(static_cast<std::size_t>(size));
    ASSERT_TRUE(cuda.stream().Copy(got.data(), y.data(), size).ok());
    const DeviceBuffer codes = *DeviceBuffer::Allocate(MemoryKind::kDevice, elements);
    const DeviceBuffer scales = *DeviceBuffer::Allocate(MemoryKind::kDevice, kRows * 4);
    ASSERT_TRUE(internal::RoundFp8CodesCuda(context, rows,
                                            {static_cast<std::uint8_t*>(codes.data()), k,
                                             static_cast<float*>(scales.data())})
                    .ok());
    std::vector<std::uint8_t> got_codes(x.size());
    std::vector<float> got_scales(kRows);
    ASSERT_TRUE(cuda.stream().Copy(got_codes.data(), codes.data(), elements).ok());
    ASSERT_TRUE(cuda.stream().Copy(got_scales.data(), scales.data(), kRows * 4).ok());
    ASSERT_TRUE(cuda.stream().Synchronize().ok());
    const auto bytes = Encode(want, dtype);
    ASSERT_EQ(bytes.size(), got.size());
    EXPECT_EQ(std::memcmp(got.data(), bytes.data(), got.size()), 0) << DTypeName(dtype);
    EXPECT_EQ(std::memcmp(got_codes.data(), want_codes.data(), x.size()), 0) << DTypeName(dtype);
    EXPECT_EQ(std::memcmp(got_scales.data(), want_scales.data(), kRows * 4), 0) << DTypeName(dtype);
    EXPECT_EQ(std::count(want_codes.begin(), want_codes.end(), 0x7f), 0);
  }
}

TEST(RoundedLinearCudaTest, NamesWhatIsWrong) {
  const CudaBackend cuda;
  QuantizedShape shape{
      .format = WeightFormat::kInt8, .n = 4, .k = 64, .group = 64, .quantizes_activations = true};
  EXPECT_THAT(std::string(CheckCudaQuantizedShape(shape).message()),
              testing::HasSubstr("int8 weights round rows of 64 inputs, GPUs have fp8_e4m3"));
  shape = Fp8(4, 65544, 65544);
  EXPECT_THAT(std::string(CheckCudaQuantizedShape(shape).message()),
              testing::HasSubstr("rows of 65544 inputs, GPUs have fp8_e4m3 with up to 65536"));
  shape = ByRows(4, 64, 64);
  shape.quantizes_activations = false;
  EXPECT_THAT(std::string(CheckCudaQuantizedShape(shape).message()),
              testing::HasSubstr("fp8_e4m3 weights [4, 64] lie by rows and round none of x"));
}

}  // namespace
}  // namespace quire::kernels
