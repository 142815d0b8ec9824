#include "server/edge/watched_descriptors.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <random>

namespace quire::server {
namespace {

TEST(WatchedDescriptorsTest, HasBlocksForCountedDescriptors) {
  boost::asio::io_context io;
  WatchedDescriptors watched(&io);
  std::mt19937 random(1);
  int count = 0;
  for (int i = 0; i < 5000; ++i) {
    const bool is_more = count == 0 || random() % 3 != 0;
    if (is_more) {
      watched.Add();
      ++count;
    } else {
      watched.Remove();
      --count;
    }
    ASSERT_GE(watched.num_blocks(), static_cast<std::size_t>(count));
    if (is_more) {
      ASSERT_GE(watched.num_blocks(),
                static_cast<std::size_t>(count) + WatchedDescriptors::kBatchSize / 2);
    }
    ASSERT_TRUE(watched.CheckIntegrity().ok()) << watched.CheckIntegrity();
  }
  EXPECT_GT(count, static_cast<int>(2 * WatchedDescriptors::kBatchSize));
}

}  // namespace
}  // namespace quire::server
