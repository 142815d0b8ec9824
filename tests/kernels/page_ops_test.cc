#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/kv_store/page_copy.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

class PageOpsTest : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Elements, PageOpsTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(PageOpsTest, KvStoreWritesItsRowsRoundedAndNothingElse) {
  constexpr std::uint32_t kHeads = 3, kHeadSize = 10, kColumns = kHeads * kHeadSize;
  for (const int threads : {1, 3}) {
    const TestBackend backend(threads);
    const std::vector<std::uint32_t> cached = {0, 15, 30, 7};
    const std::vector<std::uint32_t> fresh = {40, 2, 0, 1};
    const TestPool::Shape shape{GetParam(), 2, kHeads, kHeadSize, 16};
    TestPool stored(shape, cached, fresh, 1);
    TestPool expected(shape, cached, fresh, 1);
    const auto k = RandomFloats(stored.num_rows() * kColumns, 2);
    const auto v = RandomFloats(stored.num_rows() * kColumns, 3);
    std::uint32_t row = 0;
    for (std::uint32_t b = 0; b < 4; ++b) {
      for (std::uint32_t i = 0; i < fresh[b]; ++i, ++row) {
        expected.Put(b, cached[b] + i, &k[row * kColumns], &v[row * kColumns], 1);
      }
    }
    const AnyKvView keys = stored.keys(1);
    const AnyKvView values = stored.values(1);
    ASSERT_TRUE(KvStore(*backend, {&keys, &values, k.data(), v.data(), stored.row_offsets(),
                                   kColumns, kColumns, 4})
                    .ok());
    EXPECT_TRUE(std::ranges::equal(stored.bytes(), expected.bytes()));
  }
}

TEST_P(PageOpsTest, KvStoreDoesNotWriteTheNullPage) {
  const TestBackend backend(1);
  TestPool pool({GetParam(), 1, 1, 16, 16}, {0}, {4}, 4);
  const std::vector<std::byte> before(pool.bytes().begin(), pool.bytes().end());
  AnyKvView keys = pool.keys();
  AnyKvView values = pool.values();
  const std::vector<std::uint32_t> no_pages(24, 0);
  std::visit([&](auto& view) { view.lookup_table = no_pages.data(); }, keys);
  std::visit([&](auto& view) { view.lookup_table = no_pages.data(); }, values);
  const auto rows = RandomFloats(4 * 16, 5);
  ASSERT_TRUE(
      KvStore(*backend, {&keys, &values, rows.data(), rows.data(), pool.row_offsets(), 16, 16, 1})
          .ok());
  EXPECT_TRUE(std::ranges::equal(pool.bytes(), before));
}

TEST_P(PageOpsTest, CopyPageMovesTheFirstRowsOfAllLayers) {
  constexpr std::uint32_t kLayers = 3;
  const TestBackend backend(2);
  TestPool pool({GetParam(), kLayers, 2, 20, 32}, {0}, {64}, 6);
  const auto page_bytes = static_cast<std::size_t>(pool.geometry().page_bytes());
  auto* const bytes = reinterpret_cast<unsigned char*>(pool.bytes().data());
  for (std::size_t i = page_bytes; i < pool.bytes().size(); ++i) {
    bytes[i] = static_cast<unsigned char>(i * 31 >> 3);
  }
  const std::size_t row = 2 * 20 * static_cast<std::size_t>(DTypeSize(GetParam()));
  for (const std::uint32_t rows : {0u, 1u, 17u, 32u}) {
    std::vector<unsigned char> expected(bytes, bytes + pool.bytes().size());
    for (std::uint32_t slab = 0; slab < 2 * kLayers; ++slab) {
      std::memcpy(expected.data() + 3 * page_bytes + slab * 32 * row,
                  bytes + 2 * page_bytes + slab * 32 * row, rows * row);
    }
    ASSERT_TRUE(CopyPage(*backend, {&pool.collection(), 2, 3, rows}).ok());
    EXPECT_EQ(std::memcmp(expected.data(), bytes, expected.size()), 0) << rows;
  }
}

TEST_P(PageOpsTest, ZeroPageClearsOnePage) {
  const TestBackend backend(2);
  TestPool pool({GetParam(), 2, 1, 16, 16}, {0}, {32}, 7);
  std::vector<std::byte> expected(pool.bytes().begin(), pool.bytes().end());
  const auto page_bytes = static_cast<std::size_t>(pool.geometry().page_bytes());
  std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(2 * page_bytes), page_bytes,
              std::byte{0});
  ASSERT_TRUE(ZeroPage(*backend, pool.collection(), 2).ok());
  EXPECT_TRUE(std::ranges::equal(pool.bytes(), expected));
}

TEST_P(PageOpsTest, ProcessesListsItemByItem) {
  const TestBackend backend(2);
  TestPool pool({GetParam(), 2, 1, 16, 16}, {0}, {64}, 12);
  auto* const bytes = reinterpret_cast<unsigned char*>(pool.bytes().data());
  const auto page_bytes = static_cast<std::size_t>(pool.geometry().page_bytes());
  for (std::size_t i = page_bytes; i < pool.bytes().size(); ++i) {
    bytes[i] = static_cast<unsigned char>(i * 31 >> 3);
  }
  std::vector<unsigned char> expected(bytes, bytes + pool.bytes().size());
  const std::vector<PageCopyItem> items = {{1, 2, 16}, {2, 3, 16}, {4, 1, 16}, {3, 3, 16}};
  for (const PageCopyItem& item : items) {
    std::memmove(&expected[item.destination * page_bytes], &expected[item.source * page_bytes],
                 page_bytes);
  }
  ASSERT_TRUE(CopyPages(*backend, pool.collection(), items).ok());
  EXPECT_EQ(std::memcmp(expected.data(), bytes, expected.size()), 0);
  // One bad item prevents all of them.
  const std::vector<PageCopyItem> bad = {{1, 4, 16}, {1, 0, 1}};
  EXPECT_TRUE(absl::IsInvalidArgument(CopyPages(*backend, pool.collection(), bad)));
  EXPECT_EQ(std::memcmp(expected.data(), bytes, expected.size()), 0);
  const std::vector<std::uint32_t> pages = {4, 2};
  for (const std::uint32_t page : pages) std::memset(&expected[page * page_bytes], 0, page_bytes);
  ASSERT_TRUE(ZeroPages(*backend, pool.collection(), pages).ok());
  EXPECT_EQ(std::memcmp(expected.data(), bytes, expected.size()), 0);
}

TEST(PageOpsErrorTest, RejectsPagesOutsideThePool) {
  const TestBackend backend(1);
  TestPool pool({DType::kF32, 1, 1, 16, 16}, {0}, {16}, 8);
  const std::uint32_t blocks = pool.geometry().num_blocks;
  EXPECT_FALSE(CopyPage(*backend, {&pool.collection(), 1, 0, 1}).ok());
  EXPECT_FALSE(CopyPage(*backend, {&pool.collection(), 1, blocks, 1}).ok());
  EXPECT_FALSE(CopyPage(*backend, {&pool.collection(), blocks, 1, 1}).ok());
  EXPECT_THAT(CopyPage(*backend, {&pool.collection(), 1, 2, 17}).message(),
              testing::HasSubstr("copy of 17 tokens exceeds the page size 16"));
  EXPECT_FALSE(ZeroPage(*backend, pool.collection(), 0).ok());
  EXPECT_FALSE(ZeroPage(*backend, pool.collection(), blocks).ok());
}

TEST(KvDispatchTest, RejectsElementsWithoutKernels) {
  TestPool pool({DType::kF32, 1, 1, 16, 16}, {0}, {16}, 9);
  cache::KvGeometry geometry = pool.geometry();
  geometry.dtype = DType::kI32;
  EXPECT_THAT(MakeKvCollection(geometry, nullptr, {}).status().message(),
              testing::HasSubstr("int32 has no kernels, supported are f32, bf16, f16, fp8_e4m3 and "
                                 "int8"));
}

// Scales are copied with their values, and a zeroed page has zero scales.
TEST(PageOpsTest, CopiesAndZeroesScales) {
  const TestBackend backend(2);
  for (const DType dtype : {DType::kI8, DType::kF8E4M3}) {
    TestPool pool({dtype, 2, 3, 16, 16}, {0}, {48}, 8);
    const auto fill = [](std::span<std::byte> bytes, unsigned factor) {
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(i * factor >> 3);
      }
    };
    fill(pool.bytes(), 31);
    fill(pool.scale_bytes(), 37);
    const std::size_t blocks = pool.geometry().num_blocks;
    const std::size_t page = pool.bytes().size() / blocks;
    const std::size_t scales = pool.scale_bytes().size() / blocks;
    std::vector<std::byte> expected(pool.scale_bytes().begin(), pool.scale_bytes().end());
    std::memmove(&expected[2 * scales], &expected[scales], scales);
    ASSERT_TRUE(CopyPage(*backend, {&pool.collection(), 1, 2, 16}).ok());
    EXPECT_EQ(std::memcmp(expected.data(), pool.scale_bytes().data(), expected.size()), 0);
    EXPECT_EQ(std::memcmp(&pool.bytes()[2 * page], &pool.bytes()[page], page), 0);
    // Five tokens use the first five rows of scales in K and V of both layers.
    const std::size_t part = scales / 4;
    for (std::size_t i = 0; i < 4; ++i) {
      std::memmove(&expected[3 * scales + i * part], &expected[scales + i * part], 5 * 3 * 4);
    }
    ASSERT_TRUE(CopyPage(*backend, {&pool.collection(), 1, 3, 5}).ok());
    EXPECT_EQ(std::memcmp(expected.data(), pool.scale_bytes().data(), expected.size()), 0);
    std::memset(&expected[scales], 0, scales);
    ASSERT_TRUE(ZeroPage(*backend, pool.collection(), 1).ok());
    EXPECT_EQ(std::memcmp(expected.data(), pool.scale_bytes().data(), expected.size()), 0);
  }
}

// The kernels read one scale per token and head.
TEST(KvDispatchTest, CpuOpsRejectFinerScales) {
  const TestBackend backend(1);
  TestPool pool({DType::kI8, 1, 1, 32, 16}, {0}, {16}, 9);
  cache::KvGeometry geometry = pool.geometry();
  geometry.granularity = 16;
  const cache::KvStepInputs inputs = std::visit(
      [](const auto& c) {
        return cache::KvStepInputs{c.lookup_table(), c.cache_lengths(), 24, 1, 16, 16, 0};
      },
      pool.collection());
  alignas(256) static std::byte scales[4096];
  const auto made = MakeKvCollection(geometry, pool.bytes().data(), inputs, scales);
  ASSERT_TRUE(made.ok()) << made.status();
  const AnyKvView keys = KeyView(*made, 0);
  const AnyKvView values = ValueView(*made, 0);
  std::vector<float> row(16 * 32);
  const auto refusal = testing::HasSubstr("one scale per 16 columns");
  EXPECT_THAT(
      KvStore(*backend, {&keys, &values, row.data(), row.data(), pool.row_offsets(), 32, 32, 1})
          .message(),
      refusal);
  EXPECT_THAT(PagedAttention(*backend, {&keys, &values, row.data(), row.data(), pool.row_offsets(),
                                        32, 32, 1, 1, 1.0f})
                  .message(),
              refusal);
}

TEST(KvDispatchTest, RejectsStepsThatViolateTheTable) {
  TestPool pool({DType::kF32, 1, 1, 16, 16}, {0}, {16}, 10);
  TestPool other({DType::kBF16, 1, 1, 16, 16}, {0}, {16}, 10);
  const std::uint32_t falling[] = {3, 2};
  EXPECT_FALSE(CheckKvStep(pool.keys(), other.values(), pool.row_offsets(), 1).ok());
  EXPECT_FALSE(CheckKvStep(pool.keys(), pool.values(), falling, 1).ok());
  EXPECT_TRUE(CheckKvStep(pool.keys(), pool.values(), pool.row_offsets(), 1).ok());
}

}  // namespace
}  // namespace quire::kernels
