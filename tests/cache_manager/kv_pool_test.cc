#include "cache_manager/pool/kv_pool.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

KvGeometry Geometry() {
  KvGeometry geometry;
  geometry.num_blocks = 5;
  geometry.num_layers = 3;
  geometry.page_size = 16;
  geometry.num_heads = 2;
  geometry.head_size = 8;
  geometry.dtype = DType::kBF16;
  return geometry;
}

KvGeometry QuantizedGeometry() {
  KvGeometry geometry = Geometry();
  geometry.dtype = DType::kI8;
  geometry.scale_dtype = DType::kF32;
  geometry.granularity = geometry.head_size;
  return geometry;
}

KvPool MakePool(const KvGeometry& geometry, bool guard_canary = true) {
  auto pool = KvPool::Create(geometry, {.guard_canary = guard_canary});
  QUIRE_CHECK(pool.ok());
  return *std::move(pool);
}

TEST(KvPoolTest, PagesAreZeroAlignedAndAdjacent) {
  const KvPool pool = MakePool(Geometry());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool.blocks()) % 4096, 0u);
  EXPECT_EQ(pool.scales(), nullptr);
  EXPECT_TRUE(pool.page_scales(BlockId{1}).empty());
  const std::size_t page_bytes = 2 * 3 * 16 * 2 * 8 * 2;
  for (std::uint32_t id = 0; id < 5; ++id) {
    const auto page = pool.page_blocks(BlockId{id});
    ASSERT_EQ(page.size(), page_bytes);
    EXPECT_EQ(page.data(), static_cast<std::byte*>(pool.blocks()) + id * page_bytes);
    for (const std::byte b : page) ASSERT_EQ(b, std::byte{0});
  }
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

TEST(KvPoolTest, QuantizedPoolHasScales) {
  const KvPool pool = MakePool(QuantizedGeometry());
  ASSERT_NE(pool.scales(), nullptr);
  EXPECT_EQ(pool.page_blocks(BlockId{4}).size(), 2u * 3 * 16 * 2 * 8);
  EXPECT_EQ(pool.page_scales(BlockId{4}).size(), 2u * 3 * 16 * 2 * 1 * 4);
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

TEST(KvPoolTest, PageStrideSeparatesPages) {
  KvGeometry geometry = Geometry();
  geometry.page_stride = geometry.block_stride() + 16 * geometry.row_elements();
  const KvPool pool = MakePool(geometry);
  EXPECT_EQ(pool.page_blocks(BlockId{1}).data() - pool.page_blocks(BlockId{0}).data(),
            geometry.page_stride * 2);
}

TEST(KvPoolTest, MoveKeepsAddresses) {
  KvPool pool = MakePool(QuantizedGeometry());
  const void* blocks = pool.blocks();
  const void* scales = pool.scales();
  const KvPool moved = std::move(pool);
  EXPECT_EQ(moved.blocks(), blocks);
  EXPECT_EQ(moved.scales(), scales);
  EXPECT_TRUE(moved.CheckIntegrity().ok());
}

TEST(KvPoolTest, RejectsBadGeometry) {
  KvGeometry geometry = Geometry();
  geometry.page_size = 48;
  const auto pool = KvPool::Create(geometry);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.status().message(), HasSubstr("page_size is 48"));
}

TEST(KvPoolTest, PagesAreWritable) {
  const KvPool pool = MakePool(QuantizedGeometry());
  for (std::uint32_t id = 1; id < 5; ++id) {
    for (const auto bytes : {pool.page_blocks(BlockId{id}), pool.page_scales(BlockId{id})}) {
      std::memset(bytes.data(), 0x5a, bytes.size());
    }
  }
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

// One byte written to a forbidden area, identified by the area.
struct Damage {
  const char* area;
  bool in_scales;
  bool at_end;  // relative to the end of the pages instead of their start
  std::ptrdiff_t offset;
};

class KvPoolDamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(KvPoolDamageTest, IsReported) {
  for (const bool guard_canary : {false, true}) {
    const KvPool pool = MakePool(QuantizedGeometry(), guard_canary);
    const Damage& damage = GetParam();
    const auto last =
        damage.in_scales ? pool.page_scales(BlockId{4}) : pool.page_blocks(BlockId{4});
    std::byte* base = static_cast<std::byte*>(damage.in_scales ? pool.scales() : pool.blocks());
    (damage.at_end ? last.data() + last.size() : base)[damage.offset] = std::byte{0x11};
    const absl::Status status = pool.CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(damage.area));
    EXPECT_THAT(status.message(), HasSubstr(damage.in_scales ? "scales" : "blocks"));
  }
}

// A guard has at least 256 rows: 256 * 2 * 8 bytes of blocks, 256 * 2 * 4 bytes of scales.
INSTANTIATE_TEST_SUITE_P(Areas, KvPoolDamageTest,
                         ::testing::Values(Damage{"null page", false, false, 0},
                                           Damage{"null page", true, false, 383},
                                           Damage{"leading guard", false, false, -1},
                                           Damage{"leading guard", false, false, -256 * 16},
                                           Damage{"leading guard", true, false, -256 * 8},
                                           Damage{"trailing guard", false, true, 0},
                                           Damage{"trailing guard", false, true, 256 * 16 - 1},
                                           Damage{"trailing guard", true, true, 256 * 8 - 1}));

TEST(KvPoolDeathTest, PageOutOfRange) {
  const KvPool pool = MakePool(Geometry());
  EXPECT_DEATH(pool.page_blocks(BlockId{5}), "check failed");
}

}  // namespace
}  // namespace quire::cache
