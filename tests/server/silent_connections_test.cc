#include "server/edge/silent_connections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using Local = boost::asio::local::stream_protocol;

class SilentConnectionsTest : public ::testing::Test {
 protected:
  Local::socket Connect(std::uint64_t number) {
    Local::socket client(io_), server(io_);
    boost::asio::local::connect_pair(client, server);
    silent_.Add(number, {.socket = std::move(server), .protocol = Local()});
    return client;
  }
  bool Becomes(absl::FunctionRef<bool()> condition) {
    return testing::WaitUntil([&] {
      io_.poll();
      io_.restart();
      return condition();
    });
  }
  static void Write(Local::socket& client) {
    boost::system::error_code ignored;  // the connection may have been closed
    boost::asio::write(client, boost::asio::buffer("hello", 5), ignored);
  }
  // Returns whether the connection is closed, whether or not its bytes were read.
  static bool IsClosed(Local::socket& client) {
    std::array<char, 10> bytes;
    boost::system::error_code error;
    client.non_blocking(true);
    client.read_some(boost::asio::buffer(bytes), error);
    return error == boost::asio::error::eof || error == boost::asio::error::connection_reset;
  }

  boost::asio::io_context io_;
  std::vector<std::pair<std::uint64_t, Accepted>> spoke_;
  std::vector<std::uint64_t> ended_;
  SilentConnections silent_{[this](std::uint64_t number, Accepted accepted) {
                              spoke_.emplace_back(number, std::move(accepted));
                            },
                            [this](std::uint64_t number) { ended_.push_back(number); }};
};

TEST_F(SilentConnectionsTest, HandsOnConnectionsWithTheirFirstBytes) {
  Local::socket first = Connect(3), second = Connect(5);
  EXPECT_EQ(silent_.oldest(), 3);
  io_.poll();
  EXPECT_TRUE(spoke_.empty());
  boost::asio::write(second, boost::asio::buffer("hello", 5));
  ASSERT_TRUE(Becomes([&] { return !spoke_.empty(); }));
  EXPECT_EQ(spoke_.front().first, 5u);
  EXPECT_EQ(silent_.Find(5), nullptr);
  std::string said(10, '\0');
  said.resize(spoke_.front().second.socket.read_some(boost::asio::buffer(said)));
  EXPECT_EQ(said, "hello");
  EXPECT_NE(silent_.Find(3), nullptr);
  EXPECT_FALSE(IsClosed(first));
  // The next connection waits until this one is served.
  boost::asio::write(first, boost::asio::buffer("hello", 5));
  ASSERT_TRUE(Becomes([&] { return silent_.num_waiting() == 1; }));
  EXPECT_EQ(spoke_.size(), 1u);
  silent_.GoOn();
  ASSERT_EQ(spoke_.size(), 2u);
  EXPECT_EQ(spoke_.back().first, 3u);
  EXPECT_EQ(silent_.num_waiting(), 0u);
  EXPECT_TRUE(ended_.empty());
}

TEST_F(SilentConnectionsTest, DoesNotServeDisconnectedClients) {
  { const Local::socket client = Connect(1); }
  EXPECT_TRUE(Becomes([&] { return ended_ == std::vector<std::uint64_t>{1}; }));
  EXPECT_TRUE(spoke_.empty());
  EXPECT_EQ(silent_.oldest(), std::nullopt);
}

TEST_F(SilentConnectionsTest, ClosesAnEvictedConnectionOnce) {
  Local::socket first = Connect(1), second = Connect(2);
  boost::asio::write(first, boost::asio::buffer("late", 4));
  silent_.End(1);
  EXPECT_TRUE(IsClosed(first));
  boost::asio::write(second, boost::asio::buffer("hello", 5));
  ASSERT_TRUE(Becomes([&] { return !spoke_.empty(); }));
  EXPECT_EQ(spoke_.size(), 1u);
  EXPECT_EQ(ended_, std::vector<std::uint64_t>{1});
  EXPECT_EQ(silent_.oldest(), std::nullopt);
}

TEST_F(SilentConnectionsTest, HandsOnOrClosesEachConnectionOnce) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  std::map<std::uint64_t, Local::socket> clients;
  std::uint64_t added = 0;
  for (int step = 0; step < 2000; ++step) {
    const auto client =
        clients.empty() ? clients.end() : std::next(clients.begin(), random() % clients.size());
    switch (random() % 6) {
      case 0:
      case 1:
        if (clients.size() >= 50) break;
        clients.emplace(added, Connect(added));
        ++added;
        break;
      case 2:
        if (client != clients.end()) Write(client->second);
        break;
      case 3:
        if (client != clients.end()) clients.erase(client);
        break;
      case 4:
        if (const auto oldest = silent_.oldest()) silent_.End(*oldest);
        break;
      default:
        silent_.GoOn();
    }
    io_.poll();
    io_.restart();
    ASSERT_TRUE(silent_.CheckIntegrity().ok()) << silent_.CheckIntegrity();
  }
  clients.clear();
  EXPECT_TRUE(Becomes([&] {
    silent_.GoOn();
    return silent_.oldest() == std::nullopt;
  }));
  std::vector<std::uint64_t> all = ended_;
  for (const auto& [number, accepted] : spoke_) all.push_back(number);
  std::ranges::sort(all);
  ASSERT_EQ(all.size(), added);
  for (std::uint64_t number = 0; number < added; ++number) EXPECT_EQ(all[number], number);
  EXPECT_FALSE(spoke_.empty());
  EXPECT_FALSE(ended_.empty());
}

}  // namespace
}  // namespace quire::server
