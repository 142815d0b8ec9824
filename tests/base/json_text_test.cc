#include "base/json_text.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(JsonTextTest, KeepsTheOrderOfOrderedKeys) {
  EXPECT_EQ(JsonText(nlohmann::ordered_json{{"b", 1}, {"a", {true, nullptr}}}),
            R"({"b":1,"a":[true,null]})");
  EXPECT_EQ(JsonText(nlohmann::json{{"b", 1}, {"a", 2.5}}), R"({"a":2.5,"b":1})");
}

TEST(JsonTextTest, IsValidForAnyBytes) {
  EXPECT_EQ(JsonQuoted("a\"\\\n\x01 \xc3\xa9"), "\"a\\\"\\\\\\n\\u0001 \xc3\xa9\"");
  EXPECT_EQ(JsonQuoted("\xff|\xed\xa0\x80|\xe2\x82"),
            "\"\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\"");
  EXPECT_EQ(JsonText(nlohmann::json{{"\xff", std::nan("")}}), "{\"\xef\xbf\xbd\":null}");
}

}  // namespace
}  // namespace quire
