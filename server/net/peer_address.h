#pragma once

// The address that identifies a peer in the limits of connections per address.
//
// Place:   below GrpcAcceptor and HttpServer.
// Threads: any; no state.

#include <boost/asio/ip/address.hpp>
#include <string>

namespace quire::server {

struct PeerAddress {
  std::string network;  // IPv4 address, or /64 prefix of an IPv6 address, as one host may own a /64
  bool is_loopback = false;
};

PeerAddress PeerAddressOf(boost::asio::ip::address address);

}  // namespace quire::server
