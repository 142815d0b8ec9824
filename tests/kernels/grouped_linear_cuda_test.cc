// Products of groups of rows on the emulated GPU: against double precision, and bit for bit against
// Linear of each group.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/weight_memory.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"

namespace quire::kernels {
namespace {

// Matrices of one layer in one memory, each beside another one, as gate-up lies beside down.
struct Experts {
  Experts(const CudaBackend& cuda, std::uint32_t count, std::uint32_t n, std::uint32_t k) {
    const std::int64_t room = CudaPlainRoom(DType::kBF16, n, k, DType::kBF16);
    auto memory = *WeightMemory::Allocate(2 * count * room);
    for (std::uint32_t e = 0; e < count; ++e) {
      values.push_back(Rounded(RandomFloats(std::size_t{n} * k, 100 + e), DType::kBF16));
      const auto bytes = Encode(values.back(), DType::kBF16);
      const WeightRows rows{bytes.data(), n};
      matrices.push_back(*PackLinearWeights(*cuda, {&rows, 1}, DType::kBF16, k,
                                            {.activations = DType::kBF16, .memory = &memory}));
      beside.push_back(memory.Take(room));
    }
  }
  std::optional<LinearGroups> Groups() const {
    return LinearGroupsOf(static_cast<std::uint32_t>(matrices.size()),
                          [this](std::uint32_t e) -> const PackedLinear& { return matrices[e]; });
  }
  std::vector<std::vector<float>> values;
  std::vector<PackedLinear> matrices;
  std::vector<DeviceBuffer> beside;
};

DeviceBuffer Upload(const CudaBackend& cuda, const std::vector<std::uint32_t>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(std::uint32_t));
  DeviceBuffer buffer = *DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
  EXPECT_TRUE(cuda.stream().Copy(buffer.data(), values.data(), bytes).ok());
  EXPECT_TRUE(cuda.stream().Synchronize().ok());
  return buffer;
}

void CheckGroups(const CudaBackend& cuda, const Experts& experts,
                 const std::vector<std::uint32_t>& counts, DType y_dtype) {
  SCOPED_TRACE(absl::StrCat("y ", DTypeName(y_dtype)));
  const std::uint32_t n = experts.matrices[0].n();
  const std::uint32_t k = experts.matrices[0].k();
  const auto num_rows = std::accumulate(counts.begin(), counts.end(), 0u);
  std::vector<std::uint32_t> offsets = {0};
  for (const std::uint32_t count : counts) offsets.push_back(offsets.back() + count);
  const auto values = Rounded(RandomFloats(std::size_t{num_rows} * k, 2), DType::kBF16);
  DeviceRows x(cuda, DType::kBF16, num_rows, k, (k + 15) / 8 * 8);
  x.Put(values);
  DeviceRows y(cuda, y_dtype, num_rows, n, n + 5);
  DeviceRows want(cuda, y_dtype, num_rows, n, n + 5);
  const DeviceBuffer device_offsets = Upload(cuda, offsets);
  const auto groups = experts.Groups();
  ASSERT_TRUE(groups.has_value());
  const std::uint64_t before = cuda_emulator::LaunchCount();
  ASSERT_TRUE(GroupedLinear(*cuda, {.x = x.ptr(),
                                    .weights = *groups,
                                    .offsets = static_cast<std::uint32_t*>(device_offsets.data()),
                                    .y = y.ptr(),
                                    .x_stride = x.stride(),
                                    .y_stride = y.stride(),
                                    .num_rows = num_rows})
                  .ok());
  const std::vector<float> got = y.Get();
  // Half a unit of bf16 is at most 2^-8 of the value.
  const double rounding = y_dtype == DType::kBF16 ? 1.0 / 256 : 1e-5;
  EXPECT_LE(cuda_emulator::LaunchCount() - before, 1u);
  EXPECT_TRUE(y.GuardsIntact());
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] == 0) continue;
    ASSERT_TRUE(Linear(*cuda, {.x = x.ptr() + offsets[e] * x.stride(),
                               .weight = &experts.matrices[e],
                               .y = want.ptr() + offsets[e] * want.stride(),
                               .x_stride = x.stride(),
                               .y_stride = want.stride(),
                               .num_rows = counts[e]})
                    .ok());
    const std::span<const float> own =
        std::span(values).subspan(std::size_t{offsets[e]} * k, std::size_t{counts[e]} * k);
    const auto exact = Exact(own, experts.values[e], {}, {}, counts[e], n, k);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double tolerance =
          rounding * std::abs(exact[i]) + 1e-6 * std::sqrt(static_cast<double>(k));
      ASSERT_NEAR(got[std::size_t{offsets[e]} * n + i], exact[i], tolerance) << "group " << e;
    }
  }
  const std::vector<float> bits = want.Get();
  EXPECT_EQ(std::memcmp(got.data(), bits.data(), got.size() * sizeof(float)), 0);
}

TEST(GroupedLinearCudaTest, RowsHaveTheBitsOfLinearAndAreNearDoublePrecision) {
  const CudaBackend cuda;
  // K in one sub-range and no multiple of a tile, and in several; N beyond a tile.
  const std::pair<std::uint32_t, std::uint32_t> shapes[] = {{136, 72}, {40, 584}};
  for (const auto& [n, k] : shapes) {
    const Experts experts(cuda, 5, n, k);
    const std::vector<std::uint32_t> cases[] = {
        {1, 0, 0, 0, 0},  {0, 1, 0, 1, 0},      {0, 0, 0, 0, 8},  {3, 0, 9, 17, 1},
        {0, 0, 64, 0, 0}, {70, 129, 0, 100, 1}, {0, 0, 0, 300, 0}};
    for (const auto& counts : cases) {
      SCOPED_TRACE(absl::StrCat(n, "x", k, ", first counts ", counts[0], " ", counts[1]));
      CheckGroups(cuda, experts, counts, DType::kF32);
    }
    CheckGroups(cuda, experts, {2, 0, 70, 1, 5}, DType::kBF16);
  }
}

TEST(GroupedLinearCudaTest, GroupsAreFoundAmongMoreThanAWarpOfThem) {
  const CudaBackend cuda;
  const Experts experts(cuda, 70, 8, 64);
  std::vector<std::uint32_t> counts(70);
  for (const std::uint32_t e : {0u, 31u, 32u, 63u, 69u}) counts[e] = 1 + e % 10;
  CheckGroups(cuda, experts, counts, DType::kF32);
  std::fill(counts.begin(), counts.end(), 1);
  CheckGroups(cuda, experts, counts, DType::kF32);
  counts[69] = 800;
  CheckGroups(cuda, experts, counts, DType::kF32);
  const Experts one(cuda, 1, 8, 64);
  CheckGroups(cuda, one, {33}, DType::kF32);
}

TEST(GroupedLinearCudaTest, OtherFormsAndDistancesAreNoGroups) {
  const CudaBackend cuda;
  Experts experts(cuda, 3, 16, 64);
  EXPECT_TRUE(experts.Groups().has_value());
  std::swap(experts.matrices[1], experts.matrices[2]);
  EXPECT_FALSE(experts.Groups().has_value());
  std::swap(experts.matrices[1], experts.matrices[2]);
  experts.matrices[2] = Pack(cuda, RandomFloats(16 * 72, 1), DType::kBF16, 16, 72);
  EXPECT_FALSE(experts.Groups().has_value());
  EXPECT_FALSE(Experts(cuda, 2, 16, 60).Groups().has_value());
  const PackedLinear f32 = Pack(cuda, RandomFloats(16 * 64, 1), DType::kF32, 16, 64, DType::kF32);
  EXPECT_FALSE(
      LinearGroupsOf(1, [&](std::uint32_t) -> const PackedLinear& { return f32; }).has_value());
}

TEST(GroupedLinearCudaTest, StridesTypesAndAlignmentAreChecked) {
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
  std::vector<GroupedLinearParams> bad(5, good);
  bad[0].x_stride = 56;
  bad[1].y_stride = 15;
  bad[2].x = y.ptr();
  bad[3].x = x.ptr() + 1;
  bad[4].x_stride = 65;
  for (const GroupedLinearParams& params : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(GroupedLinear(*cuda, params)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(GroupedLinear(*TestBackend(1), good)));
}

}  // namespace
}  // namespace quire::kernels
