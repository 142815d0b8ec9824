#include "formats/raw_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::formats {
namespace {

using ::testing::ElementsAre;

TEST(RawJsonTest, MembersKeepEveryByte) {
  constexpr absl::string_view kText =
      " {\"a\" : 1.50e+2 ,\"b\":[1, {\"x\": \"}]\\\"\"} , 36893488147419103232]\n,"
      "\"\\u0063\": \"q\\\\\",\"d\":null}";
  EXPECT_EQ(RawMember(kText, "a"), "1.50e+2");
  EXPECT_EQ(RawMember("\xEF\xBB\xBF{\"a\":1}", "a"), "1");  // after a byte order mark
  EXPECT_EQ(RawMember(kText, "b"), "[1, {\"x\": \"}]\\\"\"} , 36893488147419103232]");
  EXPECT_EQ(RawMember(kText, "c"), "\"q\\\\\"");
  EXPECT_EQ(RawMember(kText, "d"), "null");
  EXPECT_EQ(RawMember(R"({"x":{"a":1},"a":-0})", "a"), "-0");
}

TEST(RawJsonTest, SeparatesElements) {
  EXPECT_THAT(RawElements(" [ ]"), ElementsAre());
  EXPECT_THAT(RawElements("[1,true , \"a,]\",[2,3],{\"k\":[4]}\t,-5e1 ]"),
              ElementsAre("1", "true", "\"a,]\"", "[2,3]", "{\"k\":[4]}", "-5e1"));
}

}  // namespace
}  // namespace quire::formats
