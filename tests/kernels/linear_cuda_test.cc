// Linear on the emulated GPU against double precision, and its bits against themselves.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/linear.h"
#include "kernels/linear_tree.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

// An emulated device with a stream and a backend.
class CudaBackend {
 public:
  CudaBackend()
      : pool_(2),
        device_(*OpenCudaDevice(0)),
        stream_(std::make_unique<Stream>(*Stream::Create(device_))),
        backend_(*Backend::CreateCuda(*stream_, Determinism::kBatchInvariant, &pool_)) {}
  const Backend& operator*() const { return backend_; }
  const Stream& stream() const { return *stream_; }

 private:
  ThreadPool pool_;
  Device device_;
  std::unique_ptr<Stream> stream_;
  Backend backend_;
};

// A matrix in device memory, its rows stride apart, everything that Put did not write NaN.
class DeviceRows {
 public:
  DeviceRows(const CudaBackend& cuda, DType dtype, std::uint32_t rows, std::uint32_t columns,
             std::uint32_t stride)
      : cuda_(cuda),
        dtype_(dtype),
        rows_(rows),
        columns_(columns),
        stride_(stride),
        bytes_((std::size_t{rows} * stride + 2 * kGuard) * Size(), std::byte{0xff}),
        device_(*DeviceBuffer::Allocate(MemoryKind::kDevice,
                                        static_cast<std::int64_t>(bytes_.size()))) {
    Upload();
  }

  void Put(std::span<const float> values) {
    const auto encoded = Encode(values, dtype_);
    for (std::uint32_t m = 0; m < rows_; ++m) {
      std::memcpy(Row(m), encoded.data() + std::size_t{m} * columns_ * Size(), columns_ * Size());
    }
    Upload();
  }
  std::vector<float> Get() {
    EXPECT_TRUE(cuda_.stream()
                    .Copy(bytes_.data(), device_.data(), static_cast<std::int64_t>(bytes_.size()))
                    .ok());
    const absl::Status status = cuda_.stream().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> values;
    for (std::uint32_t m = 0; m < rows_; ++m) {
      for (std::uint32_t n = 0; n < columns_; ++n) {
        float value;
        if (dtype_ == DType::kF32) {
          std::memcpy(&value, Row(m) + n * 4, 4);
        } else {
          BF16 bits;
          std::memcpy(&bits, Row(m) + n * 2, 2);
          value = bits.ToFloat();
        }
        values.push_back(value);
      }
    }
    return values;
  }
  // True while all bytes outside the rows, as of the last Get, are untouched.
  bool GuardsIntact() {
    std::vector<std::byte> copy = bytes_;
    bytes_.swap(copy);
    for (std::uint32_t m = 0; m < rows_; ++m) {
      std::fill_n(Row(m), columns_ * Size(), std::byte{0xff});
    }
    const bool intact =
        std::all_of(bytes_.begin(), bytes_.end(), [](std::byte b) { return b == std::byte{0xff}; });
    bytes_.swap(copy);
    return intact;
  }
  FloatPtr ptr() const {
    return FloatPtr(static_cast<std::byte*>(device_.data()) + kGuard * Size(), dtype_);
  }
  float* f32() const { return ptr().f32(); }
  std::int64_t stride() const { return stride_; }

 private:
  static constexpr std::size_t kGuard = 16;
  std::size_t Size() const { return static_cast<std::size_t>(DTypeSize(dtype_)); }
  std::byte* Row(std::uint32_t m) {
    return bytes_.data() + (kGuard + std::size_t{m} * stride_) * Size();
  }
  void Upload() {
    EXPECT_TRUE(cuda_.stream()
                    .Copy(device_.data(), bytes_.data(), static_cast<std::int64_t>(bytes_.size()))
                    .ok());
  }

  const CudaBackend& cuda_;
  DType dtype_;
  std::uint32_t rows_;
  std::uint32_t columns_;
  std::uint32_t stride_;
  std::vector<std::byte> bytes_;
  DeviceBuffer device_;
};

// sum_k x[m][k] w[n][k] + bias[n] + residual[m][n]; empty: none.
std::vector<double> Exact(std::span<const float> x, std::span<const float> w,
                          std::span<const float> bias, std::span<const float> residual,
                          std::uint32_t rows, std::uint32_t n, std::uint32_t k) {
  std::vector<double> y;
  for (std::uint32_t i = 0; i < rows; ++i) {
    for (std::uint32_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0 : bias[j];
      if (!residual.empty()) sum += residual[i * n + j];
      for (std::uint32_t c = 0; c < k; ++c) sum += double{x[i * k + c]} * w[j * k + c];
      y.push_back(sum);
    }
  }
  return y;
}

struct Run {
  DType x_dtype = DType::kBF16;
  DType y_dtype = DType::kF32;
  bool extras = false;    // bias and residual
  bool in_place = false;  // residual is y
};

struct Inputs {
  Inputs(std::uint32_t rows, std::uint32_t n, std::uint32_t k, DType x_dtype)
      : x(Rounded(RandomFloats(std::size_t{rows} * k, 2), x_dtype)),
        bias(RandomFloats(n, 3)),
        residual(RandomFloats(std::size_t{rows} * n, 4)) {}
  std::vector<float> x, bias, residual;
};

// y of rows first .. first + rows of the inputs, with everything around them NaN.
std::vector<float> Compute(const CudaBackend& cuda, const PackedLinear& weight,
                           const Inputs& inputs, const Run& run, std::uint32_t first,
                           std::uint32_t rows) {
  const std::uint32_t n = weight.n(), k = weight.k();
  DeviceRows x(cuda, run.x_dtype, rows, k, (k + 7) / 8 * 8 + 8);
  DeviceRows y(cuda, run.y_dtype, rows, n, n + 3);
  DeviceRows bias(cuda, DType::kF32, 1, n, n);
  DeviceRows residual(cuda, DType::kF32, rows, n, n + 5);
  x.Put({inputs.x.data() + std::size_t{first} * k, std::size_t{rows} * k});
  bias.Put(inputs.bias);
  const std::span<const float> added{inputs.residual.data() + std::size_t{first} * n,
                                     std::size_t{rows} * n};
  residual.Put(added);
  if (run.in_place) y.Put(added);
  const LinearParams params{.x = x.ptr(),
                            .weight = &weight,
                            .bias = run.extras ? bias.f32() : nullptr,
                            .residual = run.in_place ? y.f32()
                                        : run.extras ? residual.f32()
                                                     : nullptr,
                            .y = y.ptr(),
                            .x_stride = x.stride(),
                            .residual_stride = run.in_place ? y.stride() : residual.stride(),
                            .y_stride = y.stride(),
                            .num_rows = rows};
  const absl::Status status = Linear(*cuda, params);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> result = y.Get();
  EXPECT_TRUE(y.GuardsIntact());
  return result;
}

PackedLinear Pack(const CudaBackend& cuda, std::span<const float> w, DType dtype, std::uint32_t n,
                  std::uint32_t k, DType activations = DType::kBF16) {
  const auto bytes = Encode(w, dtype);
  const WeightRows rows{bytes.data(), n};
  auto packed = PackLinearWeights(*cuda, {&rows, 1}, dtype, k, activations);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

// What storing as y's type costs on top.
double Tolerance(DType y_dtype) {
  return y_dtype == DType::kBF16 ? 2.5e-3 : 1e-5;
}

struct Case {
  std::uint32_t n;
  std::uint32_t k;
  std::vector<std::uint32_t> rows;
};

TEST(LinearCudaTest, TensorCoresAgreeWithDouble) {
  const CudaBackend cuda;
  // One tile and less; K of a piece of a tile; two sub-ranges, the second shorter; several feature
  // tiles.
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

// Bits of one row, whatever is beside it and however the work is cut: the tiles for 8, 16, 32, 64
// and 128 rows, sub-ranges in blocks of their own and in one.
void ExpectRowsInvariant(const CudaBackend& cuda, const PackedLinear& packed, const Run& run,
                         std::uint32_t all, std::span<const std::uint32_t> counts) {
  const std::uint32_t n = packed.n();
  const Inputs in(all, n, packed.k(), run.x_dtype);
  const auto reference = Compute(cuda, packed, in, run, 0, all);
  for (const std::uint32_t rows : counts) {
    for (const std::uint32_t first : {0u, all - rows}) {
      const auto y = Compute(cuda, packed, in, run, first, rows);
      EXPECT_EQ(std::memcmp(y.data(), reference.data() + std::size_t{first} * n, y.size() * 4), 0)
          << "rows " << rows << " from " << first << " of " << packed.n() << "x" << packed.k();
    }
  }
}

TEST(LinearCudaTest, BitsOfARowDoNotDependOnTheOthers) {
  const CudaBackend cuda;
  const auto w = RandomFloats(136 * 600, 1, 0.05f);
  ASSERT_EQ(cuda::LinearTreeOf(136, 600).splits, 2u);
  ASSERT_EQ(cuda::LinearTreeOf(136, 200).splits, 1u);
  const std::uint32_t counts[] = {1, 7, 8, 9, 32, 33, 64, 65};
  // The emulated device has 4 SMs: 65 rows still split K over blocks, 130 do not.
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
    ASSERT_EQ(cuda::LinearTreeOf(40, 1096).splits, 4u);
    // Twice: the counters of the blocks must be as before.
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

TEST(LinearCudaTest, ScalarPathHasTheBitsOfTheCpu) {
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
  const auto packed = PackLinearWeights(*cuda, sources, DType::kBF16, kK, DType::kBF16);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const Inputs in(2, 25, kK, DType::kBF16);
  EXPECT_LE(RelativeError(Compute(cuda, *packed, in, {}, 0, 2),
                          Exact(in.x, Rounded(w, DType::kBF16), {}, {}, 2, 25, kK)),
            1e-6);
}

TEST(LinearCudaTest, KeepsNotANumberOfOneRowOutOfTheOthers) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 40, kK = 72;
  const PackedLinear packed = Pack(cuda, RandomFloats(kN * kK, 1), DType::kBF16, kN, kK);
  Inputs in(9, kN, kK, DType::kBF16);
  in.x[4 * kK + 70] = std::numeric_limits<float>::quiet_NaN();
  const auto y = Compute(cuda, packed, in, {}, 0, 9);
  for (std::uint32_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / kN == 4) << i;
}

// A quantised matrix and what it is worth.
struct Quantized {
  std::vector<std::uint8_t> values;
  std::vector<float> scales;
  std::vector<float> worth;
  QuantizedWeight weight;
  std::vector<std::byte> scale_bytes;
};

Quantized MakeQuantized(WeightFormat format, DType scale_dtype, std::uint32_t group,
                        std::uint32_t n, std::uint32_t k) {
  Quantized q;
  const bool four_bits = format == WeightFormat::kInt4;
  const std::uint32_t groups = four_bits ? k / group : 1;
  std::mt19937 random(7);
  for (const float x : RandomFloats(std::size_t{n} * groups, 5)) {
    q.scales.push_back(0.01f + 0.01f * std::abs(x));
  }
  q.scales = Rounded(q.scales, scale_dtype);
  q.scale_bytes = Encode(q.scales, scale_dtype);
  for (std::uint32_t i = 0; i < n * k; ++i) {
    float value = 0;
    if (four_bits) {
      const std::uint32_t code = random() % 16;
      if (i % 2 == 0) q.values.push_back(0);
      q.values.back() = static_cast<std::uint8_t>(q.values.back() | code << (i % 2 * 4));
      value = static_cast<float>(code) - 8;
    } else {
      auto code = static_cast<std::uint8_t>(random());
      if (format == WeightFormat::kFp8E4M3 && (code & 0x7f) == 0x7f) code = 0x80;
      q.values.push_back(code);
      value = format == WeightFormat::kInt8 ? static_cast<float>(static_cast<std::int8_t>(code))
                                            : F8E4M3{code}.ToFloat();
    }
    q.worth.push_back(value * q.scales[four_bits ? i / k * groups + i % k / group : i / k]);
  }
  q.weight = {.format = format,
              .values = q.values.data(),
              .scales = q.scale_bytes.data(),
              .scale_dtype = scale_dtype,
              .group = group};
  return q;
}

TEST(LinearCudaTest, QuantisedWeightsAgreeWithDouble) {
  const CudaBackend cuda;
  struct QuantizedCase {
    WeightFormat format;
    DType scale_dtype;
    std::uint32_t group;
    std::uint32_t n;
    std::uint32_t k;
  };
  for (const QuantizedCase& c :
       std::vector<QuantizedCase>{{WeightFormat::kInt8, DType::kF32, 0, 130, 584},
                                  {WeightFormat::kInt8, DType::kBF16, 0, 5, 8},
                                  {WeightFormat::kFp8E4M3, DType::kF32, 0, 130, 584},
                                  {WeightFormat::kFp8E4M3, DType::kF16, 0, 128, 72},
                                  {WeightFormat::kInt4, DType::kF16, 32, 130, 544},
                                  {WeightFormat::kInt4, DType::kBF16, 64, 130, 576},
                                  {WeightFormat::kInt4, DType::kF16, 128, 130, 640},
                                  {WeightFormat::kInt4, DType::kBF16, 32, 3, 32}}) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(c.format), " group ", c.group, " ", c.n, "x", c.k));
    const Quantized q = MakeQuantized(c.format, c.scale_dtype, c.group, c.n, c.k);
    const auto packed = PackQuantizedLinear(*cuda, q.weight, c.n, c.k);
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (const std::uint32_t rows : {1u, 8u, 33u}) {
      const Inputs in(rows, c.n, c.k, DType::kBF16);
      const auto exact = Exact(in.x, q.worth, in.bias, in.residual, rows, c.n, c.k);
      for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
        EXPECT_LE(
            RelativeError(Compute(cuda, *packed, in, {.y_dtype = y_dtype, .extras = true}, 0, rows),
                          exact),
            Tolerance(y_dtype))
            << "rows " << rows;
      }
    }
    const std::uint32_t counts[] = {1, 8, 9, 64};
    if (c.k > 500) ExpectRowsInvariant(cuda, *packed, {.extras = true}, 70, counts);
  }
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
  EXPECT_THAT(run(bf16, x.ptr() + 4, 16, wide.ptr()).message(), testing::HasSubstr("byte 8 of 16"));
  EXPECT_THAT(run(f16, x.ptr(), 24, wide.ptr()).message(), testing::HasSubstr("bf16 by bf16"));
  EXPECT_THAT(run(f16, wide.ptr(), 16, x.ptr()).message(), testing::HasSubstr("y bf16"));
  ASSERT_TRUE(cuda.stream().Synchronize().ok());

  Quantized q = MakeQuantized(WeightFormat::kInt4, DType::kF16, 32, 4, 64);
  const auto pack = [&](std::uint32_t n, std::uint32_t k) {
    return PackQuantizedLinear(*cuda, q.weight, n, k).status();
  };
  EXPECT_TRUE(pack(4, 64).ok());
  q.weight.group = 48;
  EXPECT_THAT(pack(4, 64).message(), testing::HasSubstr("scale for 48"));
  q.weight.group = 128;
  EXPECT_THAT(pack(4, 64).message(), testing::HasSubstr("64 inputs"));
  q.weight.group = 32;
  q.weight.scale_dtype = DType::kF32;
  EXPECT_THAT(pack(4, 64).message(), testing::HasSubstr("scales of int4"));
  q = MakeQuantized(WeightFormat::kFp8E4M3, DType::kF32, 0, 4, 16);
  EXPECT_THAT(pack(4, 15).message(), testing::HasSubstr("multiple of 8"));
  q.values[17] = 0xff;
  EXPECT_THAT(pack(4, 16).message(), testing::HasSubstr("NaN"));
  const TestBackend cpu(1);
  EXPECT_THAT(PackQuantizedLinear(*cpu, q.weight, 4, 16).status().message(),
              testing::HasSubstr("need a CUDA device"));
}

TEST(LinearTreeTest, FillsTheDeviceFromShapesAlone) {
  const auto splits = [](std::uint32_t n, std::uint32_t k) {
    return cuda::LinearTreeOf(n, k).splits;
  };
  EXPECT_EQ(splits(4096, 4096), 4u);
  EXPECT_EQ(splits(6144, 4096), 4u);
  EXPECT_EQ(splits(28672, 4096), 1u);
  EXPECT_EQ(splits(4096, 14336), 4u);
  EXPECT_EQ(splits(128256, 4096), 1u);
  for (std::uint32_t n = 1; n < 20000; n += 61) {
    for (std::uint32_t k = 8; k < 16000; k += 808) {
      const cuda::LinearTree tree = cuda::LinearTreeOf(n, k);
      const std::uint32_t tiles = cuda::LinearTilesK(k);
      ASSERT_GE(tree.splits * tree.tiles_per_split, tiles);
      ASSERT_LT((tree.splits - 1) * tree.tiles_per_split, tiles) << "an empty sub-range";
      if (tree.splits > 1) {
        ASSERT_LE(2 * cuda::LinearTilesN(n) * tree.splits, cuda::kLinearMaxPartials);
      }
    }
  }
}

TEST(LinearTreeTest, PackedOrderHoldsEveryWeightOnce) {
  for (const std::uint32_t bits : {4u, 8u}) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> places;
    for (std::uint32_t i = 0; i < cuda::kLinearTileN * cuda::kLinearTileK; ++i) {
      const cuda::LinearPlace place = cuda::LinearPlaceOf(bits, i);
      ASSERT_LT(place.feature, cuda::kLinearTileN);
      ASSERT_LT(place.input, cuda::kLinearTileK);
      places.insert({place.feature, place.input});
    }
    EXPECT_EQ(places.size(), cuda::kLinearTileN * cuda::kLinearTileK);
  }
}

}  // namespace
}  // namespace quire::kernels
