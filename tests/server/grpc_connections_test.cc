#include "server/edge/grpc_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "base/clock.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using Local = boost::asio::local::stream_protocol;

class GrpcConnectionsTest : public ::testing::Test {
 protected:
  GrpcConnectionsTest() {
    host_.add_unfinished_bytes = [](std::int64_t) {};
    host_.count_closed = [](const Peer&, CloseCause, absl::string_view) {};
    host_.set_phase = [this](std::uint64_t number, Phase phase) {
      connections_.SetPhase(number, phase);
    };
    host_.try_linger = [this](std::uint64_t number) { return connections_.TryLinger(number); };
    host_.remove = [this](std::uint64_t number, const std::string&) {
      connections_.Remove(number);
    };
  }
  ~GrpcConnectionsTest() override {
    for (const auto& connection : connections_.List()) connection->Abort();
    Poll();
    connections_.WaitUntilEmpty(MonotonicNow() + absl::Seconds(10));
    EXPECT_TRUE(connections_.List().empty());
    EXPECT_TRUE(connections_.CheckIntegrity().ok());
  }

  // Adds a connection whose number is the count of those before it.
  void Add(const std::optional<std::string>& network) {
    Local::socket& client = clients_.emplace_back(io_);
    Local::socket server(io_);
    boost::asio::local::connect_pair(client, server);
    client.non_blocking(true);
    const auto connection = std::make_shared<GuardedConnection>(
        &host_, clients_.size() - 1, NewPlainTransport(std::move(server)), Peer{},
        FrameLimits{.max_streams = 1, .message_timeout = absl::Seconds(60)},
        ConnectionTimes{.preface = absl::Seconds(10), .write_stall = absl::Seconds(60)});
    connections_.Add(connection, network);
    connection->Begin();
    Poll();
  }
  void Poll() {
    io_.restart();
    io_.poll();
  }
  bool IsClosed(std::size_t number) {
    Poll();
    char byte = 0;
    boost::system::error_code error;
    std::next(clients_.begin(), static_cast<std::ptrdiff_t>(number))
        ->read_some(boost::asio::buffer(&byte, 1), error);
    return error == boost::asio::error::eof;
  }

  boost::asio::io_context io_;
  std::list<Local::socket> clients_;
  GuardedConnectionHost host_;
  GrpcConnections connections_{/*max_connections=*/3, /*max_per_address=*/2};
};

TEST_F(GrpcConnectionsTest, AnAddressAtItsLimitEvictsItsOwn) {
  Add("b");
  Add("a");
  Add("a");
  EXPECT_TRUE(connections_.MakeRoom("a").ok());
  EXPECT_FALSE(IsClosed(0)) << "the oldest of all, but of another address";
  EXPECT_TRUE(IsClosed(1));
  EXPECT_FALSE(IsClosed(2));
}

TEST_F(GrpcConnectionsTest, AFullListenerEvictsTheOldestOfAll) {
  Add("a");
  Add("b");
  Add("");
  EXPECT_TRUE(connections_.MakeRoom("c").ok());
  EXPECT_TRUE(IsClosed(0));
  EXPECT_TRUE(connections_.MakeRoom("").ok()) << "a Unix socket has no address";
  EXPECT_FALSE(IsClosed(1)) << "there was room";
}

TEST_F(GrpcConnectionsTest, BusyConnectionsAreNotEvicted) {
  Add("a");
  Add("a");
  for (const std::uint64_t number : {0, 1}) connections_.SetPhase(number, Phase::kBusy);
  EXPECT_THAT(std::string(connections_.MakeRoom("a").message()),
              HasSubstr("2 connections of this address are open"));
  EXPECT_TRUE(connections_.MakeRoom("b").ok());
  Add("b");
  connections_.SetPhase(2, Phase::kBusy);
  const absl::Status full = connections_.MakeRoom("c");
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("3 connections are open, the limit is 3"));
  for (const std::size_t number : {0, 1, 2}) EXPECT_FALSE(IsClosed(number));
}

TEST_F(GrpcConnectionsTest, UncountedConnectionsTakeNoRoomAndStay) {
  Add(std::nullopt);
  Add("a");
  Add("b");
  Add("c");
  EXPECT_TRUE(connections_.MakeRoom("d").ok());
  EXPECT_FALSE(IsClosed(0));
  EXPECT_TRUE(IsClosed(1));
}

TEST_F(GrpcConnectionsTest, FewConnectionsLingerAtOnce) {
  for (int i = 0; i <= GrpcConnections::kMaxLingering; ++i) Add(std::nullopt);
  for (std::uint64_t i = 0; i < GrpcConnections::kMaxLingering; ++i) {
    EXPECT_TRUE(connections_.TryLinger(i));
  }
  EXPECT_FALSE(connections_.TryLinger(GrpcConnections::kMaxLingering));
  connections_.List()[0]->Abort();
  EXPECT_TRUE(IsClosed(0));
  EXPECT_TRUE(connections_.TryLinger(GrpcConnections::kMaxLingering));
}

TEST_F(GrpcConnectionsTest, CountsStayCorrectAfterRandomOperations) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    const auto open = connections_.List();
    const std::string network(1, "abc"[random() % 3]);
    const auto any = open.empty() ? nullptr : open[random() % open.size()];
    switch (random() % 6) {
      case 0:
      case 1:
        if (connections_.MakeRoom(network).ok()) Add(network);
        break;
      case 2:
        Add(std::nullopt);
        break;
      case 3:
        if (any != nullptr) connections_.SetPhase(any->number(), static_cast<Phase>(random() % 4));
        break;
      case 4:
        connections_.EvictOne(random() % 2 == 0 ? network : "");
        break;
      default:
        if (any != nullptr)
          any->CloseWithReason(CloseCause::kMemory, absl::ResourceExhaustedError("full"));
    }
    if (random() % 2 == 0) Poll();
    ASSERT_TRUE(connections_.CheckIntegrity().ok()) << connections_.CheckIntegrity();
  }
}

TEST_F(GrpcConnectionsTest, ListsByNumber) {
  for (int i = 0; i < 3; ++i) Add("");
  const auto found = connections_.List(/*first=*/1, /*most=*/1);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]->number(), 1u);
}

}  // namespace
}  // namespace quire::server
