#pragma once

// The address that identifies a peer in the limits of connections per address.
//
// Place:   below GrpcAcceptor and HttpServer.
// Threads: pure.

#include <boost/asio/ip/address.hpp>
#include <string>

namespace quire::server {

struct PeerAddress {
  std::string network;  // an IPv4 address, or the /64 of an IPv6 one, which one host may own
  bool is_loopback = false;
};

PeerAddress PeerAddressOf(boost::asio::ip::address address);

}  // namespace quire::server
