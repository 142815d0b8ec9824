// The checks of members.json run when this program is compiled. This test adds that the compiled
// source matches the table on disk.

#include <fstream>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/testing/paths.h"

namespace quire::cache {

extern const int kKvMemberRows;

namespace {

TEST(KvMembersTest, EveryRowOfTheTableWasCompiled) {
  std::ifstream in(paths::TestData("kv_cache/members.json"));
  ASSERT_TRUE(in.is_open());
  const auto table = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(table.is_discarded());
  EXPECT_EQ(table["members"].size(), static_cast<std::size_t>(kKvMemberRows));
  EXPECT_GT(kKvMemberRows, 200);
  for (const auto& row : table["members"]) {
    EXPECT_FALSE(row["checks"].empty()) << row["member"];
    EXPECT_TRUE(row["status"] == "present" || row.contains("note")) << row["member"];
  }
}

}  // namespace
}  // namespace quire::cache
