// Plans that no tensor map can represent, and differences from the reference library.

#include <string>
#include <utility>

#include "cache_manager/views/reference/tma_reference_source.h"
#include "cache_manager/views/tma_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/tma_pool.h"

namespace quire::kernels::cuda {
namespace {

using cache::testing::AlignedArray;
using cache::testing::MakeGeometry;
using cache::testing::WithScales;
using testing::DynamicPaged;
using ::testing::HasSubstr;
using testing::Paged;
using testing::Pool;

Device Gpu(std::int32_t capability) {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.compute_capability = capability;
  device.name = "a GPU";
  return device;
}

TEST(TmaRefusals, ChecksTheDeviceGeneration) {
  TmaPlan plan;
  plan.builder = "CreateTmaTile";
  EXPECT_TRUE(CheckTmaDevice(Gpu(90), plan).ok());
  EXPECT_TRUE(CheckTmaDevice(Gpu(120), plan).ok());
  for (const auto& [device, text] :
       {std::pair{Gpu(80), "9.0, but the device is a GPU of capability 8.0"},
        {Gpu(89), "of capability 8.9"},
        {Device::Cpu(), "compute capability 9.0, but the device is cpu"}}) {
    const absl::Status status = CheckTmaDevice(device, plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  plan.compute_capability = 100;
  const absl::Status status = CheckTmaDevice(Gpu(90), plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("10.0, but the device is a GPU of capability 9.0"));
}

TEST(TmaRefusals, EnforcesTheRulesOfTheEncoder) {
  alignas(16) static std::byte memory[32];
  TmaPlan good;
  good.builder = "x";
  good.base = memory;
  good.dtype = DType::kBF16;
  good.rank = 2;
  good.extents = {64, 100};
  good.strides = {128};
  good.box = {64, 256};
  good.swizzle = TmaSwizzle::k128B;
  EXPECT_TRUE(CheckTmaPlan(good).ok()) << CheckTmaPlan(good);
  const auto refused = [&](const char* text, auto change) {
    TmaPlan plan = good;
    change(plan);
    const absl::Status status = CheckTmaPlan(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused("rank is 0", [](TmaPlan& p) { p.rank = 0; });
  refused("rank is 6", [](TmaPlan& p) { p.rank = 6; });
  refused("base address", [](TmaPlan& p) { p.base = memory + 8; });
  refused("base address 0", [](TmaPlan& p) { p.base = nullptr; });
  refused("extent 1 is 0", [](TmaPlan& p) { p.extents[1] = 0; });
  refused("1 to 2^32", [](TmaPlan& p) { p.extents[1] = (1ull << 32) + 1; });
  refused("signed 32-bit", [](TmaPlan& p) { p.extents[1] = (1ull << 31) - 255; });
  refused("multiple of 16 below 2^40", [](TmaPlan& p) { p.strides[0] = 136; });
  refused("multiple of 16 below 2^40", [](TmaPlan& p) { p.strides[0] = 1ull << 40; });
  refused("box extent 1 is 257", [](TmaPlan& p) { p.box[1] = 257; });
  refused("box extent 1 is 0", [](TmaPlan& p) { p.box[1] = 0; });
  refused("a box row is 8 bytes", [](TmaPlan& p) { p.box[0] = 4; });
  refused("at most 128, the span", [](TmaPlan& p) { p.box[0] = 72; });
  refused("at most 32, the span", [](TmaPlan& p) { p.swizzle = TmaSwizzle::k32B; });
  TmaPlan edge = good;
  edge.extents[1] = (1ull << 31) - 256;
  EXPECT_TRUE(CheckTmaPlan(edge).ok());
}

TEST(TmaRefusals, ChecksArgumentsOfTheBuilders) {
  const auto pool = Pool<DynamicPaged<BF16>>::Make(MakeGeometry(5, 2, 1, 64, 2, 72, DType::kBF16));
  const TmaSource source = TmaSourceOf(pool.collection.get_key_cache(0));
  const auto refused = [](const absl::StatusOr<TmaPlan>& plan, const char* text) {
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(text));
  };
  refused(PlanTmaTile(source, {.tile_rows = 0}), "tile_rows is 0");
  refused(PlanTmaTile(source, {.tile_rows = 96}), "divisor of the page size 64");
  refused(PlanTmaTile(source, {.tile_rows = 64, .tile_columns = 72}), "multiple of 64");
  refused(PlanTmaTile(source, {.tile_rows = 64, .fold = TmaFold::kTile}), "cannot fold");
  refused(PlanPagedTmaTile(source, {.tile_rows = 64, .fold = TmaFold::kRows}), "cannot fold");
  refused(PlanRaggedTmaTile(source, {.tile_rows = 257}), "1 to 256");
  refused(PlanGather4TmaTile(source, {.tile_width = 64, .tile_height = 6}), "multiple of 4");
  refused(PlanGather4TmaTile(source, {.tile_width = 0}), "tile_width is 0");
  refused(PlanGather4TmaTile(source, {.tile_width = 72, .tile_stride = 72}),
          "rows of 144 elements");
  refused(PlanGather4TmaTile(source, {.tile_width = 145}), "rows of 144 elements");
  refused(PlanScaleTmaTile(source, {.tile_rows = 16}), "has no f32 scales");
  TmaSource odd = source;
  odd.head_size = odd.content_size = 36;  // rows of 144 bytes, heads of 72
  refused(PlanTmaTile(odd, {.tile_rows = 64}), "multiple of 16 below 2^40");
  TmaSource wide = source;
  wide.num_rows = (std::int64_t{1} << 31) - 255;
  refused(PlanTmaTile(wide, {.tile_rows = 64}), "signed 32-bit");
  wide.num_rows = std::int64_t{1} << 30;  // the ragged map counts rows of heads
  refused(PlanRaggedTmaTile(wide, {.tile_rows = 64}), "signed 32-bit");

  const auto fp8 = Pool<Paged<F8E4M3, cache::KVCacheStaticParams<2, 576>, 64, float, 576>>::Make(
      WithScales(MakeGeometry(3, 2, 1, 64, 2, 576), DType::kF8E4M3, 576));
  const TmaSource two_heads = TmaSourceOf(fp8.collection.get_key_cache(0));
  refused(PlanScaleTmaTile(two_heads, {.tile_rows = 16}), "2 scales per row");
  refused(PlanGather4TmaTile(two_heads, {.tile_width = 576}), "box extent 0 is 576");
  TmaSource one = two_heads;
  one.scales_per_row = 1;
  refused(PlanScaleTmaTile(one, {.tile_rows = 128}), "divide the page size 64");
  refused(PlanRopeTmaTile(two_heads, {.tile_rows = 64, .tile_columns = 64, .padded_depth = 512}),
          "do not match the row of");
  AlignedArray<float> flat(16);
  const cache::ContiguousMHAOperand<float> operand{flat.data(), nullptr, 1, 13, 1, 1};
  refused(PlanScaleTmaTile(TmaSourceOf(operand), {.tile_rows = 8}), "multiple of 4");
}

// Rows of tests/testdata/kv_cache/differences.md.
TEST(TmaDifferences, D33ScalesOfACacheAreAListOfRankOne) {
  const auto pool =
      Pool<Paged<std::int8_t, cache::KVCacheStaticParams<1, 64>, 32, float, 64>>::Make(
          WithScales(MakeGeometry(3, 2, 1, 32, 1, 64), DType::kI8, 64));
  const auto view = pool.collection.get_key_cache(0);
  const auto plan = PlanScaleTmaTile(TmaSourceOf(view), {.tile_rows = 32});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rank, 1u);
  EXPECT_EQ(plan->extents[0], static_cast<std::uint64_t>(view.num_scale_rows()));
  EXPECT_EQ(plan->box[0], 36u);
}

TEST(TmaDifferences, D34RaggedRowsAndHeadsShareADimension) {
  const auto pool = Pool<DynamicPaged<BF16>>::Make(MakeGeometry(5, 2, 1, 32, 3, 64, DType::kBF16));
  const auto view = pool.collection.get_key_cache(0);
  const auto plan = PlanRaggedTmaTile(TmaSourceOf(view), {.tile_rows = 128});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rank, 3u);
  EXPECT_EQ(plan->extents[2], 3u * static_cast<std::uint64_t>(view.num_kv_rows() + 1));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plan->base) + 128 * 3 * 64 * 2,
            reinterpret_cast<std::uintptr_t>(view.blocks));
}

TEST(TmaDifferences, D35GatheredRowsHaveTheirTrueWidth) {
  const auto pool = Pool<DynamicPaged<BF16>>::Make(MakeGeometry(5, 2, 1, 32, 3, 64, DType::kBF16));
  const TmaSource source = TmaSourceOf(pool.collection.get_key_cache(0));
  const auto plan = PlanGather4TmaTile(source, {.tile_width = 64, .swizzle = TmaSwizzle::k128B});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->extents[0], 192u);
  EXPECT_EQ(plan->strides[0], 384u);
  EXPECT_FALSE(PlanGather4TmaTile(source, {.tile_width = 64, .tile_stride = 256}).ok());
}

TEST(TmaDifferences, D36RopeExtentIsItsValues) {
  const auto pool =
      Pool<Paged<F8E4M3, cache::KVCacheStaticParams<1, 640, true, 64>, 64, float, 640>>::Make(
          WithScales(MakeGeometry(3, 1, 1, 64, 1, 640), DType::kF8E4M3, 640));
  const auto plan = PlanRopeTmaTile(TmaSourceOf(pool.collection.get_key_cache(0)),
                                    {.tile_rows = 64, .tile_columns = 64, .padded_depth = 512});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->extents[0], 64u);
  EXPECT_EQ(plan->extents[1], 1u);
  EXPECT_EQ(plan->strides[1], 640u);
}

}  // namespace
}  // namespace quire::kernels::cuda
