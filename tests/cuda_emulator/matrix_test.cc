// Tensor core instructions of a warp, cp.async and conversions, compared with values computed here.

#include <cmath>
#include <cstring>
#include <random>

#include "base/dtype.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/mma.cuh"
#include "tests/cuda_emulator/kernel_test.h"

// Kernels, in their usual namespace.
namespace quire::kernels::cuda {
namespace {

using cuda_emulator::DeviceArray;
using cuda_emulator::KernelTest;

class MatrixTest : public KernelTest {};
using MatrixDeathTest = MatrixTest;

// Element (row, column) of matrix m is m * 64 + row * 8 + column.
__global__ void LoadForms(std::uint32_t* out) {
  auto* const shared = reinterpret_cast<std::uint16_t*>(SharedMemory16());
  for (std::uint32_t i = ThreadIndex(); i < 256; i += 32) shared[i] = static_cast<std::uint16_t>(i);
  SyncBlock();
  const std::uint16_t* const row = shared + Lane() * 8;
  std::uint32_t four[4];
  std::uint32_t two[2];
  LdMatrixX4(four, row);
  for (std::uint32_t i = 0; i < 4; ++i) out[Lane() * 13 + i] = four[i];
  LdMatrixX4Trans(four, row);
  for (std::uint32_t i = 0; i < 4; ++i) out[Lane() * 13 + 4 + i] = four[i];
  LdMatrixX2(two, shared + Lane() % 16 * 8);
  out[Lane() * 13 + 8] = two[0];
  out[Lane() * 13 + 9] = two[1];
  LdMatrixX2Trans(two, shared + Lane() % 16 * 8);
  out[Lane() * 13 + 10] = two[0];
  out[Lane() * 13 + 11] = two[1];
  LdMatrixX2(two, shared + Lane() % 16 * 8);
  out[Lane() * 13 + 12] = MovMatrixTrans(two[0]);
}

TEST_F(MatrixTest, LoadsAndTransposes) {
  DeviceArray<std::uint32_t> out(32 * 13);
  Run(LoadForms, {.threads = 32, .shared_bytes = 512}, out.data());
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t r = lane / 4;
    const std::uint32_t c = lane % 4 * 2;
    for (std::uint32_t m = 0; m < 4; ++m) {
      const std::uint32_t plain = (m * 64 + r * 8 + c) | (m * 64 + r * 8 + c + 1) << 16;
      const std::uint32_t turned = (m * 64 + c * 8 + r) | (m * 64 + (c + 1) * 8 + r) << 16;
      EXPECT_EQ(out[lane * 13 + m], plain);
      EXPECT_EQ(out[lane * 13 + 4 + m], turned);
      if (m < 2) {
        EXPECT_EQ(out[lane * 13 + 8 + m], plain);
        EXPECT_EQ(out[lane * 13 + 10 + m], turned);
      }
      if (m == 0) {
        EXPECT_EQ(out[lane * 13 + 12], turned);
      }
    }
  }
}

// A [16][16] and B [16][8] are row-major, and d [16][8] is accumulated. The fragments follow the
// PTX ISA's tables: a0..a7 by (row, column) = (g + 8 for i in {2, 3, 6, 7}, 2 c + i % 2 + 8 for i
// >= 4), with b0..b3 and c0..c3 alike.
template <typename T>
__global__ void Product(const T* a, const T* b, float* d) {
  const std::uint32_t g = Lane() / 4;
  const std::uint32_t c = Lane() % 4;
  std::uint32_t fragment_a[4];
  std::uint32_t fragment_b[2];
  float fragment_d[4];
  for (std::uint32_t i = 0; i < 8; i += 2) {
    const std::uint32_t row = g + (i % 4 >= 2 ? 8 : 0);
    const std::uint32_t column = c * 2 + (i >= 4 ? 8 : 0);
    fragment_a[i / 2] =
        a[row * 16 + column].bits | static_cast<std::uint32_t>(a[row * 16 + column + 1].bits) << 16;
  }
  for (std::uint32_t i = 0; i < 4; i += 2) {
    const std::uint32_t row = c * 2 + (i >= 2 ? 8 : 0);
    fragment_b[i / 2] = b[row * 8 + g].bits | static_cast<std::uint32_t>(b[(row + 1) * 8 + g].bits)
                                                  << 16;
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    fragment_d[i] = d[(g + (i >= 2 ? 8 : 0)) * 8 + c * 2 + i % 2];
  }
  if constexpr (kDTypeOf<T> == DType::kBF16) {
    MmaBF16(fragment_d, fragment_a, fragment_b);
  } else {
    MmaF16(fragment_d, fragment_a, fragment_b);
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    d[(g + (i >= 2 ? 8 : 0)) * 8 + c * 2 + i % 2] = fragment_d[i];
  }
}

template <typename T>
class ProductTest : public KernelTest {};
using ProductTypes = ::testing::Types<BF16, F16>;
TYPED_TEST_SUITE(ProductTest, ProductTypes);

TYPED_TEST(ProductTest, MatchesDoublePrecision) {
  using T = TypeParam;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<T> a(256);
  std::vector<T> b(128);
  std::vector<float> d(128);
  for (T& x : a) x = T::FromFloat(normal(random));
  for (T& x : b) x = T::FromFloat(normal(random));
  for (float& x : d) x = normal(random);
  const DeviceArray<T> device_a(a);
  const DeviceArray<T> device_b(b);
  const DeviceArray<float> device_d(d);
  this->Run(Product<T>, {.threads = 32}, device_a.data(), device_b.data(), device_d.data());
  for (std::size_t m = 0; m < 16; ++m) {
    for (std::size_t n = 0; n < 8; ++n) {
      double sum = d[m * 8 + n];
      for (std::size_t k = 0; k < 16; ++k) {
        sum += double{a[m * 16 + k].ToFloat()} * b[k * 8 + n].ToFloat();
      }
      EXPECT_NEAR(device_d[m * 8 + n], sum, 1e-6 * (1 + std::fabs(sum)));
    }
  }
}

TYPED_TEST(ProductTest, IdentityAndNaN) {
  using T = TypeParam;
  std::vector<T> a(256, T::FromFloat(0.0f));
  std::vector<T> b(128);
  for (std::size_t i = 0; i < 16; ++i) a[i * 17] = T::FromFloat(1.0f);
  for (std::size_t i = 0; i < 128; ++i) b[i] = T::FromFloat(static_cast<float>(i));
  b[8 * 3 + 2] = T::FromFloat(NAN);
  const DeviceArray<T> device_a(a);
  const DeviceArray<T> device_b(b);
  const DeviceArray<float> d(128);
  this->Run(Product<T>, {.threads = 32}, device_a.data(), device_b.data(), d.data());
  for (std::size_t i = 0; i < 128; ++i) {
    if (i % 8 == 2) {
      EXPECT_TRUE(std::isnan(d[i])) << i;  // 0 x NaN is NaN in every row
    } else {
      EXPECT_EQ(d[i], static_cast<float>(i));
    }
  }
}

// Copies two groups, waits until `pending` are left, and reads both, and the bytes that were copied
// as zeros.
template <int kPending>
__global__ void CopyGroups(const std::uint32_t* from, std::uint32_t* out) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  const std::uint32_t i = ThreadIndex();
  for (std::uint32_t k = 0; k < 4; ++k) shared[12 * i + k] = 5;
  CpAsync16(shared + 12 * i, from + 4 * i);
  CpAsync4(shared + 12 * i + 8, from + i, /*valid=*/false);
  CpAsyncCommit();
  CpAsync16(shared + 12 * i + 4, from + 4 * i);
  CpAsyncCommit();
  CpAsyncWait<kPending>();
  out[3 * i] = shared[12 * i];
  out[3 * i + 1] = shared[12 * i + 4];
  out[3 * i + 2] = shared[12 * i + 8];
  CpAsyncWait<0>();
}

TEST_F(MatrixTest, CopiesArriveWhenTheirGroupIsWaitedFor) {
  CheckNoAccess();
  DeviceArray<std::uint32_t> from(128);
  for (std::uint32_t i = 0; i < 128; ++i) from[i] = i;
  DeviceArray<std::uint32_t> out(96);
  const LaunchShape shape{.threads = 32, .shared_bytes = 32 * 48};
  Run(CopyGroups<0>, shape, from.data(), out.data());
  EXPECT_EQ(out[3 * 9], 36u);
  EXPECT_EQ(out[3 * 9 + 1], 36u);
  EXPECT_EQ(out[3 * 9 + 2], 0u);
  Run(CopyGroups<1>, shape, from.data(), out.data());
  EXPECT_EQ(out[3 * 9], 36u);
  EXPECT_EQ(out[3 * 9 + 1], 0xffffffffu);  // neither the old nor the new value
  EXPECT_EQ(out[3 * 9 + 2], 0u);
  Run(CopyGroups<2>, shape, from.data(), out.data());
  EXPECT_EQ(out[3 * 9], 0xffffffffu);
}

__global__ void CopyFrom(const std::byte* from, std::uint32_t to) {
  CpAsync16(SharedMemory16() + to, from);
  CpAsyncCommit();
  CpAsyncWait<0>();
}

TEST_F(MatrixDeathTest, RejectsInvalidCopies) {
  const DeviceArray<std::byte> from(64);
  const LaunchShape shape{.threads = 1, .shared_bytes = 32};
  Run(CopyFrom, shape, from.data(), 16u);
  EXPECT_DEATH(Run(CopyFrom, shape, from.data() + 4, 16u), "cp.async: address .* multiple of 16");
  EXPECT_DEATH(Run(CopyFrom, shape, from.data(), 8u), "cp.async: shared address");
  EXPECT_DEATH(Run(CopyFrom, shape, from.data(), 32u), "outside the 32 bytes");
  EXPECT_DEATH(Run(CopyFrom, shape, from.data() + 64, 0u), "0 bytes behind a block of 64 bytes");
  alignas(16) std::byte host[16] = {};
  EXPECT_DEATH(Run(CopyFrom, shape, static_cast<const std::byte*>(host), 0u),
               "not in device or pinned memory");
}

TEST(ConvertTest, Pairs) {
  EXPECT_EQ(PackBF16(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(PackF16(1.0f, -2.0f), 0xc0003c00u);
  EXPECT_EQ(UnpackBF16(0xc0003f80u).x, 1.0f);
  EXPECT_EQ(UnpackF16(0xc0003c00u).y, -2.0f);
  EXPECT_EQ(E4M3ToF16(0xb8'38u), PackF16(1.0f, -1.0f));
  EXPECT_EQ(E4M3ToF16(0x7e'01u), PackF16(0x1p-9f, 448.0f));
  EXPECT_EQ(FloatToE4M3(1000.0f), 0x7e);
  EXPECT_EQ(BytePermute(0x33221100u, 0x77665544u, 0x6240u), 0x66224400u);
  EXPECT_EQ(BytePermute(0x00008000u, 0x11u, 0x00c9u), 0x00001180u);  // bit 3 selects nothing
  EXPECT_EQ(LeadingZeros(1), 31u);
  EXPECT_EQ(LeadingZeros(0), 32u);
  EXPECT_EQ(CountBits(0xf0f0u), 8u);
}

TEST(ConvertTest, ArithmeticOfF16RoundsOnce) {
  // 2049 is a tie between 2048 and 2050 and rounds to even. A slightly larger value is not a tie.
  EXPECT_EQ(SubF16(PackF16(2048.0f, 2048.0f), PackF16(-1.0f, 1.0f)), PackF16(2048.0f, 2047.0f));
  EXPECT_EQ(FmaF16(PackF16(1.0f, 1.0009765625f), PackF16(1.0f, 1.0f), PackF16(2048.0f, 2048.0f)),
            PackF16(2048.0f, 2050.0f));
  EXPECT_EQ(MulF16(PackF16(3.0f, 0x1p-14f), PackF16(0.5f, 0.5f)), PackF16(1.5f, 0x1p-15f));
  EXPECT_EQ(MulF16(PackF16(60000.0f, 0.0f), PackF16(2.0f, 1.0f)), PackF16(INFINITY, 0.0f));
}

TEST(ConvertTest, Exp2) {
  EXPECT_EQ(Exp2Approx(3.0f), 8.0f);
  EXPECT_EQ(Exp2Approx(-INFINITY), 0.0f);
  EXPECT_EQ(Exp2Approx(-126.5f), 0.0f);
  EXPECT_EQ(Exp2Approx(-126.0f), 0x1p-126f);
  EXPECT_TRUE(std::isnan(Exp2Approx(NAN)));
}

}  // namespace
}  // namespace quire::kernels::cuda
