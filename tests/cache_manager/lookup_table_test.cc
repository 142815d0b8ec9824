#include "cache_manager/pool/lookup_table.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

LookupTable MakeTable(std::uint32_t max_rows, std::uint32_t max_pages) {
  auto table = LookupTable::Create(max_rows, max_pages);
  QUIRE_CHECK(table.ok());
  return *std::move(table);
}

TEST(LookupTableTest, StrideIsAlignedAndPadded) {
  for (const auto& [max_pages, stride] :
       {std::pair{1u, 24u}, {7u, 24u}, {8u, 24u}, {9u, 32u}, {16u, 32u}, {17u, 40u}}) {
    const LookupTable table = MakeTable(2, max_pages);
    EXPECT_EQ(table.stride(), stride) << max_pages;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(table.pages()) % 32, 0u);
    EXPECT_TRUE(std::all_of(table.pages(), table.pages() + 2 * stride,
                            [](std::uint32_t page) { return page == 0; }));
    EXPECT_TRUE(table.CheckIntegrity().ok());
  }
}

TEST(LookupTableTest, SixteenEntriesFromTheLastColumnOfTheLastRowLieInside) {
  LookupTable table = MakeTable(3, 9);
  const BatchRow last{2};
  for (std::uint32_t page = 1; page <= 9; ++page) table.Append(last, BlockId{page});
  const std::uint32_t* read = table.pages() + 2 * table.stride() + 8;
  EXPECT_EQ(read[0], 9u);
  EXPECT_TRUE(std::all_of(read + 1, read + 16, [](std::uint32_t page) { return page == 0; }));
  EXPECT_LE(read + 16, table.pages() + 3 * table.stride());
}

TEST(LookupTableTest, FollowsANaiveModel) {
  Random random;
  SCOPED_TRACE(::testing::Message() << "seed " << random.seed());
  LookupTable table = MakeTable(4, 10);
  const std::uint32_t* pages = table.pages();
  const std::uint32_t* lengths = table.lengths();
  struct Row {
    std::uint32_t first = 0;
    std::vector<std::uint32_t> pages;
  };
  std::vector<Row> model(4);
  for (int operation = 0; operation < 20000; ++operation) {
    const std::uint32_t index = random.Below(4);
    const BatchRow row{index};
    auto& [first, expected] = model[index];
    const std::uint32_t page = random.Below(1000) + 1;
    const bool is_full = first + expected.size() == 10;
    const auto choice = random.Below(8);
    if (choice < 3 && !is_full) {
      table.Append(row, BlockId{page});
      expected.push_back(page);
    } else if (choice == 3 && !expected.empty()) {
      const auto at = random.Below(expected.size());
      table.Replace(row, first + at, BlockId{page});
      expected[at] = page;
    } else if (choice == 4 && !expected.empty()) {
      EXPECT_EQ(table.PopBack(row).value(), expected.back());
      expected.pop_back();
    } else if (choice == 5 && !expected.empty()) {
      EXPECT_EQ(table.PopFront(row).value(), expected.front());
      expected.erase(expected.begin());
      ++first;
    } else if (choice == 6 && expected.empty() && !is_full) {
      table.Skip(row);
      ++first;
    } else if (choice == 7 && expected.empty()) {
      table.Clear(row);
      first = 0;
    }
    const auto end = first + static_cast<std::uint32_t>(expected.size());
    table.SetLength(row, end);
    ASSERT_TRUE(table.CheckIntegrity().ok());
    ASSERT_TRUE(std::ranges::equal(table.assigned_pages(row), expected));
    ASSERT_EQ(table.first_column(row), first);
    ASSERT_EQ(table.end_column(row), end);
    for (std::uint32_t column = 0; column < 12; ++column) {
      ASSERT_EQ(table.has_page(row, column), column >= first && column < end);
    }
    ASSERT_EQ(table.lengths()[index], end);
  }
  EXPECT_EQ(table.pages(), pages);
  EXPECT_EQ(table.lengths(), lengths);
}

TEST(LookupTableTest, ReportsBrokenInvariants) {
  const auto broken = [](auto breakage) {
    LookupTable table = MakeTable(2, 8);
    table.Append(BatchRow{1}, BlockId{5});
    table.SetLength(BatchRow{1}, 3);
    EXPECT_TRUE(table.CheckIntegrity().ok());
    breakage(table);
    const absl::Status status = table.CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  using Peer = LookupTablePeer;
  EXPECT_THAT(broken([](LookupTable& table) { Peer::entry(table, 1, 0) = 0; }),
              HasSubstr("row 1 column 0 holds page 0"));
  EXPECT_THAT(broken([](LookupTable& table) { Peer::entry(table, 0, table.stride() - 1) = 9; }),
              HasSubstr("row 0 column 23 holds page 9"));
  EXPECT_THAT(broken([](LookupTable& table) { Peer::first_column(table, 1) = 2; }),
              HasSubstr("row 1 has pages in columns [2, 1), the table has 8 columns"));
  EXPECT_THAT(broken([](LookupTable& table) { Peer::first_column(table, 1) = 1; }),
              HasSubstr("row 1 column 0 holds page 5"));
  EXPECT_THAT(broken([](LookupTable& table) { Peer::end_column(table, 1) = 9; }),
              HasSubstr("row 1 has pages in columns [0, 9), the table has 8 columns"));
  EXPECT_THAT(broken([](LookupTable& table) { table.SetLength(BatchRow{0}, 1); }),
              HasSubstr("row 0 has no pages but length 1"));
}

TEST(LookupTableDeathTest, BrokenContracts) {
  LookupTable table = MakeTable(2, 1);
  const BatchRow row{0};
  EXPECT_DEATH(table.Append(BatchRow{2}, BlockId{1}), "check failed");
  EXPECT_DEATH(table.Append(row, kNullBlock), "check failed");
  EXPECT_DEATH(table.PopBack(row), "check failed");
  EXPECT_DEATH(table.PopFront(row), "check failed");
  EXPECT_DEATH(table.page(row, 0), "check failed");
  table.Append(row, BlockId{1});
  EXPECT_DEATH(table.Append(row, BlockId{2}), "check failed");
  EXPECT_DEATH(table.Replace(row, 0, kNullBlock), "check failed");
  EXPECT_DEATH(table.Skip(row), "check failed");
  EXPECT_DEATH(table.Clear(row), "check failed");
  EXPECT_DEATH(table.SetLength(BatchRow{2}, 0), "check failed");
  EXPECT_DEATH(LookupTable::Create(0, 1).IgnoreError(), "check failed");
}

}  // namespace
}  // namespace quire::cache
