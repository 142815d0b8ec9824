#include "server/edge/grpc_acceptor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <string>
#include <utility>

#include "base/probe.h"
#include "server/edge/peer_table.h"
#include "tests/server/http2_frames.h"

namespace quire::server {
namespace {

using boost::asio::ip::tcp;

TEST(GrpcAcceptorTest, SkipsConnectionsThatWereClosedInTheSystemsQueue) {
  PeerTable peers;
  probe::Registry registry;
  GrpcAcceptorOptions options;
  options.addresses = {"127.0.0.1:0"};
  options.max_connections = 10;
  options.max_connections_per_address = 10;
  options.max_unfinished_bytes = 1000;
  options.frames.max_streams = 1;
  options.frames.max_control_frames = 10;
  options.frames.message_timeout = absl::Seconds(60);
  options.times = {.preface = absl::Seconds(60), .write_stall = absl::Seconds(60)};
  options.peers = &peers;
  options.registry = &registry;
  auto acceptor = GrpcAcceptor::Bind(std::move(options));
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  const std::string& address = (*acceptor)->addresses().front();
  const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));

  // Nothing is accepted yet, so all of them are in the system's queue. The last one stays open.
  constexpr int kNumClients = 5;
  boost::asio::io_context io;
  tcp::socket client(io);
  for (int i = 0; i < kNumClients; ++i) {
    client = tcp::socket(io);  // closes the previous one
    client.connect(tcp::endpoint(boost::asio::ip::address_v4::loopback(), port));
    boost::asio::write(client, boost::asio::buffer(http2::kPreface.data(), http2::kPreface.size()));
  }
  std::atomic<int> num_handed_over{0};
  (*acceptor)->Start([&](int fd) {
    ++num_handed_over;
    close(fd);
  });
  // gRPC's end is closed at once, so the client reads the end of the connection.
  char byte = 0;
  boost::system::error_code error;
  client.read_some(boost::asio::buffer(&byte, 1), error);
  EXPECT_EQ(error, boost::asio::error::eof);
  EXPECT_EQ(num_handed_over, 1);
}

}  // namespace
}  // namespace quire::server
