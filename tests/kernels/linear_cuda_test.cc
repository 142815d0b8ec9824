// Linear on the emulated GPU, compared with double precision and bitwise between batches.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"

namespace quire::kernels {
namespace {

struct Case {
  std::uint32_t n;
  std::uint32_t k;
  std::vector<std::uint32_t> rows;
};

TEST(LinearCudaTest, TensorCoresAgreeWithDoublePrecision) {
  const CudaBackend cuda;
  // One tile and less, K smaller than a tile, two sub-ranges with a shorter second one, several
  // feature tiles.
  for (const Case& c : std::vector<Case>{
           {5, 8, {1, 9}}, {128, 64, {8, 33}}, {130, 584, {1, 7, 17, 60, 130}}, {300, 264, {65}}}) {
    const auto w = RandomFloats(std::size_t{c.n} * c.k, 1, 0.05f);
    const PackedLinear packed = Pack(cuda, w, DType::kBF16, c.n, c.k);
    for (const std::uint32_t rows : c.rows) {
      const Inputs in(rows, c.n, c.k, DType::kBF16);
      const auto plain = Exact(in.x, Rounded(w, DType::kBF16), {}, {}, rows, c.n, c.k);
      const auto full = Exact(in.x, Rounded(w, DType::kBF16), in.bias, in.residual, rows, c.n, c.k);
      for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(absl::StrCat(c.n, "x", c.k, " rows ", rows, " y ", DTypeName(y_dtype)));
        EXPECT_LE(RelativeError(Compute(cuda, packed, in, {.y_dtype = y_dtype}, 0, rows), plain),
                  Tolerance(y_dtype));
        EXPECT_LE(
            RelativeError(Compute(cuda, packed, in, {.y_dtype = y_dtype, .extras = true}, 0, rows),
                          full),
            Tolerance(y_dtype));
      }
    }
  }
}

TEST(LinearCudaTest, ResidualMayBeTheResult) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 72, kK = 80;
  const auto w = RandomFloats(kN * kK, 1, 0.05f);
  for (const DType x_dtype : {DType::kBF16, DType::kF32}) {
    const PackedLinear packed = Pack(cuda, w, DType::kBF16, kN, kK, x_dtype);
    const Inputs in(5, kN, kK, x_dtype);
    const auto exact = Exact(in.x, Rounded(w, DType::kBF16), {}, in.residual, 5, kN, kK);
    EXPECT_LE(RelativeError(Compute(cuda, packed, in, {.x_dtype = x_dtype, .in_place = true}, 0, 5),
                            exact),
              1e-5);
  }
}

TEST(LinearCudaTest, BitsOfARowDoNotDependOnTheOthers) {
  const CudaBackend cuda;
  const auto w = RandomFloats(136 * 600, 1, 0.05f);
  ASSERT_EQ(cuda::LinearReductionOf(136, 600).splits, 2u);
  ASSERT_EQ(cuda::LinearReductionOf(136, 200).splits, 1u);
  const std::uint32_t counts[] = {1, 7, 8, 9, 32, 33, 64, 65};
  // The emulated device has 4 SMs, so 65 rows still split K over blocks and 130 do not.
  ExpectRowsInvariant(cuda, Pack(cuda, w, DType::kBF16, 136, 600), {.extras = true}, 130, counts);
  ExpectRowsInvariant(cuda, Pack(cuda, w, DType::kBF16, 136, 200), {}, 130, counts);
  const std::uint32_t few[] = {1, 31, 33};
  ExpectRowsInvariant(cuda, Pack(cuda, w, DType::kBF16, 72, 201), {}, 66, few);
}

TEST(LinearCudaTest, BitsDoNotDependOnTheOrderOfThreadsAndBlocks) {
  const auto w = RandomFloats(40 * 1100, 1, 0.05f);
  const Inputs in(9, 40, 1096, DType::kBF16);
  std::vector<float> reference;
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
    auto options = cuda_emulator::GetOptions();
    options.seed = seed;
    cuda_emulator::SetOptions(options);
    const CudaBackend cuda;
    const PackedLinear packed = Pack(cuda, {w.data(), 40 * 1096}, DType::kBF16, 40, 1096);
    ASSERT_EQ(cuda::LinearReductionOf(40, 1096).splits, 4u);
    // The second run proves that the block counters were reset.
    for (int i = 0; i < 2; ++i) {
      const auto y = Compute(cuda, packed, in, {}, 0, 9);
      if (reference.empty()) reference = y;
      ASSERT_EQ(std::memcmp(y.data(), reference.data(), y.size() * 4), 0) << "seed " << seed;
    }
  }
  cuda_emulator::Reset();
  EXPECT_LE(RelativeError(reference, Exact(in.x, Rounded({w.data(), 40 * 1096}, DType::kBF16), {},
                                           {}, 9, 40, 1096)),
            1e-5);
}

TEST(LinearCudaTest, ScalarPathEqualsTheCpuBitwise) {
  const CudaBackend cuda;
  const TestBackend cpu(1);
  const auto isas = AvailableIsas();
  const bool fused = std::count(isas.begin(), isas.end(), "avx2") +
                         std::count(isas.begin(), isas.end(), "avx512") >
                     0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Case& c : std::vector<Case>{{1, 1, {1}}, {33, 257, {1, 3}}, {70, 600, {33}}}) {
      const auto w = RandomFloats(std::size_t{c.n} * c.k, 1, 0.05f);
      const PackedLinear packed = Pack(cuda, w, dtype, c.n, c.k, DType::kF32);
      EXPECT_EQ(packed.dtype(), dtype);
      const auto bytes = Encode(w, dtype);
      const auto on_cpu = PackLinearWeight(*cpu, bytes.data(), dtype, c.n, c.k);
      for (const std::uint32_t rows : c.rows) {
        const Inputs in(rows, c.n, c.k, DType::kF32);
        const auto y = Compute(cuda, packed, in, {.x_dtype = DType::kF32, .extras = true}, 0, rows);
        EXPECT_LE(
            RelativeError(y, Exact(in.x, Rounded(w, dtype), in.bias, in.residual, rows, c.n, c.k)),
            1e-6);
        std::vector<float> expected(y.size());
        ASSERT_TRUE(Linear(*cpu, {.x = in.x.data(),
                                  .weight = &*on_cpu,
                                  .bias = in.bias.data(),
                                  .residual = in.residual.data(),
                                  .y = expected.data(),
                                  .x_stride = c.k,
                                  .residual_stride = c.n,
                                  .y_stride = c.n,
                                  .num_rows = rows})
                        .ok());
        if (fused) {
          EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0)
              << DTypeName(dtype) << " " << c.n << "x" << c.k << " rows " << rows;
        }
      }
    }
  }
}

TEST(LinearCudaTest, AnyNumberOfInputsWorksForBf16) {
  const CudaBackend cuda;
  for (const std::uint32_t k : {1u, 13u, 300u}) {
    const auto w = RandomFloats(33 * k, 1, 0.05f);
    const PackedLinear packed = Pack(cuda, w, DType::kBF16, 33, k);
    const Inputs in(3, 33, k, DType::kBF16);
    for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_LE(
          RelativeError(Compute(cuda, packed, in, {.y_dtype = y_dtype, .extras = true}, 0, 3),
                        Exact(in.x, Rounded(w, DType::kBF16), in.bias, in.residual, 3, 33, k)),
          Tolerance(y_dtype));
    }
  }
}

TEST(LinearCudaTest, WeightsForBf16ActivationsAreRoundedToBf16) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 20, kK = 48;
  const auto w = RandomFloats(kN * kK, 1, 0.05f);
  const Inputs in(2, kN, kK, DType::kBF16);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const PackedLinear packed = Pack(cuda, w, dtype, kN, kK);
    EXPECT_EQ(packed.dtype(), DType::kBF16);
    EXPECT_EQ(packed.size_bytes(), kN * kK * 2);
    const auto rounded = Rounded(Rounded(w, dtype), DType::kBF16);
    EXPECT_LE(
        RelativeError(Compute(cuda, packed, in, {}, 0, 2), Exact(in.x, rounded, {}, {}, 2, kN, kK)),
        1e-6);
  }
}

TEST(LinearCudaTest, JoinsMatricesAndReadsMisalignedRows) {
  const CudaBackend cuda;
  constexpr std::uint32_t kK = 24;
  const auto w = RandomFloats(25 * kK, 9, 0.05f);
  auto a = Encode({w.data(), 5 * kK}, DType::kBF16);
  a.insert(a.begin(), std::byte{0});
  const auto b = Encode({w.data() + 5 * kK, 20 * kK}, DType::kBF16);
  const WeightRows sources[] = {{a.data() + 1, 5}, {b.data(), 20}};
  const auto packed =
      PackLinearWeights(*cuda, sources, DType::kBF16, kK, {.activations = DType::kBF16});
  ASSERT_TRUE(packed.ok()) << packed.status();
  const Inputs in(2, 25, kK, DType::kBF16);
  EXPECT_LE(RelativeError(Compute(cuda, *packed, in, {}, 0, 2),
                          Exact(in.x, Rounded(w, DType::kBF16), {}, {}, 2, 25, kK)),
            1e-6);
}

TEST(LinearCudaTest, NanInOneRowDoesNotAffectOthers) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 40, kK = 72;
  const PackedLinear packed = Pack(cuda, RandomFloats(kN * kK, 1), DType::kBF16, kN, kK);
  Inputs in(9, kN, kK, DType::kBF16);
  in.x[4 * kK + 70] = std::numeric_limits<float>::quiet_NaN();
  const auto y = Compute(cuda, packed, in, {}, 0, 9);
  for (std::uint32_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / kN == 4) << i;
}

TEST(LinearCudaTest, NamesWhatIsWrong) {
  const CudaBackend cuda;
  const auto w = RandomFloats(16 * 16, 1);
  const PackedLinear bf16 = Pack(cuda, w, DType::kBF16, 16, 16);
  const PackedLinear f16 = Pack(cuda, w, DType::kF16, 16, 16, DType::kF32);
  DeviceRows x(cuda, DType::kBF16, 2, 16, 24), wide(cuda, DType::kF32, 2, 16, 16);
  const auto run = [&](const PackedLinear& weight, ConstFloatPtr from, std::int64_t x_stride,
                       FloatPtr to) {
    return Linear(*cuda, {.x = from,
                          .weight = &weight,
                          .y = to,
                          .x_stride = x_stride,
                          .y_stride = 16,
                          .num_rows = 2});
  };
  EXPECT_TRUE(run(bf16, x.ptr(), 24, wide.ptr()).ok());
  EXPECT_THAT(run(bf16, x.ptr(), 23, wide.ptr()).message(), testing::HasSubstr("16-byte aligned"));
  EXPECT_THAT(run(bf16, x.ptr() + 4, 16, wide.ptr()).message(),
              testing::HasSubstr("8 bytes after a multiple of 16"));
  EXPECT_THAT(run(f16, x.ptr(), 24, wide.ptr()).message(), testing::HasSubstr("bf16 by bf16"));
  EXPECT_THAT(run(f16, wide.ptr(), 16, x.ptr()).message(), testing::HasSubstr("y bf16"));
  ASSERT_TRUE(cuda.stream().Synchronize().ok());
}

TEST(LinearReductionTest, SplitDependsOnShapesOnly) {
  const auto splits = [](std::uint32_t n, std::uint32_t k) {
    return cuda::LinearReductionOf(n, k).splits;
  };
  EXPECT_EQ(splits(4096, 4096), 4u);
  EXPECT_EQ(splits(6144, 4096), 4u);
  EXPECT_EQ(splits(28672, 4096), 1u);
  EXPECT_EQ(splits(4096, 14336), 4u);
  EXPECT_EQ(splits(128256, 4096), 1u);
  for (std::uint32_t n = 1; n < 20000; n += 61) {
    for (std::uint32_t k = 8; k < 16000; k += 808) {
      const cuda::LinearReduction tree = cuda::LinearReductionOf(n, k);
      const std::uint32_t tiles = cuda::LinearTilesK(k);
      ASSERT_GE(tree.splits * tree.tiles_per_split, tiles);
      ASSERT_LT((tree.splits - 1) * tree.tiles_per_split, tiles) << "an empty sub-range";
      if (tree.splits > 1) {
        ASSERT_LE(2 * cuda::LinearTilesN(n) * tree.splits, cuda::kLinearMaxPartials);
      }
    }
  }
}

struct LinearPlace {
  std::uint32_t feature;  // in the tile
  std::uint32_t input;
};
// Returns the place of a value, given its index in the tile.
LinearPlace LinearPlaceOf(WeightFormat format, std::uint32_t value_index) {
  std::uint32_t value = value_index % 8;
  if (format == WeightFormat::kInt4) value = value % 4 * 2 + value / 4;
  std::uint32_t rest = value_index / 8;
  const std::uint32_t steps = cuda::HasFourBits(format) ? 4 : 2;
  std::uint32_t step = rest % steps;
  rest /= steps;
  const std::uint32_t lane = rest % 32;
  rest /= 32;
  const std::uint32_t block = rest % 8;
  step += rest / 8 * steps;
  return {block * 16 + lane / 4 + ((value & 2) != 0 ? 8u : 0u),
          step * 16 + lane % 4 * 2 + (value & 1) + ((value & 4) != 0 ? 8u : 0u)};
}

TEST(LinearReductionTest, PackedOrderContainsEveryWeightOnce) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kFp8E4M3, WeightFormat::kFp4E2M1}) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> places;
    for (std::uint32_t i = 0; i < cuda::kLinearTileN * cuda::kLinearTileK; ++i) {
      const LinearPlace place = LinearPlaceOf(format, i);
      ASSERT_LT(place.feature, cuda::kLinearTileN);
      ASSERT_LT(place.input, cuda::kLinearTileK);
      places.insert({place.feature, place.input});
      ASSERT_EQ(cuda::LinearIndexOf(format, place.feature, place.input), i);
      ASSERT_EQ(cuda::LinearIndexOf(format, place.feature, 0) +
                    cuda::LinearIndexOf(format, 0, place.input),
                i);
    }
    EXPECT_EQ(places.size(), cuda::kLinearTileN * cuda::kLinearTileK);
  }
}

}  // namespace
}  // namespace quire::kernels
