// Ops that only MLA needs: copies of head columns, and rows that contain K and V.

#include "kernels/kv_store/head_columns.h"

#include <cmath>

#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/kv_store.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

TEST(CopyHeadColumnsTest, CopiesOnlyTheGivenColumns) {
  for (const int threads : {1, 3}) {
    const TestBackend backend(threads);
    constexpr std::uint32_t kRows = 1000;  // large enough for several threads
    constexpr std::uint32_t kHeads = 5;
    const auto x = RandomFloats(kRows * kHeads * 48, 31);
    std::vector<float> y(kRows * kHeads * 80, 7.0f);
    ASSERT_TRUE(CopyHeadColumns(*backend, {.x = x.data(),
                                           .y = y.data(),
                                           .x_stride = kHeads * 48,
                                           .y_stride = kHeads * 80,
                                           .num_rows = kRows,
                                           .num_heads = kHeads,
                                           .x_head_size = 48,
                                           .y_head_size = 80,
                                           .x_first = 32,
                                           .y_first = 64,
                                           .columns = 16})
                    .ok());
    for (std::size_t head = 0; head < kRows * kHeads; ++head) {
      for (std::size_t i = 0; i < 80; ++i) {
        const float want = i < 64 ? 7.0f : x[head * 48 + 32 + i - 64];
        ASSERT_EQ(y[head * 80 + i], want) << head << " " << i;
      }
    }
  }
}

TEST(CopyHeadColumnsTest, RejectsColumnsThatDoNotFit) {
  const TestBackend backend(1);
  float value = 0;
  CopyHeadColumnsParams params{.x = &value,
                               .y = &value,
                               .x_stride = 8,
                               .y_stride = 8,
                               .num_rows = 0,
                               .num_heads = 2,
                               .x_head_size = 4,
                               .y_head_size = 4,
                               .x_first = 1,
                               .y_first = 0,
                               .columns = 3};
  EXPECT_TRUE(CopyHeadColumns(*backend, params).ok());
  params.columns = 4;
  EXPECT_EQ(CopyHeadColumns(*backend, params).code(), absl::StatusCode::kInvalidArgument);
  params.columns = 3;
  params.y_stride = 7;
  EXPECT_EQ(CopyHeadColumns(*backend, params).code(), absl::StatusCode::kInvalidArgument);
}

// Layers 0 and 1 are the K and V of the collection's layer 0, and so on.
TEST(LatentRowsTest, EveryLayerHasItsOwnRows) {
  const TestBackend backend(1);
  constexpr std::uint32_t kColumns = 48;
  TestPool pool({.layers = 2, .heads = 1, .head_size = kColumns}, {0, 3}, {5, 17}, 3);
  const auto rows = RandomFloats(std::size_t{pool.num_rows()} * kColumns, 32);
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    auto scaled = rows;
    for (float& value : scaled) value *= static_cast<float>(layer + 1);
    const AnyKvView view = LatentView(pool.collection(), layer);
    ASSERT_TRUE(KvStore(*backend, {.keys = &view,
                                   .values = &view,
                                   .k = scaled.data(),
                                   .v = nullptr,
                                   .row_offsets = pool.row_offsets(),
                                   .k_stride = kColumns,
                                   .v_stride = kColumns,
                                   .batch_size = pool.batch_size()})
                    .ok());
  }
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    const AnyKvView view = LatentView(pool.collection(), layer);
    const auto& floats = std::get<KvView<float>>(view);
    for (std::uint32_t b = 0; b < pool.batch_size(); ++b) {
      const std::uint32_t first = pool.row_offsets()[b];
      for (std::uint32_t m = first; m < pool.row_offsets()[b + 1]; ++m) {
        const std::uint32_t t = floats.cache_length(b) + m - first;
        const float* const row = floats.block_paged_ptr<1>(b, t, 0);
        for (std::uint32_t i = 0; i < kColumns; ++i) {
          ASSERT_EQ(row[i], rows[std::size_t{m} * kColumns + i] * static_cast<float>(layer + 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels
