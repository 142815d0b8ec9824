#include "server/descriptor_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/time/time.h"
#include "base/logging.h"
#include "tests/testing/temp_dir.h"

namespace quire::server {
namespace {

class DescriptorLimitTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void Lower(rlim_t soft) {
    const rlimit low = {.rlim_cur = soft, .rlim_max = before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }

  rlimit before_ = {};
};

TEST_F(DescriptorLimitTest, RaisesTheSoftLimitToTheHardLimit) {
  Lower(64);
  RaiseDescriptorLimit();
  rlimit after = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before_.rlim_max);
  EXPECT_EQ(after.rlim_max, before_.rlim_max);
}

TEST(LogDescriptorLimitTest, ReportsATableThatCannotGrow) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/log";
  ASSERT_TRUE(log::Configure({.file = path}).ok());
  LogDescriptorLimit({.from = 8, .to = 8, .table_error = ENOMEM});
  ASSERT_TRUE(log::Flush(absl::Seconds(20)));
  ASSERT_TRUE(log::Configure({}).ok());
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(text, ::testing::HasSubstr("cannot enlarge the descriptor table"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("limit of open files raised")));
}

TEST_F(DescriptorLimitTest, AllListenersShareTheDescriptors) {
  Lower(1024);
  EXPECT_EQ(LimitGrpcConnections(100, /*num_listeners=*/1, /*http_connections=*/0,
                                 /*wanted_is_default=*/true),
            100);
  EXPECT_EQ(LimitGrpcConnections(170, 1, 0, true), 170);
  EXPECT_EQ(LimitGrpcConnections(10'000, 1, 0, true), 170);  // 1024 - 512, three for each
  EXPECT_EQ(LimitGrpcConnections(10'000, 2, 0, true), 85);
  EXPECT_EQ(LimitGrpcConnections(10'000, 2, 300, true), 35);
  EXPECT_EQ(LimitGrpcConnections(10'000, 2, 1000, true), 16);  // the minimum
}

}  // namespace
}  // namespace quire::server
