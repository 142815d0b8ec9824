// Grouped products on the emulated GPU, compared with double precision and bitwise with Linear of
// each group.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/linear/weight_memory.h"
#include "kernels/moe/expert_rows.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"
#include "tests/kernels/rounded_rows.h"

namespace quire::kernels {
namespace {

// The matrices of one layer in one allocation, interleaved with others, like gate-up and down.
struct Experts {
  static constexpr std::int64_t kBiasGap = 3;  // floats between biases

  // Unquantized matrices.
  Experts(const CudaBackend& cuda, std::uint32_t count, std::uint32_t n, std::uint32_t k,
          DType dtype = DType::kBF16, DType activations = DType::kBF16) {
    const std::int64_t room = CudaPlainPaddedBytes(dtype, n, k, activations);
    auto memory = *WeightMemory::Allocate(2 * count * room);
    for (std::uint32_t e = 0; e < count; ++e) {
      values.push_back(Rounded(RandomFloats(std::size_t{n} * k, 100 + e), dtype));
      const auto bytes = Encode(values.back(), dtype);
      const WeightRows rows{bytes.data(), n};
      matrices.push_back(*PackLinearWeights(*cuda, {&rows, 1}, dtype, k,
                                            {.activations = activations, .memory = &memory}));
      beside.push_back(memory.Take(room));
    }
  }
  // Quantized matrices, each with its own scales, zero points and act-order permutation.
  Experts(const CudaBackend& cuda, std::uint32_t count, const QuantizedShape& shape) {
    const std::int64_t room = CudaQuantizedPaddedBytes(shape);
    auto memory = *WeightMemory::Allocate(2 * count * room);
    for (std::uint32_t e = 0; e < count; ++e) {
      const Quantized made = MakeQuantized(shape, 100 + e);
      values.push_back(made.worth);
      matrices.push_back(*made.Pack(*cuda, &memory));
      beside.push_back(memory.Take(room));
    }
  }
  void AddBiases(const CudaBackend& cuda) {
    const std::uint32_t n = matrices[0].n();
    device_bias.emplace(cuda, DType::kF32, static_cast<std::uint32_t>(matrices.size()), n,
                        n + kBiasGap);
    biases = RandomFloats(matrices.size() * n, 9);
    device_bias->Put(biases);
  }
  const float* BiasOf(std::size_t e) const {
    return device_bias ? device_bias->f32() + static_cast<std::int64_t>(e) * device_bias->stride()
                       : nullptr;
  }
  // Returns whether a separate launch rewrites the rows.
  bool RewritesRows() const {
    return matrices[0].act_order() != nullptr || matrices[0].quantizes_activations();
  }
  std::optional<LinearGroups> Groups() const {
    auto groups =
        LinearGroupsOf(static_cast<std::uint32_t>(matrices.size()),
                       [this](std::uint32_t e) -> const PackedLinear& { return matrices[e]; });
    if (groups && device_bias) {
      groups->bias = BiasOf(0);
      groups->bias_distance = device_bias->stride();
    }
    return groups;
  }
  std::vector<std::vector<float>> values;
  std::vector<PackedLinear> matrices;
  std::vector<DeviceBuffer> beside;
  std::vector<float> biases;
  std::optional<DeviceRows> device_bias;
};

DeviceBuffer Upload(const CudaBackend& cuda, const std::vector<std::uint32_t>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(std::uint32_t));
  DeviceBuffer buffer = *DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
  EXPECT_TRUE(cuda.stream().Copy(buffer.data(), values.data(), bytes).ok());
  EXPECT_TRUE(cuda.stream().Synchronize().ok());
  return buffer;
}

struct Types {
  DType x = DType::kBF16;
  DType y = DType::kF32;
  bool by_number = false;  // rows of x are permuted and found by their numbers
};

// The rows in reverse order, each followed by a row that no number refers to.
struct RowsByNumber {
  RowsByNumber(const CudaBackend& cuda, const std::vector<float>& values, DType dtype,
               std::uint32_t k)
      : x(cuda, dtype, static_cast<std::uint32_t>(2 * values.size() / k), k, (k + 15) / 8 * 8) {
    const auto num_rows = static_cast<std::uint32_t>(values.size() / k);
    std::vector<std::uint32_t> places(num_rows);
    std::vector<float> reversed(2 * values.size(), 1000.0f);
    for (std::uint32_t m = 0; m < num_rows; ++m) {
      places[m] = 2 * (num_rows - 1 - m);
      std::copy_n(values.begin() + std::ptrdiff_t{m} * k, k,
                  reversed.begin() + std::ptrdiff_t{places[m]} * k);
    }
    x.Put(reversed);
    numbers = Upload(cuda, places);
  }
  DeviceRows x;
  DeviceBuffer numbers;
};

// Returns the rows as the matrix multiplies them.
std::vector<float> Multiplied(const PackedLinear& weight, std::span<const float> x) {
  if (weight.quantizes_activations()) return RoundedRows(x, weight.k());
  return {x.begin(), x.end()};
}

// Compares GroupedLinear of all rows with Linear of each group and with double precision.
void CheckGroups(const CudaBackend& cuda, const Experts& experts,
                 const std::vector<std::uint32_t>& counts, const Types& types) {
  SCOPED_TRACE(absl::StrCat("x ", DTypeName(types.x), " y ", DTypeName(types.y)));
  const std::uint32_t n = experts.matrices[0].n();
  const std::uint32_t k = experts.matrices[0].k();
  const auto num_rows = std::accumulate(counts.begin(), counts.end(), 0u);
  std::vector<std::uint32_t> offsets = {0};
  for (const std::uint32_t count : counts) offsets.push_back(offsets.back() + count);
  const auto values = Rounded(RandomFloats(std::size_t{num_rows} * k, 2), types.x);
  DeviceRows x(cuda, types.x, num_rows, k, (k + 15) / 8 * 8);
  x.Put(values);
  const RowsByNumber by_number(cuda, values, types.x, k);
  DeviceRows y(cuda, types.y, num_rows, n, n + 5);
  DeviceRows want(cuda, types.y, num_rows, n, n + 5);
  const DeviceBuffer device_offsets = Upload(cuda, offsets);
  const auto groups = experts.Groups();
  ASSERT_TRUE(groups.has_value());
  const std::uint64_t before = cuda_emulator::LaunchCount();
  const absl::Status status = GroupedLinear(
      *cuda,
      {.x = types.by_number ? by_number.x.ptr() : x.ptr(),
       .weights = *groups,
       .offsets = static_cast<std::uint32_t*>(device_offsets.data()),
       .y = y.ptr(),
       .x_stride = x.stride(),
       .y_stride = y.stride(),
       .num_rows = num_rows,
       .rows = types.by_number ? static_cast<std::uint32_t*>(by_number.numbers.data()) : nullptr});
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> got = y.Get();
  EXPECT_LE(cuda_emulator::LaunchCount() - before, experts.RewritesRows() ? 2u : 1u);
  EXPECT_TRUE(y.GuardsIntact());
  // Half a unit of bf16 is at most 2^-8 of the value.
  const double rounding = types.y == DType::kBF16 ? 1.0 / 256 : 1e-5;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] == 0) continue;
    ASSERT_TRUE(Linear(*cuda, {.x = x.ptr() + offsets[e] * x.stride(),
                               .weight = &experts.matrices[e],
                               .bias = experts.BiasOf(e),
                               .y = want.ptr() + offsets[e] * want.stride(),
                               .x_stride = x.stride(),
                               .y_stride = want.stride(),
                               .num_rows = counts[e]})
                    .ok());
    const std::span<const float> own =
        std::span(values).subspan(std::size_t{offsets[e]} * k, std::size_t{counts[e]} * k);
    std::span<const float> bias = experts.biases;
    if (!bias.empty()) bias = bias.subspan(e * n, n);
    const auto exact =
        Exact(Multiplied(experts.matrices[e], own), experts.values[e], bias, {}, counts[e], n, k);
    float largest = 1;
    for (const float w : experts.values[e]) largest = std::max(largest, std::abs(w));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double tolerance =
          rounding * std::abs(exact[i]) + 1e-6 * largest * std::sqrt(static_cast<double>(k));
      ASSERT_NEAR(got[std::size_t{offsets[e]} * n + i], exact[i], tolerance) << "group " << e;
    }
  }
  const std::vector<float> bits = want.Get();
  EXPECT_EQ(std::memcmp(got.data(), bits.data(), got.size() * sizeof(float)), 0);
}

TEST(GroupedLinearCudaTest, RowsEqualLinearBitwiseAndAreNearDoublePrecision) {
  const CudaBackend cuda;
  // K has one sub-range, several, or is no multiple of a tile. N exceeds a tile.
  const std::pair<std::uint32_t, std::uint32_t> shapes[] = {{136, 72}, {40, 584}};
  for (const auto& [n, k] : shapes) {
    const Experts experts(cuda, 5, n, k);
    const std::vector<std::uint32_t> cases[] = {
        {1, 0, 0, 0, 0},  {0, 1, 0, 1, 0},      {0, 0, 0, 0, 8},  {3, 0, 9, 17, 1},
        {0, 0, 64, 0, 0}, {70, 129, 0, 100, 1}, {0, 0, 0, 300, 0}};
    for (const auto& counts : cases) {
      SCOPED_TRACE(absl::StrCat(n, "x", k, ", first counts ", counts[0], " ", counts[1]));
      CheckGroups(cuda, experts, counts, {});
    }
    CheckGroups(cuda, experts, {2, 0, 70, 1, 5}, {.y = DType::kBF16, .by_number = true});
    CheckGroups(cuda, experts, {3, 0, 9, 1, 1}, {.by_number = true});
  }
}

TEST(GroupedLinearCudaTest, FindsGroupsAmongMoreThanAWarp) {
  const CudaBackend cuda;
  const Experts experts(cuda, 70, 8, 64);
  std::vector<std::uint32_t> counts(70);
  for (const std::uint32_t e : {0u, 31u, 32u, 63u, 69u}) counts[e] = 1 + e % 10;
  CheckGroups(cuda, experts, counts, {});
  std::fill(counts.begin(), counts.end(), 1);
  CheckGroups(cuda, experts, counts, {});
  counts[69] = 800;
  CheckGroups(cuda, experts, counts, {});
  const Experts one(cuda, 1, 8, 64);
  CheckGroups(cuda, one, {33}, {});
}

// Covers every form that Linear accepts, with one and several sub-ranges of K, tiles of 8 and of 64
// rows, with and without biases.
TEST(GroupedLinearCudaTest, QuantizedWeightsBiasesAndF32EqualLinearBitwise) {
  const CudaBackend cuda;
  using enum WeightFormat;
  const QuantizedShape shapes[] = {
      {.format = kInt8, .n = 136, .k = 584, .group = 584},
      {.format = kInt8, .n = 24, .k = 544, .group = 32, .has_min = true, .has_zero_points = true},
      {.format = kFp8E4M3, .n = 136, .k = 584, .group = 128},
      {.format = kFp8E4M3, .n = 24, .k = 584, .group = 584},
      {.format = kFp8E4M3, .n = 136, .k = 584, .group = 128, .quantizes_activations = true},
      {.format = kInt4, .n = 136, .k = 576, .group = 64},
      {.format = kInt4, .n = 24, .k = 544, .group = 32, .has_min = true, .has_zero_points = true},
      {.format = kInt4, .n = 24, .k = 640, .group = 128, .has_act_order = true},
      {.format = kFp4E2M1, .n = 136, .k = 544, .group = 32},
      {.format = kFp4E2M1, .n = 24, .k = 96, .group = 32}};
  for (const QuantizedShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(shape.format), " ", shape.n, "x", shape.k, " by ",
                              shape.group, shape.has_act_order ? " order" : "",
                              shape.quantizes_activations ? " rounded" : ""));
    Experts experts(cuda, 3, shape);
    CheckGroups(cuda, experts, {1, 0, 2}, {});
    experts.AddBiases(cuda);
    CheckGroups(cuda, experts, {0, 9, 4}, {});
    CheckGroups(cuda, experts, {65, 0, 3}, {.y = DType::kBF16, .by_number = true});
    CheckGroups(cuda, experts, {2, 0, 40}, {.x = DType::kF32, .by_number = true});
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    SCOPED_TRACE(DTypeName(dtype));
    Experts experts(cuda, 3, 40, 300, dtype, DType::kF32);
    CheckGroups(cuda, experts, {33, 0, 2}, {.x = DType::kF32});
    experts.AddBiases(cuda);
    CheckGroups(cuda, experts, {0, 1, 0}, {.x = DType::kF32});
  }
  // Tensor cores do not support this K.
  const Experts uneven(cuda, 2, 16, 60);
  CheckGroups(cuda, uneven, {3, 34}, {.y = DType::kBF16});
}

// The workspace of permuted rows holds 64 rows at once. One group crosses that boundary, the others
// do not.
TEST(GroupedLinearCudaTest, PermutedRowsInSeveralPassesKeepTheirBits) {
  const CudaBackend cuda;
  const Experts experts(
      cuda, 4,
      {.format = WeightFormat::kInt8, .n = 8, .k = 32768, .group = 128, .has_act_order = true});
  DeviceRows x(cuda, DType::kBF16, 66, 32768, 32768);
  x.Put(Rounded(RandomFloats(std::size_t{66} * 32768, 2), DType::kBF16));
  const std::vector<std::uint32_t> offsets = {0, 3, 3, 65, 66};
  const DeviceBuffer device_offsets = Upload(cuda, offsets);
  DeviceRows y(cuda, DType::kF32, 66, 8, 8);
  DeviceRows want(cuda, DType::kF32, 66, 8, 8);
  ASSERT_TRUE(GroupedLinear(*cuda, {.x = x.ptr(),
                                    .weights = *experts.Groups(),
                                    .offsets = static_cast<std::uint32_t*>(device_offsets.data()),
                                    .y = y.ptr(),
                                    .x_stride = x.stride(),
                                    .y_stride = y.stride(),
                                    .num_rows = 66})
                  .ok());
  for (std::size_t e = 0; e < 4; ++e) {
    ASSERT_TRUE(Linear(*cuda, {.x = x.ptr() + offsets[e] * x.stride(),
                               .weight = &experts.matrices[e],
                               .y = want.ptr() + offsets[e] * want.stride(),
                               .x_stride = x.stride(),
                               .y_stride = want.stride(),
                               .num_rows = offsets[e + 1] - offsets[e]})
                    .ok());
  }
  EXPECT_EQ(y.Get(), want.Get());
  // All rows are row 7 of x by number, also in several passes.
  const DeviceBuffer numbers = Upload(cuda, std::vector<std::uint32_t>(66, 7));
  ASSERT_TRUE(GroupedLinear(*cuda, {.x = x.ptr(),
                                    .weights = *experts.Groups(),
                                    .offsets = static_cast<std::uint32_t*>(device_offsets.data()),
                                    .y = y.ptr(),
                                    .x_stride = x.stride(),
                                    .y_stride = y.stride(),
                                    .num_rows = 66,
                                    .rows = static_cast<std::uint32_t*>(numbers.data())})
                  .ok());
  const auto got = y.Get();
  const auto all = want.Get();
  for (std::size_t m = 3; m < 65; ++m) {
    EXPECT_TRUE(std::equal(got.begin() + m * 8, got.begin() + m * 8 + 8, all.begin() + 7 * 8)) << m;
  }
}

// Each caller's row chose `top_k` of the groups. Holds the start of each group among the choices,
// and the position of each choice.
struct Choices {
  Choices(const CudaBackend& cuda, std::uint32_t rows, std::uint32_t top_k, std::uint32_t groups)
      : num_rows(rows), top_k(top_k), offsets(groups + 1), places(std::size_t{rows} * top_k) {
    const auto group_of = [&](std::uint32_t row, std::uint32_t j) {
      return (row * 5 + (top_k - 1 - j) * 2) % groups;
    };
    for (std::uint32_t i = 0; i < rows * top_k; ++i) ++offsets[group_of(i / top_k, i % top_k) + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    std::vector<std::uint32_t> next = offsets;
    for (std::uint32_t i = 0; i < rows * top_k; ++i) {
      places[i] = next[group_of(i / top_k, i % top_k)]++;
    }
    device_offsets = Upload(cuda, offsets);
    device_places = Upload(cuda, places);
  }
  std::uint32_t num_rows;
  std::uint32_t top_k;
  std::vector<std::uint32_t> offsets;
  std::vector<std::uint32_t> places;
  DeviceBuffer device_offsets;
  DeviceBuffer device_places;
};

// Compares a product with its sums in one launch (plus one for a permutation) with GroupedLinear
// followed by SumChosenRows.
void CheckSums(const CudaBackend& cuda, const Experts& experts, const Choices& choices) {
  SCOPED_TRACE(absl::StrCat(choices.num_rows, " rows"));
  const std::uint32_t n = experts.matrices[0].n();
  const std::uint32_t k = experts.matrices[0].k();
  const std::uint32_t num_rows = choices.num_rows * choices.top_k;
  DeviceRows x(cuda, DType::kBF16, num_rows, k, (k + 15) / 8 * 8);
  x.Put(Rounded(RandomFloats(std::size_t{num_rows} * k, 2), DType::kBF16));
  DeviceRows y(cuda, DType::kF32, num_rows, n, n + 4);
  DeviceRows weights(cuda, DType::kF32, 1, num_rows, num_rows);
  weights.Put(RandomFloats(num_rows, 3));
  const auto sized = std::size_t{choices.num_rows} * n;
  DeviceRows addend(cuda, DType::kF32, choices.num_rows, n, n + 8);
  addend.Put(RandomFloats(sized, 4));
  DeviceRows sum(cuda, DType::kF32, choices.num_rows, n, n + 8);
  DeviceRows want(cuda, DType::kF32, choices.num_rows, n, n + 8);
  GroupedLinearParams product{
      .x = x.ptr(),
      .weights = *experts.Groups(),
      .offsets = static_cast<const std::uint32_t*>(choices.device_offsets.data()),
      .y = y.ptr(),
      .x_stride = x.stride(),
      .y_stride = y.stride(),
      .num_rows = num_rows};
  for (const bool adds : {false, true}) {
    const std::vector<float> before = RandomFloats(sized, 5);
    sum.Put(before);
    want.Put(before);
    const ChosenSum chosen{
        .places = static_cast<const std::uint32_t*>(choices.device_places.data()),
        .weights = weights.f32(),
        .y = sum.f32(),
        .y_stride = sum.stride(),
        .num_rows = choices.num_rows,
        .top_k = choices.top_k,
        .add = adds,
        .addend = adds ? addend.f32() : nullptr};
    ASSERT_TRUE(CanFuseGroupedSum(product, chosen));
    product.sum = chosen;
    const std::uint64_t launches = cuda_emulator::LaunchCount();
    const absl::Status status = GroupedLinear(*cuda, product);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(cuda.stream().Synchronize().ok());
    if (cuda_emulator::IsEmulated()) {
      EXPECT_EQ(cuda_emulator::LaunchCount() - launches, experts.RewritesRows() ? 2u : 1u);
    }
    product.sum.reset();
    ASSERT_TRUE(GroupedLinear(*cuda, product).ok());
    ASSERT_TRUE(SumChosenRows(*cuda, {y.f32(), chosen.places, chosen.weights, want.f32(),
                                      y.stride(), want.stride(), chosen.num_rows, chosen.top_k, n,
                                      chosen.add, chosen.addend})
                    .ok());
    const std::vector<float> got = sum.Get();
    EXPECT_EQ(got, want.Get());
    EXPECT_NE(got, before);
    EXPECT_TRUE(sum.GuardsIntact());
  }
}

// More features than a tile, K in one and several sub-ranges, one row and the maximum number of
// rows.
TEST(GroupedLinearCudaTest, FusedSumsEqualASeparateLaunchBitwise) {
  const CudaBackend cuda;
  const Choices one(cuda, 1, 3, 7), few(cuda, 5, 3, 7), most(cuda, 16, 3, 7);
  for (const Choices* choices : {&one, &few, &most}) {
    CheckSums(cuda, Experts(cuda, 7, 136, 72), *choices);
    CheckSums(cuda, Experts(cuda, 7, 40, 584), *choices);
  }
  const Choices wide(cuda, 32, 8, 33);  // kMaxChosen
  CheckSums(cuda, Experts(cuda, 33, 8, 64), wide);
  Experts biased(cuda, 7, 136, 72);
  biased.AddBiases(cuda);
  CheckSums(cuda, biased, few);
}

TEST(GroupedLinearCudaTest, FusedSumsOfQuantizedWeightsEqualASeparateLaunchBitwise) {
  const CudaBackend cuda;
  using enum WeightFormat;
  const Choices one(cuda, 1, 3, 7), most(cuda, 16, 3, 7);
  for (const QuantizedShape& shape :
       {QuantizedShape{.format = kInt8, .n = 136, .k = 584, .group = 584},
        QuantizedShape{.format = kInt8,
        .n = 40,
        .k = 64,
        .group = 32,
        .has_min = true,
        .has_zero_points = true},
        QuantizedShape{.format = kFp8E4M3, .n = 136, .k = 584, .group = 128},
        QuantizedShape{
            .format = kFp8E4M3, .n = 136, .k = 584, .group = 128, .quantizes_activations = true},
        QuantizedShape{.format = kInt4,
        .n = 136,
        .k = 576,
        .group = 64,
        .has_min = true,
        .has_zero_points = true},
        QuantizedShape{.format = kFp4E2M1, .n = 24, .k = 544, .group = 32},
        QuantizedShape{.format = kInt4, .n = 24, .k = 640, .group = 128, .has_act_order = true}}) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(shape.format), shape.has_act_order ? " order" : ""));
    const Experts experts(cuda, 7, shape);
    for (const Choices* choices : {&one, &most}) CheckSums(cuda, experts, *choices);
  }
}

TEST(GroupedLinearCudaTest, RejectsUnsupportedSums) {
  const CudaBackend cuda;
  const Experts experts(cuda, 33, 16, 64);
  const Choices choices(cuda, 4, 3, 33);
  const DeviceRows x(cuda, DType::kBF16, 12, 64, 64);
  const DeviceRows y(cuda, DType::kF32, 12, 16, 16);
  const DeviceRows sums(cuda, DType::kF32, 4, 16, 16);
  GroupedLinearParams good{
      .x = x.ptr(),
      .weights = *experts.Groups(),
      .offsets = static_cast<const std::uint32_t*>(choices.device_offsets.data()),
      .y = y.ptr(),
      .x_stride = 64,
      .y_stride = 16,
      .num_rows = 12};
  good.sum = ChosenSum{.places = static_cast<const std::uint32_t*>(choices.device_places.data()),
                       .weights = sums.f32(),
                       .y = sums.f32(),
                       .y_stride = 16,
                       .num_rows = 4,
                       .top_k = 3};
  EXPECT_TRUE(CanFuseGroupedSum(good, *good.sum));
  // Its inputs are permuted 32 rows at a time.
  const PackedLinear ordered =
      *MakeQuantized(
           {.format = WeightFormat::kInt4, .n = 4, .k = 65536, .group = 128, .has_act_order = true})
           .Pack(*cuda);
  const Experts uneven(cuda, 33, 18, 64);  // its rows end within four floats
  const DeviceRows wide_y(cuda, DType::kF32, 12, 20, 20), wide_sums(cuda, DType::kF32, 4, 20, 20);
  std::vector<GroupedLinearParams> bad(10, good);
  bad[9].weights = *uneven.Groups();
  bad[9].y = wide_y.ptr();
  bad[9].y_stride = bad[9].sum->y_stride = 20;
  bad[9].sum->y = wide_sums.f32();
  bad[8].weights.first = &ordered;
  bad[8].x_stride = 65536;
  bad[8].num_rows = 33;
  bad[0].sum->top_k = 65;  // 260 choices
  bad[1].sum->y_stride = 18;
  bad[2].sum->y = sums.f32() + 1;
  bad[3].sum->addend = sums.f32() + 2;
  bad[4].y = FloatPtr(y.ptr().data(), DType::kBF16);
  bad[5].y_stride = 17;
  bad[6].num_rows = 8 * 33 + 1;
  bad[7].first_row = 1;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_FALSE(CanFuseGroupedSum(bad[i], *bad[i].sum)) << i;
    EXPECT_TRUE(absl::IsInvalidArgument(GroupedLinear(*cuda, bad[i]))) << i;
  }
  good.sum->y_stride = 12;
  EXPECT_TRUE(absl::IsInvalidArgument(GroupedLinear(*cuda, good)));
}

TEST(GroupedLinearCudaTest, OtherFormsAndDistancesAreNotGroups) {
  const CudaBackend cuda;
  Experts experts(cuda, 3, 16, 64);
  EXPECT_TRUE(experts.Groups().has_value());
  std::swap(experts.matrices[1], experts.matrices[2]);
  EXPECT_FALSE(experts.Groups().has_value());
  std::swap(experts.matrices[1], experts.matrices[2]);
  experts.matrices[2] = Pack(cuda, RandomFloats(16 * 72, 1), DType::kBF16, 16, 72);
  EXPECT_FALSE(experts.Groups().has_value());
  experts.matrices.resize(2);
  EXPECT_TRUE(experts.Groups().has_value());
  experts.matrices[1] =
      *MakeQuantized({.format = WeightFormat::kInt8, .n = 16, .k = 64, .group = 64}).Pack(*cuda);
  EXPECT_FALSE(experts.Groups().has_value());
  EXPECT_FALSE(LinearGroupsOf(0, [&](std::uint32_t) -> const PackedLinear& {
                 return experts.matrices[0];
               }).has_value());
}

TEST(GroupedLinearCudaTest, ChecksStridesTypesAndAlignment) {
  const CudaBackend cuda;
  const Experts experts(cuda, 2, 16, 64);
  const DeviceRows x(cuda, DType::kBF16, 3, 64, 64);
  const DeviceRows y(cuda, DType::kF32, 3, 16, 16);
  const DeviceBuffer offsets = Upload(cuda, {0, 1, 3});
  const GroupedLinearParams good{.x = x.ptr(),
                                 .weights = *experts.Groups(),
                                 .offsets = static_cast<std::uint32_t*>(offsets.data()),
                                 .y = y.ptr(),
                                 .x_stride = 64,
                                 .y_stride = 16,
                                 .num_rows = 3};
  EXPECT_TRUE(GroupedLinear(*cuda, good).ok());
  std::vector<GroupedLinearParams> bad(7, good);
  bad[0].x_stride = 56;
  bad[1].y_stride = 15;
  bad[2].y = FloatPtr(y.ptr().data(), DType::kF16);
  bad[3].x = x.ptr() + 1;
  bad[4].x_stride = 65;
  bad[5].x_stride = 65;
  bad[5].rows = static_cast<std::uint32_t*>(offsets.data());
  bad[5].num_rows = 1;
  bad[6].gate = GateShape{};
  for (const GroupedLinearParams& params : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(GroupedLinear(*cuda, params)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(GroupedLinear(*TestBackend(1), good)));
}

}  // namespace
}  // namespace quire::kernels
