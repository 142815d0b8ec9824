// Fused gated linear layers on the emulated GPU. Results equal Linear followed by GatedProduct
// bitwise and are near double precision.

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/elementwise/activation.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/linear/weight_memory.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/exact_gate_reference.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"

namespace quire::kernels {
namespace {

constexpr DType kBF16 = DType::kBF16;

// Rows of x and a bias in device memory.
struct GateInputs {
  GateInputs(const CudaBackend& cuda, std::uint32_t rows, std::uint32_t n, std::uint32_t k)
      : host(rows, n, k, kBF16),
        x(cuda, kBF16, rows, k, (k + 15) / 8 * 8),
        bias(cuda, DType::kF32, 1, n, n) {
    x.Put(host.x);
    bias.Put(host.bias);
  }
  Inputs host;
  DeviceRows x;
  DeviceRows bias;
};

// Returns the rows of `in` computed by the fused op, which writes only its N / 2 columns. With an
// even number of rows four columns can be stored at a time, with an odd one not.
std::vector<float> Fused(const CudaBackend& cuda, const PackedLinear& weight, const GateInputs& in,
                         const GateShape& shape, bool has_bias) {
  const auto rows = static_cast<std::uint32_t>(in.host.x.size() / weight.k());
  DeviceRows y(cuda, kBF16, rows, weight.n() / 2, weight.n() / 2 + (rows % 2 == 0 ? 4 : 3));
  const absl::Status status = Linear(*cuda, {.x = in.x.ptr(),
                                             .weight = &weight,
                                             .bias = has_bias ? in.bias.f32() : nullptr,
                                             .y = y.ptr(),
                                             .x_stride = in.x.stride(),
                                             .y_stride = y.stride(),
                                             .num_rows = rows,
                                             .gate = shape});
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> values = y.Get();
  EXPECT_TRUE(y.GuardsIntact());
  return values;
}

std::vector<float> InTwoSteps(const CudaBackend& cuda, const PackedLinear& weight,
                              const GateInputs& in, const GateShape& shape, bool has_bias) {
  const std::uint32_t inner = weight.n() / 2;
  const auto rows = static_cast<std::uint32_t>(in.host.x.size() / weight.k());
  DeviceRows both(cuda, kBF16, rows, weight.n(), weight.n());
  DeviceRows y(cuda, kBF16, rows, inner, inner);
  EXPECT_TRUE(Linear(*cuda, {.x = in.x.ptr(),
                             .weight = &weight,
                             .bias = has_bias ? in.bias.f32() : nullptr,
                             .y = both.ptr(),
                             .x_stride = in.x.stride(),
                             .y_stride = both.stride(),
                             .num_rows = rows})
                  .ok());
  EXPECT_TRUE(GatedProduct(*cuda, {.gate = both.ptr(),
                                   .up = both.ptr() + inner,
                                   .y = y.ptr(),
                                   .gate_stride = both.stride(),
                                   .up_stride = both.stride(),
                                   .y_stride = y.stride(),
                                   .num_rows = rows,
                                   .columns = inner,
                                   .shape = shape})
                  .ok());
  return y.Get();
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
}

// `worth` is the matrix as f32.
void Check(const CudaBackend& cuda, const PackedLinear& weight, std::span<const float> worth,
           std::uint32_t rows, const GateShape& shape) {
  SCOPED_TRACE(absl::StrCat(weight.n(), "x", weight.k(), " rows ", rows, " activation ",
                            static_cast<int>(shape.act), " alpha ", shape.alpha));
  ASSERT_TRUE(CanFuseGate(*cuda, weight, kBF16, kBF16));
  const std::uint32_t n = weight.n(), inner = n / 2;
  const GateInputs in(cuda, rows, n, weight.k());
  for (const bool has_bias : {false, true}) {
    const std::vector<float> got = Fused(cuda, weight, in, shape, has_bias);
    ExpectSameBits(got, InTwoSteps(cuda, weight, in, shape, has_bias));
    const std::span<const float> bias =
        has_bias ? std::span<const float>(in.host.bias) : std::span<const float>();
    const auto both = Exact(in.host.x, worth, bias, {}, rows, n, weight.k());
    std::vector<double> exact;
    for (std::size_t m = 0; m < rows; ++m) {
      for (std::size_t j = 0; j < inner; ++j) {
        exact.push_back(ExactProduct(shape, both[m * n + j], both[m * n + inner + j]));
      }
    }
    // Gate, up and y are rounded to bf16, and the slope of an activation is at most a small factor.
    EXPECT_LE(RelativeError(got, exact), 8e-3);
  }
}

// Covers a partial tile past the first half of the matrix and tiles that start in the middle of
// one. K has one sub-range, several, or is no multiple of a tile. Every row tile occurs, with
// sub-ranges summed by separate blocks and by one block.
TEST(GatedLinearCudaTest, PlainWeights) {
  const CudaBackend cuda;
  for (const auto& [n, k] : {std::pair(128u, 72u), std::pair(384u, 584u)}) {
    const auto w = Rounded(RandomFloats(std::size_t{n} * k, 1, 0.05f), kBF16);
    const PackedLinear packed = Pack(cuda, w, kBF16, n, k);
    for (const std::uint32_t rows : {1u, 8u, 9u, 30u, 64u, 70u, 130u}) {
      Check(cuda, packed, w, rows, {});
    }
  }
}

TEST(GatedLinearCudaTest, EveryActivation) {
  const CudaBackend cuda;
  constexpr std::uint32_t kN = 256, kK = 64;
  const auto w = Rounded(RandomFloats(kN * kK, 1, 0.3f), kBF16);
  const PackedLinear packed = Pack(cuda, w, kBF16, kN, kK);
  for (const GateShape& shape :
       {GateShape{.alpha = 1.702f, .limit = 1.5f, .up_offset = 1},
        GateShape{.act = Activation::kGeluTanh}, GateShape{.act = Activation::kGeluErf},
        GateShape{.act = Activation::kRelu2}}) {
    Check(cuda, packed, w, 3, shape);
    Check(cuda, packed, w, 66, shape);  // uses wgmma on capability 9.0
  }
}

// e4m3 with dynamic activation quantization, in the portable kernel and on 9.0 in the fp8 kernel.
TEST(GatedLinearCudaTest, DynamicActivationQuantization) {
  const CudaBackend cuda;
  for (const bool allows_row_major : {false, true}) {
    for (const std::uint32_t group : {128u, 584u}) {
      const Quantized made = MakeQuantized({.format = WeightFormat::kFp8E4M3,
                                            .n = 384,
                                            .k = 584,
                                            .group = group,
                                            .quantizes_activations = true,
                                            .allows_row_major = allows_row_major});
      const auto packed = made.Pack(*cuda);
      ASSERT_TRUE(packed.ok()) << packed.status();
      ASSERT_TRUE(CanFuseGate(*cuda, *packed, kBF16, kBF16));
      for (const std::uint32_t rows : {1u, 70u, 515u}) {
        SCOPED_TRACE(
            absl::StrCat(rows, " rows, group ", group, allows_row_major ? " row-major" : ""));
        const GateInputs in(cuda, rows, 384, 584);
        ExpectSameBits(Fused(cuda, *packed, in, {}, true), InTwoSteps(cuda, *packed, in, {}, true));
      }
    }
  }
}

TEST(GatedLinearCudaTest, QuantizedWeights) {
  const CudaBackend cuda;
  using enum WeightFormat;
  const QuantizedShape shapes[] = {
      {.format = kInt8, .n = 384, .k = 584, .group = 584},
      {.format = kInt8, .n = 128, .k = 96, .group = 32, .has_min = true, .has_zero_points = true},
      {.format = kInt8, .n = 384, .k = 128, .group = 128, .has_act_order = true},
      {.format = kFp8E4M3, .n = 384, .k = 584, .group = 128},
      {.format = kFp8E4M3, .n = 128, .k = 584, .group = 584},
      {.format = kInt4, .n = 384, .k = 576, .group = 64},
      {.format = kInt4, .n = 384, .k = 544, .group = 32, .has_min = true, .has_zero_points = true},
      {.format = kFp4E2M1, .n = 384, .k = 544, .group = 32}};
  for (const QuantizedShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(shape.format), " by ", shape.group));
    const Quantized made = MakeQuantized(shape);
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (const std::uint32_t rows : {1u, 9u, 70u}) {
      // The products of these matrices are so large that the gate is almost a step function.
      Check(cuda, *packed, made.worth, rows, {.act = Activation::kRelu2});
    }
    Check(cuda, *packed, made.worth, 2, {});
  }
}

// Each group equals its own product bitwise, with tiles of 8 and of 64 rows.
TEST(GatedLinearCudaTest, Groups) {
  const CudaBackend cuda;
  constexpr std::uint32_t kGroups = 3;
  const QuantizedShape shape{.format = WeightFormat::kInt4, .n = 384, .k = 128, .group = 32};
  auto memory = *WeightMemory::Allocate(kGroups * CudaQuantizedPaddedBytes(shape));
  std::vector<PackedLinear> matrices;
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    matrices.push_back(*MakeQuantized(shape, 100 + g).Pack(*cuda, &memory));
  }
  auto groups =
      LinearGroupsOf(kGroups, [&](std::uint32_t g) -> const PackedLinear& { return matrices[g]; });
  ASSERT_TRUE(groups.has_value());
  ASSERT_TRUE(CanFuseGroupedGate(*groups, kBF16, kBF16));
  DeviceRows biases(cuda, DType::kF32, kGroups, shape.n, shape.n + 1);
  biases.Put(RandomFloats(std::size_t{kGroups} * shape.n, 9));
  groups->bias = biases.f32();
  groups->bias_distance = biases.stride();
  const GateShape gate{.alpha = 1.702f, .limit = 7, .up_offset = 1};
  for (const std::vector<std::uint32_t>& counts :
       {std::vector<std::uint32_t>{1, 0, 2}, std::vector<std::uint32_t>{65, 9, 0}}) {
    std::vector<std::uint32_t> offsets = {0};
    for (const std::uint32_t count : counts) offsets.push_back(offsets.back() + count);
    const std::uint32_t rows = offsets.back();
    DeviceRows x(cuda, kBF16, rows, shape.k, shape.k + 8);
    x.Put(Rounded(RandomFloats(std::size_t{rows} * shape.k, 2), kBF16));
    DeviceRows got(cuda, kBF16, rows, shape.n / 2, shape.n);
    DeviceRows want(cuda, kBF16, rows, shape.n / 2, shape.n);
    const auto bytes = static_cast<std::int64_t>(offsets.size() * sizeof(offsets[0]));
    const DeviceBuffer on_device = *DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
    ASSERT_TRUE(cuda.stream().Copy(on_device.data(), offsets.data(), bytes).ok());
    const absl::Status status =
        GroupedLinear(*cuda, {.x = x.ptr(),
                              .weights = *groups,
                              .offsets = static_cast<const std::uint32_t*>(on_device.data()),
                              .y = got.ptr(),
                              .x_stride = x.stride(),
                              .y_stride = got.stride(),
                              .num_rows = rows,
                              .gate = gate});
    ASSERT_TRUE(status.ok()) << status;
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      if (counts[g] == 0) continue;
      ASSERT_TRUE(Linear(*cuda, {.x = x.ptr() + offsets[g] * x.stride(),
                                 .weight = &matrices[g],
                                 .bias = biases.f32() + g * biases.stride(),
                                 .y = want.ptr() + offsets[g] * want.stride(),
                                 .x_stride = x.stride(),
                                 .y_stride = want.stride(),
                                 .num_rows = counts[g],
                                 .gate = gate})
                      .ok());
    }
    ExpectSameBits(got.Get(), want.Get());
    EXPECT_TRUE(got.GuardsIntact());
  }
}

TEST(GatedLinearCudaTest, RejectsUnsupportedGates) {
  const CudaBackend cuda;
  const auto w = RandomFloats(256 * 64, 1, 0.05f);
  const PackedLinear whole = Pack(cuda, {w.data(), 128 * 64}, kBF16, 128, 64);
  const PackedLinear part = Pack(cuda, {w.data(), 64 * 64}, kBF16, 64, 64);
  const PackedLinear uneven = Pack(cuda, {w.data(), 128 * 60}, kBF16, 128, 60);
  EXPECT_TRUE(CanFuseGate(*cuda, whole, kBF16, kBF16));
  EXPECT_FALSE(CanFuseGate(*cuda, whole, kBF16, DType::kF32));
  EXPECT_FALSE(CanFuseGate(*cuda, part, kBF16, kBF16));
  EXPECT_FALSE(CanFuseGate(*cuda, uneven, kBF16, kBF16));
  EXPECT_FALSE(CanFuseGate(*TestBackend(1), whole, kBF16, kBF16));
  const DeviceRows x(cuda, kBF16, 1, 64, 64);
  const DeviceRows y(cuda, kBF16, 1, 128, 128);
  const DeviceRows residual(cuda, DType::kF32, 1, 128, 128);
  const LinearParams good{.x = x.ptr(),
                          .weight = &whole,
                          .y = y.ptr(),
                          .x_stride = 64,
                          .y_stride = 64,
                          .num_rows = 1,
                          .gate = GateShape{}};
  EXPECT_TRUE(Linear(*cuda, good).ok());
  std::vector<LinearParams> bad(4, good);
  bad[0].weight = &part;
  bad[1].y_stride = 63;
  bad[2].residual = residual.f32();
  bad[2].residual_stride = 128;
  bad[3].y = residual.ptr();
  for (const LinearParams& params : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(Linear(*cuda, params)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Linear(*TestBackend(1), good)));
}

}  // namespace
}  // namespace quire::kernels
