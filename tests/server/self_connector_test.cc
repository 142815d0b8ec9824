#include "server/edge/self_connector.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"

namespace quire::server {
namespace {

using boost::asio::ip::tcp;
using Local = boost::asio::local::stream_protocol;

// The remote address that `acceptor` sees of a new connection of `connector`.
template <typename Acceptor>
SelfConnector::Endpoint Accepted(SelfConnector& connector, Acceptor& acceptor) {
  const absl::StatusOr<int> fd = connector.Connect(acceptor.local_endpoint());
  EXPECT_TRUE(fd.ok()) << fd.status();
  const FileDescriptor close_it(fd.ok() ? *fd : -1);
  return acceptor.accept().remote_endpoint();
}

TEST(SelfConnectorTest, KnowsItsConnectionsOnce) {
  boost::asio::io_context io;
  SelfConnector connector;
  for (const char* const address : {"127.0.0.1", "0.0.0.0", "127.0.0.2"}) {
    tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::make_address(address), 0));
    const SelfConnector::Endpoint remote = Accepted(connector, acceptor);
    EXPECT_TRUE(connector.RemoveIfOwn(remote)) << address;
    EXPECT_FALSE(connector.RemoveIfOwn(remote)) << address;
  }
}

TEST(SelfConnectorTest, KnowsItsConnectionsOfUnixSockets) {
  boost::asio::io_context io;
  SelfConnector connector;
  const std::string path = absl::StrCat(::testing::TempDir(), "self_", getpid(), ".sock");
  Local::acceptor acceptor(io, Local::endpoint(path));
  const SelfConnector::Endpoint remote = Accepted(connector, acceptor);
  EXPECT_TRUE(connector.RemoveIfOwn(remote));
  EXPECT_FALSE(connector.RemoveIfOwn(remote));
  unlink(path.c_str());
}

TEST(SelfConnectorTest, DoesNotKnowConnectionsOfOthers) {
  boost::asio::io_context io;
  SelfConnector connector;
  tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  tcp::socket other(io);
  other.connect(acceptor.local_endpoint());
  EXPECT_FALSE(connector.RemoveIfOwn(acceptor.accept().remote_endpoint()));
}

TEST(SelfConnectorTest, ReportsThatNobodyListens) {
  boost::asio::io_context io;
  SelfConnector connector;
  tcp::endpoint gone;
  {
    tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
    gone = acceptor.local_endpoint();
  }
  EXPECT_EQ(connector.Connect(gone).status().code(), absl::StatusCode::kUnavailable);
  // A client may get the local address of the failed connection. Its port is not known.
  for (int port = 1; port < 1 << 16; ++port) {
    const tcp::endpoint any(gone.address(), static_cast<std::uint16_t>(port));
    ASSERT_FALSE(connector.RemoveIfOwn(any)) << port;
  }
}

}  // namespace
}  // namespace quire::server
