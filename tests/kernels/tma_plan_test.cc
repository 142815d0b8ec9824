#include "cache_manager/views/tma_plan.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_manager/views/reference/tma_reference_source.h"
#include "gtest/gtest.h"
#include "tests/kernels/tma_emulation.h"
#include "tests/kernels/tma_pool.h"
#include "tests/testing/paths.h"

namespace quire::kernels::cuda {
namespace {

using cache::testing::AlignedArray;
using cache::testing::MakeGeometry;
using cache::testing::WithScales;
using testing::DynamicPaged;
using testing::LoadBox;
using testing::Paged;
using testing::Pool;
using testing::SharedTile;
using testing::SwizzleByte;
using Json = nlohmann::json;

constexpr TmaSwizzle kSwizzles[] = {TmaSwizzle::kNone, TmaSwizzle::k32B, TmaSwizzle::k64B,
                                    TmaSwizzle::k128B};

std::uint32_t ElementBytes(const std::string& dtype) {
  return dtype == "float32" ? 4 : dtype == "bfloat16" ? 2 : 1;
}

// Compares each line with the compile-time results of the reference library.
TEST(TmaTables, EveryLine) {
  std::ifstream file(paths::TestData("kv_cache/tma_tables.jsonl"));
  std::string line;
  int lines = 0;
  for (; std::getline(file, line); ++lines) {
    const Json j = Json::parse(line);
    const std::string table = j["table"];
    SCOPED_TRACE(line);
    const std::uint32_t e = j.contains("dtype") ? ElementBytes(j["dtype"]) : 4;
    if (table == "tile") {
      const std::string bytes = j["swizzle"];
      const TmaSwizzle swizzle = bytes == "128B"  ? TmaSwizzle::k128B
                                 : bytes == "64B" ? TmaSwizzle::k64B
                                                  : TmaSwizzle::k32B;
      const std::uint32_t depth = j["depth"];
      EXPECT_EQ(TmaUnit(e, swizzle), j["swizzle_granularity"]);
      EXPECT_EQ(PaddedDepth(e, swizzle, depth), j["padded_depth"]);
      alignas(16) static std::byte memory[16];
      const TmaSource source{.base = memory,
                             .dtype = e == 4   ? DType::kF32
                                      : e == 2 ? DType::kBF16
                                               : DType::kF8E4M3,
                             .num_heads = 16,  // so that every stride is a multiple of 16 bytes
                             .head_size = 16 * depth,
                             .content_size = depth,
                             .num_rows = 1000,
                             .name = "table"};
      const auto plan = PlanTmaTile(source, {.tile_rows = 64, .swizzle = swizzle});
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(Json(plan->tile), j["tile_shape_of_64x1xdepth"]);
      EXPECT_EQ(Json({plan->box[2], plan->box[1], plan->box[0]}), j["box_shape"]);
    } else if (table == "gather4_box_width") {
      const std::uint32_t width = j["tile_width"];
      EXPECT_EQ(Gather4BoxWidth(e, width, TmaSwizzle::kNone), j["none"]);
      EXPECT_EQ(Gather4BoxWidth(e, width, TmaSwizzle::k32B), j["32B"]);
      EXPECT_EQ(Gather4BoxWidth(e, width, TmaSwizzle::k64B), j["64B"]);
      EXPECT_EQ(Gather4BoxWidth(e, width, TmaSwizzle::k128B), j["128B"]);
    } else if (table == "sub_tiles") {
      const std::uint32_t rows = j["BN"];
      EXPECT_EQ(TmaBoxRows(rows, j["page_size"]), j["sub_tile_rows"]);
      EXPECT_EQ(rows / TmaBoxRows(rows, j["page_size"]), j["num_sub_tiles"]);
    } else if (table == "fold_chunks") {
      // The original also requires that the box is in one page. In quire it always is.
      const std::uint32_t page = j["page_size"];
      const std::uint32_t box = TmaBoxRows(j["box_rows"], page);
      EXPECT_EQ(TmaFoldChunks(e, j["row_major"].get<bool>() ? TmaFold::kRows : TmaFold::kTile,
                              j["BK"], j["head_size"], box, j["smem_BN"]),
                j["fold_chunks"]);
    } else {
      ASSERT_EQ(table, "flat_scale_window");
      EXPECT_EQ(TmaScaleWindow(j["TILE"]), j["window"]);
      EXPECT_EQ(kScaleAlignment, j["scale_align_elems"]);
    }
  }
  EXPECT_EQ(lines, 140);
}

TEST(TmaSwizzle, IsABijectionAndMatchesTheInstruction) {
  for (const TmaSwizzle swizzle : kSwizzles) {
    std::set<std::uint32_t> seen;
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const std::uint32_t to = TmaSwizzledByte(i, swizzle);
      EXPECT_EQ(to, SwizzleByte(i, swizzle));
      EXPECT_EQ(to / 128, i / 128);
      EXPECT_EQ(to % 16, i % 16);
      seen.insert(to);
    }
    EXPECT_EQ(seen.size(), 4096u);
  }
  EXPECT_EQ(TmaSwizzledByte(128, TmaSwizzle::k128B), 128u + 16);
  EXPECT_EQ(TmaSwizzledByte(7 * 128 + 112, TmaSwizzle::k128B), 7u * 128);
}

// Byte of element (row, column) in a tile.
std::int64_t TileByte(const TmaPlan& plan, TmaFold fold, std::int64_t row, std::int64_t column) {
  const std::int64_t e = DTypeSize(plan.dtype);
  const std::int64_t unit = plan.box[0];
  const std::int64_t chunk = column / unit;
  const std::int64_t line = fold == TmaFold::kRows
                                ? (row / 8 * (plan.tile[2] / unit) + chunk) * 8 + row % 8
                                : chunk * plan.tile[0] + row;
  return SwizzleByte((line * unit + column % unit) * e, plan.swizzle);
}

template <typename T>
T At(const SharedTile& tile, std::int64_t byte) {
  T value;
  std::memcpy(&value, tile.bytes.data() + byte, sizeof(T));
  return value;
}

// Issues the copies of a tile as tma_plan.h defines.
template <typename View>
void IssueTile(const View& view, const TmaPlan& plan, TmaFold fold, std::uint32_t b,
               std::uint32_t base, std::uint32_t head, bool paged, SharedTile* tile) {
  const std::uint32_t rows = plan.tile[0];
  const std::uint32_t box_rows = TmaBoxRows(rows, view.page_size());
  const std::int64_t unit_bytes = plan.box[0] * DTypeSize(plan.dtype);
  const std::uint32_t chunks = plan.tile[2] / plan.box[0];
  for (std::uint32_t p = 0; p < rows / box_rows; ++p) {
    const std::int64_t row = view.row_idx(b, base + p * box_rows);
    if (fold == TmaFold::kTile) {
      LoadBox(plan, {0, row, 0, head}, 0, tile);
    } else if (fold == TmaFold::kRows) {
      LoadBox(plan, {0, 0, 0, row / 8, head}, p * box_rows * chunks * unit_bytes, tile);
    } else {
      for (std::uint32_t j = 0; j < chunks; ++j) {
        const auto at = view.kv_tma_coords(b, base + p * box_rows);
        std::vector<std::int64_t> coordinates{j * plan.box[0], head, row};
        if (paged) coordinates = {j * plan.box[0], head, at.row, at.page};
        LoadBox(plan, coordinates, (std::int64_t{j} * rows + p * box_rows) * unit_bytes, tile);
      }
    }
  }
}

template <typename View>
void ExpectTile(const View& view, const TmaPlan& plan, TmaFold fold, std::uint32_t b,
                std::uint32_t base, std::uint32_t head, const SharedTile& tile) {
  using Element = typename View::Element;
  for (const int writes : tile.writes) ASSERT_EQ(writes, 1);
  for (std::uint32_t r = 0; r < plan.tile[0]; ++r) {
    for (std::uint32_t d = 0; d < plan.tile[2]; ++d) {
      const auto got = At<Element>(tile, TileByte(plan, fold, r, d));
      Element want{};
      if (d < view.head_size()) want = view.template load<1>(b, head, base + r, d).lane[0];
      ASSERT_EQ(std::memcmp(&got, &want, sizeof(Element)), 0)
          << "row " << r << " column " << d << " of head " << head;
    }
  }
}

constexpr std::uint32_t kHeadSizes[] = {64, 72, 80, 96, 128, 256, 576, 640};

TEST(TmaTile, LoadsTheSameAsTheView) {
  for (const std::uint32_t d : kHeadSizes) {
    for (const std::uint32_t page : {16u, 64u, 128u}) {
      const auto pool = Pool<DynamicPaged<BF16>>::Make(
          MakeGeometry(d > 256 ? 5 : 9, 2, 2, page, d > 256 ? 1 : 3, d, DType::kBF16));
      for (const auto& view :
           {pool.collection.get_key_cache(1), pool.collection.get_value_cache(0)}) {
        for (const std::uint32_t rows : {16u, 64u}) {
          const std::uint32_t base = std::max(rows, page) == page ? page - rows : 0;
          for (const TmaSwizzle swizzle : kSwizzles) {
            const auto plan =
                PlanTmaTile(TmaSourceOf(view), {.tile_rows = rows, .swizzle = swizzle});
            ASSERT_TRUE(plan.ok()) << plan.status();
            if (base + rows > 2 * page) continue;  // assigned pages only
            SCOPED_TRACE(absl::StrCat("d ", d, " page ", page, " rows ", rows, " swizzle ",
                                      static_cast<int>(swizzle)));
            SharedTile tile(plan->tile_bytes());
            IssueTile(view, *plan, TmaFold::kNone, 1, base, view.num_heads() - 1, false, &tile);
            ExpectTile(view, *plan, TmaFold::kNone, 1, base, view.num_heads() - 1, tile);
          }
        }
      }
    }
  }
}

TEST(TmaTile, ByPageFoldedAndInHalves) {
  const auto pool = Pool<DynamicPaged<F16>>::Make(MakeGeometry(9, 2, 2, 32, 2, 128, DType::kF16));
  const auto view = pool.collection.get_value_cache(1);
  const TmaSource source = TmaSourceOf(view);
  const auto check = [&](const absl::StatusOr<TmaPlan>& plan, TmaFold fold, bool paged) {
    ASSERT_TRUE(plan.ok()) << plan.status();
    SharedTile tile(plan->tile_bytes());
    IssueTile(view, *plan, fold, 0, 32, 1, paged, &tile);
    ExpectTile(view, *plan, fold, 0, 32, 1, tile);
  };
  check(PlanPagedTmaTile(source, {.tile_rows = 64}), TmaFold::kNone, true);
  check(PlanTmaTile(source, {.tile_rows = 32, .fold = TmaFold::kTile}), TmaFold::kTile, false);
  check(PlanTmaTile(source, {.tile_rows = 64, .fold = TmaFold::kRows}), TmaFold::kRows, false);
  check(PlanTmaTile(source, {.tile_rows = 64, .tile_columns = 64}), TmaFold::kNone, false);
}

TEST(TmaTile, RowsOutsideTheViewAndTheNullPageReadAsZero) {
  auto pool = Pool<DynamicPaged<BF16>>::Make(MakeGeometry(9, 2, 1, 16, 2, 64, DType::kBF16));
  const auto view = pool.collection.get_key_cache(0);
  std::memset(static_cast<void*>(view.blocks), 0, 16 * 128 * sizeof(BF16));  // page 0
  const auto plan = PlanTmaTile(TmaSourceOf(view), {.tile_rows = 16});
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{-16}, view.num_kv_rows()}) {
    SharedTile tile(plan->tile_bytes());
    LoadBox(*plan, {0, 1, row}, 0, &tile);
    for (const std::byte b : tile.bytes) ASSERT_EQ(b, std::byte{0}) << row;
  }
}

TEST(TmaTile, TensorsWithoutPages) {
  constexpr std::uint32_t kHeads = 2, kDepth = 72;
  AlignedArray<float> data(3 * 40 * kHeads * kDepth);
  std::iota(data.begin(), data.end(), 1.0f);
  const cache::ContiguousMHAOperand<float> contiguous{data.data(), nullptr, 3, 40, kHeads, kDepth};
  const std::vector<std::uint32_t> offsets{0, 13, 50, 120};
  const cache::RaggedMHAOperand<float> ragged{data.data(), offsets.data(), 3, 120,
                                              kHeads,      kDepth,         70};
  const auto check = [&](const auto& operand, std::uint32_t b, std::uint32_t t) {
    const auto plan = PlanTmaTile(TmaSourceOf(operand), {.tile_rows = 16});
    ASSERT_TRUE(plan.ok()) << plan.status();
    SharedTile tile(plan->tile_bytes());
    for (std::uint32_t j = 0; j < plan->tile[2] / plan->box[0]; ++j) {
      LoadBox(*plan, {j * plan->box[0], 1, operand.row_idx(b, t)},
              std::int64_t{j} * 16 * plan->box[0] * 4, &tile);
    }
    for (const int writes : tile.writes) ASSERT_EQ(writes, 1);
    for (std::uint32_t r = 0; r < 16; ++r) {
      for (std::uint32_t d = 0; d < plan->tile[2]; ++d) {
        const std::uint32_t row = operand.row_idx(b, t) + r;
        const float want = d < kDepth && row < 120 ? data[(row * kHeads + 1) * kDepth + d] : 0.0f;
        ASSERT_EQ(At<float>(tile, TileByte(*plan, TmaFold::kNone, r, d)), want) << r << " " << d;
      }
    }
  };
  check(contiguous, 1, 3);
  check(contiguous, 2, 30);  // past the tensor
  check(ragged, 1, 2);
  check(ragged, 2, 60);
}

// For each n, rows from n on are outside for loads and stores.
TEST(RaggedTmaTile, FirstRowsOnly) {
  constexpr std::uint32_t kRows = 16;
  for (const std::uint32_t d : {64u, 80u}) {
    auto pool = Pool<DynamicPaged<BF16>>::Make(MakeGeometry(5, 2, 1, 32, 3, d, DType::kBF16));
    const auto view = pool.collection.get_key_cache(0);
    const auto plan = PlanRaggedTmaTile(TmaSourceOf(view), {.tile_rows = kRows});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::uint32_t chunks = plan->tile[2] / plan->box[0];
    for (const std::uint32_t start : {0u, view.row_idx(1, 4)}) {
      for (std::uint32_t n = 0; n <= kRows; ++n) {
        SharedTile tile(plan->tile_bytes());
        std::vector<std::byte> before(pool.memory.size() * sizeof(BF16));
        std::memcpy(before.data(), pool.memory.data(), before.size());
        std::set<std::uintptr_t> stored;
        for (std::uint32_t j = 0; j < chunks; ++j) {
          const std::vector<std::int64_t> at{j * plan->box[0], kRows - n, (start + n) * 3 + 2};
          const std::int64_t to = std::int64_t{j} * kRows * plan->box[0] * 2;
          LoadBox(*plan, at, to, &tile);
          testing::ForEachByte(*plan, at, to, [&](std::int64_t, std::uintptr_t address) {
            if (address != 0) stored.insert(address);
          });
        }
        std::set<std::uintptr_t> want;
        for (const int writes : tile.writes) ASSERT_EQ(writes, 1);
        for (std::uint32_t r = 0; r < kRows; ++r) {
          for (std::uint32_t c = 0; c < plan->tile[2]; ++c) {
            const BF16* const element = view.blocks + ((start + r) * 3 + 2) * d + c;
            const bool inside = r < n && c < d;
            const auto got = At<BF16>(tile, TileByte(*plan, TmaFold::kNone, r, c));
            ASSERT_EQ(got.bits, inside ? element->bits : 0) << n << " " << r << " " << c;
            if (!inside) continue;
            want.insert(reinterpret_cast<std::uintptr_t>(element));
            want.insert(reinterpret_cast<std::uintptr_t>(element) + 1);
          }
        }
        ASSERT_EQ(stored, want) << n;
      }
    }
  }
}

// Copies four rows at a time. A row of -1 reads as zero.
void Gather(const TmaPlan& plan, const std::vector<std::int64_t>& rows, SharedTile* tile) {
  const std::int64_t width = plan.box[0] * DTypeSize(plan.dtype);
  for (std::uint32_t j = 0; j < plan.tile[2] / plan.box[0]; ++j) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      LoadBox(plan, {j * plan.box[0], rows[r]},
              (j * static_cast<std::int64_t>(rows.size()) + static_cast<std::int64_t>(r)) * width,
              tile);
    }
  }
}

TEST(Gather4TmaTile, AnyRowsInAnyType) {
  const auto pool = Pool<Paged<F8E4M3, cache::KVCacheStaticParams<1, 576>, 64, float, 576>>::Make(
      WithScales(MakeGeometry(5, 2, 2, 64, 1, 576), DType::kF8E4M3, 576));
  const auto view = pool.collection.get_key_cache(1);
  const std::vector<std::int64_t> rows{view.sparse_tma_row(1, 70),
                                       -1,
                                       view.sparse_tma_row(0, 3),
                                       view.sparse_tma_row(1, 0),
                                       -1,
                                       view.sparse_tma_row(0, 100),
                                       view.sparse_tma_row(0, 1),
                                       view.sparse_tma_row(1, 5)};
  const Gather4TmaTileSpec specs[] = {
      {.tile_width = 576, .tile_height = 8, .swizzle = TmaSwizzle::k128B},
      {.tile_width = 576, .tile_stride = 576, .tile_height = 8, .swizzle = TmaSwizzle::k64B},
      {.tile_width = 72, .tile_height = 8, .dtype = DType::kI64},
      {.tile_width = 64, .tile_height = 8, .swizzle = TmaSwizzle::k32B, .dtype = DType::kI64}};
  for (const Gather4TmaTileSpec& spec : specs) {
    const auto plan = PlanGather4TmaTile(TmaSourceOf(view), spec);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->compute_capability, 100);
    SharedTile tile(plan->tile_bytes());
    Gather(*plan, rows, &tile);
    for (const int writes : tile.writes) ASSERT_EQ(writes, 1);
    const std::int64_t e = DTypeSize(plan->dtype);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::int64_t byte = 0; byte < plan->tile[2] * e; ++byte) {
        const auto at =
            TileByte(*plan, TmaFold::kNone, static_cast<std::int64_t>(r), byte / e) + byte % e;
        const auto* const row = reinterpret_cast<const std::byte*>(view.blocks) + rows[r] * 576;
        ASSERT_EQ(tile.bytes[static_cast<std::size_t>(at)],
                  rows[r] < 0 || byte >= 576 ? std::byte{0} : row[byte])
            << r << " " << byte;
      }
    }
  }
}

TEST(RopeTmaTile, RopeValuesOfRopeAwareRows) {
  const auto pool =
      Pool<Paged<F8E4M3, cache::KVCacheStaticParams<1, 640, true, 64>, 64, float, 640>>::Make(
          WithScales(MakeGeometry(5, 1, 2, 64, 1, 640), DType::kF8E4M3, 640));
  const auto view = pool.collection.get_key_cache(1);
  const auto plan = PlanRopeTmaTile(TmaSourceOf(view),
                                    {.tile_rows = 128, .tile_columns = 64, .padded_depth = 512});
  ASSERT_TRUE(plan.ok()) << plan.status();
  // The last row ends where the view ends.
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plan->base) +
                (plan->extents[2] - 1) * plan->strides[1] + 128,
            reinterpret_cast<std::uintptr_t>(view.blocks + view.num_kv_rows() * 640));
  SharedTile tile(plan->tile_bytes());
  IssueTile(view, *plan, TmaFold::kNone, 1, 0, 0, false, &tile);
  for (const int writes : tile.writes) ASSERT_EQ(writes, 1);
  for (std::uint32_t r = 0; r < 128; ++r) {
    for (std::uint32_t d = 0; d < 64; ++d) {
      ASSERT_EQ(At<BF16>(tile, TileByte(*plan, TmaFold::kNone, r, d)).bits,
                view.template load_rope<1>(1, r, d).lane[0].bits);
    }
  }
  const auto content = PlanTmaTile(TmaSourceOf(view), {.tile_rows = 64});
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(content->extents[0], 512u);  // a content tile never reads rope values
  EXPECT_EQ(content->strides[1], 640u);

  const auto gather =
      PlanRopeGather4TmaTile(TmaSourceOf(view), {.tile_width = 64, .padded_depth = 512});
  ASSERT_TRUE(gather.ok()) << gather.status();
  EXPECT_EQ(gather->compute_capability, 100);
  SharedTile four(gather->tile_bytes());
  const std::uint32_t tokens[] = {99, 1, 64, 7};
  Gather(*gather,
         {view.row_idx(0, 99), view.row_idx(0, 1), view.row_idx(0, 64), view.row_idx(0, 7)}, &four);
  for (std::uint32_t r = 0; r < 4; ++r) {
    for (std::uint32_t d = 0; d < 64; ++d) {
      ASSERT_EQ(At<BF16>(four, TileByte(*gather, TmaFold::kNone, r, d)).bits,
                view.template load_rope<1>(0, tokens[r], d).lane[0].bits);
    }
  }
}

TEST(ScaleTmaTile, OneScalePerRow) {
  const auto pool =
      Pool<Paged<std::int8_t, cache::KVCacheStaticParams<1, 64>, 32, float, 64>>::Make(
          WithScales(MakeGeometry(7, 2, 3, 32, 1, 64), DType::kI8, 64));
  const auto view = pool.collection.get_value_cache(2);
  for (const std::uint32_t tile_rows : {16u, 32u}) {
    const auto plan = PlanScaleTmaTile(TmaSourceOf(view), {.tile_rows = tile_rows});
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (std::uint32_t t = 0; t + tile_rows <= 96; t += tile_rows) {
      SharedTile tile(plan->tile_bytes());
      const std::uint32_t row = view.scale_row_idx(1, t);
      LoadBox(*plan, {row / 4 * 4}, 0, &tile);
      for (std::uint32_t r = 0; r < tile_rows; ++r) {
        ASSERT_EQ(At<float>(tile, (row % 4 + r) * 4),
                  view.template load_scale<1>(1, 0, t + r, 0).lane[0]);
      }
    }
  }
  AlignedArray<float> flat(2 * 20);
  std::iota(flat.begin(), flat.end(), 5.0f);
  const cache::ContiguousMHAOperand<float> operand{flat.data(), nullptr, 2, 20, 1, 1};
  const auto plan = PlanScaleTmaTile(TmaSourceOf(operand), {.tile_rows = 16});
  ASSERT_TRUE(plan.ok()) << plan.status();
  SharedTile tile(plan->tile_bytes());
  LoadBox(*plan, {operand.row_idx(1, 8)}, 0, &tile);
  for (std::uint32_t r = 0; r < 16; ++r) {
    EXPECT_EQ(At<float>(tile, r * 4), r < 12 ? flat[28 + r] : 0.0f);
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
