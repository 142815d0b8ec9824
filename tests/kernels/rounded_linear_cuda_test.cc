// Products of e4m3 weights with dynamic activation quantization to e4m3, on the emulated GPU or a
// real one, compared with double precision on the rounded rows.

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
using Options = Run;  // testing::Test also has a member Run

QuantizedShape Fp8(std::uint32_t n, std::uint32_t k, std::uint32_t group) {
  return {.format = WeightFormat::kFp8E4M3,
          .n = n,
          .k = k,
          .group = group,
          .quantizes_activations = true};
}

// A scale per feature, and groups that the portable kernel supports.
const QuantizedShape kShapes[] = {Fp8(130, 584, 584), Fp8(130, 584, 128), Fp8(9, 200, 64),
                                  Fp8(5, 8, 8)};

TEST(RoundedLinearCudaTest, PortableRowsAreNearDoublePrecision) {
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

// Rounding in the op equals rounding before, with weights that do not quantize activations,
// bitwise.
TEST(RoundedLinearCudaTest, PortableKernelEqualsPreroundedRowsBitwise) {
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

TEST(RoundedLinearCudaTest, NonFiniteValueMakesItsRowNan) {
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

// The fp8 by fp8 kernel, or the portable one on a device without it.
constexpr char kKernel[] = "linear fp8 sm_90a";

QuantizedShape RowMajor(std::uint32_t n, std::uint32_t k, std::uint32_t group) {
  QuantizedShape shape = Fp8(n, k, group);
  shape.allows_row_major = true;
  return shape;
}

struct Case {
  QuantizedShape shape;
  std::uint32_t rows;
};

// Covers one sub-range and several, in separate blocks and in one. Tiles have 64, 128 and, where
// the 4 emulated multiprocessors allow it, 256 tokens. Scales are per feature and per group with
// boundaries different from those of sub-ranges. N and K end inside a tile, and K has more tiles
// than there are stages.
const Case kCases[] = {{RowMajor(5, 8, 8), 1},          {RowMajor(200, 440, 440), 9},
                       {RowMajor(130, 584, 128), 64},   {RowMajor(300, 1032, 256), 33},
                       {RowMajor(200, 136, 128), 127},  {RowMajor(300, 72, 72), 385},
                       {RowMajor(648, 1032, 384), 130}, {RowMajor(130, 1672, 128), 600},
                       {RowMajor(300, 200, 128), 517}};

// The error of the device's accumulation, 2.5e-4 in the emulator, and of the store.
double Fp8Tolerance(DType y_dtype) {
  return 1e-3 + (y_dtype == kBF16 ? Tolerance(kBF16) : 0);
}

TEST(LinearFp8Sm90Test, RowsAreNearDoublePrecision) {
  const CudaBackend cuda;
  for (const Case& c : kCases) {
    const Quantized made = MakeQuantized(c.shape);
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->size_bytes(), CudaQuantizedPartsOf(c.shape).total());
    EXPECT_EQ(packed->has_row_major_fp8(), (*cuda).cuda()->has_sm90a());
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

// Sums of 14 bits are added up in f32 after 128 inputs, so small products after large ones are not
// lost, in any sub-range.
TEST(LinearFp8Sm90Test, KeepsSmallProductsAfterLargeOnes) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 8, kK = 640;
  Quantized made = MakeQuantized(RowMajor(kN, kK, kK));
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

// A row is bitwise equal in every tile, for any division of K among blocks.
TEST(LinearFp8Sm90Test, SingleRowsEqualThoseInManyBlocksBitwise) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 136;
  for (const std::uint32_t k : {200u, 600u}) {
    const std::uint32_t rows = (*cuda).cuda()->num_sms * 128 + 2;
    const auto packed = MakeQuantized(RowMajor(kN, k, 128)).Pack(*cuda);
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

TEST(LinearFp8Sm90Test, ThreadAndBlockOrderDoNotChangeBits) {
  const Quantized made = MakeQuantized(RowMajor(129, 584, 128));
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

// The workspace has room for 127 rows of this many inputs next to partial sums.
TEST(LinearFp8Sm90Test, SeveralLaunchesEqualOneBitwise) {
  const CudaBackend cuda;
  constexpr std::uint32_t kK = 32768, kRows = 130;
  static_assert(cuda::Fp8RowsWorkspaceOf(kK, true).rows == 127);
  static_assert(cuda::RowsPerLaunch(130, 127) == 127 && cuda::RowsPerLaunch(4096, 1462) == 1408 &&
                cuda::RowsPerLaunch(300, 300) == 300 && cuda::RowsPerLaunch(1409, 1408) == 768);
  const auto packed = MakeQuantized(RowMajor(3, kK, kK)).Pack(*cuda);
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

// Launches without partial sums store rows where others store partial sums, and leave the counters
// of the next launch zero. With this number of rows, 4 multiprocessors use whole-K blocks.
TEST(LinearFp8Sm90Test, WholeKLaunchesLeaveTheCountersZero) {
  const CudaBackend cuda;
  constexpr std::uint32_t kK = 65536, kN = 3, kRows = 385;
  constexpr std::uint32_t kRoom = cuda::Fp8RowsWorkspaceOf(kK, false).rows;
  static_assert(kRoom == 319 && cuda::RowsPerLaunch(kRows, kRoom) == 256);
  const auto packed = MakeQuantized(RowMajor(kN, kK, kK)).Pack(*cuda);
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

// The fallback is decided at packing, since the matrix then has another layout.
TEST(LinearFp8Sm90Test, UsesThePortableKernelWithoutMapsOrClusters) {
  if (!cuda_emulator::IsEmulated()) GTEST_SKIP() << "needs an emulated driver";
  const CudaBackend cuda;
  const Quantized made = MakeQuantized(RowMajor(130, 584, 128));
  const Inputs in(9, 130, 584, kBF16);
  const auto exact = Exact(RoundedRows(in.x, 584), made.worth, {}, {}, 9, 130, 584);
  for (const char* const call : {"cudaGetDriverEntryPointByVersion", "cudaDeviceGetAttribute"}) {
    cuda_emulator::InjectFault({.where = call, .error = cudaErrorInvalidValue});
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_FALSE(packed->has_row_major_fp8()) << call;
    EXPECT_LE(RelativeError(Compute(cuda, *packed, in, {}, 0, 9), exact), Tolerance(DType::kF32));
  }
}

// Groups that tiles of 128 inputs do not divide use the portable kernel.
TEST(LinearFp8Sm90Test, OtherGroupsUseThePortableKernel) {
  const CudaBackend cuda;
  const Quantized made = MakeQuantized(RowMajor(9, 200, 64));
  const auto packed = made.Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_FALSE(packed->has_row_major_fp8());
  const Inputs in(3, 9, 200, kBF16);
  EXPECT_LE(RelativeError(Compute(cuda, *packed, in, {}, 0, 3),
                          Exact(RoundedRows(in.x, 200), made.worth, {}, {}, 3, 9, 200)),
            Tolerance(DType::kF32));
}

TEST(LinearFp8Sm90Test, SupportsBF16Only) {
  const CudaBackend cuda;
  if (!(*cuda).cuda()->has_sm90a()) GTEST_SKIP() << "needs a device of capability 9.0";
  const auto packed = MakeQuantized(RowMajor(8, 64, 64)).Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  DeviceRows x(cuda, DType::kF32, 1, 64, 64), y(cuda, DType::kF32, 1, 8, 8);
  EXPECT_THAT(std::string(Linear(*cuda, {.x = x.ptr(),
                                         .weight = &*packed,
                                         .y = y.ptr(),
                                         .x_stride = 64,
                                         .y_stride = 8,
                                         .num_rows = 1})
                              .message()),
              testing::HasSubstr("x f32, row-major weights require bf16 x"));
}

// Magnitudes at which the row scale changes: bf16 subnormals, the smallest scale and the next one,
// 448 and the next bf16 value, the largest.
constexpr float kLargest[] = {0x1p-133f, 0x1p-126f, 0x1.cp-92f, 0x1.c2p-92f, 0x1.5p-3f,
                              448,       450,       0x1p30f,    0x1.fep78f};

// Every finite bf16 below 2^79, which includes all ties, and the f32 values on both sides. Values
// above `largest` are clamped to it.
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

// The CPU function is the reference: values, fp8 values and scales must be bitwise equal.
TEST(RoundedRowsCudaTest, EveryValueEqualsTheCpuBitwise) {
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
    const internal::RowsToQuantize rows{
        .x = from.ptr(), .x_stride = from.stride(), .k = k, .num_rows = kRows};
    const auto elements = static_cast<std::int64_t>(x.size());
    const auto size = elements * DTypeSize(dtype);
    const DeviceBuffer y = *DeviceBuffer::Allocate(MemoryKind::kDevice, size);
    ASSERT_TRUE(internal::RoundFp8RowsCuda(context, rows, FloatPtr(y.data(), dtype)).ok());
    std::vector<std::byte> got(static_cast<std::size_t>(size));
    ASSERT_TRUE(cuda.stream().Copy(got.data(), y.data(), size).ok());
    const DeviceBuffer codes = *DeviceBuffer::Allocate(MemoryKind::kDevice, elements);
    const DeviceBuffer scales = *DeviceBuffer::Allocate(MemoryKind::kDevice, kRows * 4);
    ASSERT_TRUE(internal::QuantizeFp8RowsCuda(context, rows,
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
  EXPECT_THAT(
      std::string(CheckCudaQuantizedShape(shape).message()),
      testing::HasSubstr(
          "int8 weights quantize activations of 64 inputs, GPUs support that for fp8_e4m3"));
  shape = Fp8(4, 65544, 65544);
  EXPECT_THAT(std::string(CheckCudaQuantizedShape(shape).message()),
              testing::HasSubstr(
                  "activations of 65544 inputs, GPUs support that for fp8_e4m3 with up to 65536"));
  shape = RowMajor(4, 64, 64);
  shape.quantizes_activations = false;
  EXPECT_THAT(
      std::string(CheckCudaQuantizedShape(shape).message()),
      testing::HasSubstr(
          "fp8_e4m3 weights [4, 64] allow row-major storage, which needs activation quantization"));
}

}  // namespace
}  // namespace quire::kernels
