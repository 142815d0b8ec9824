#pragma once

// Where a connection comes from, as far as limits tell peers apart.
//
// Place:   what both listeners count connections by.
// Threads: pure.

#include <boost/asio/ip/address.hpp>
#include <string>

namespace quire::server {

struct PeerAddress {
  std::string network;  // an IPv4 address, or the /64 of an IPv6 one, all of which a host has
  bool is_loopback = false;
};

PeerAddress PeerAddressOf(boost::asio::ip::address address);

}  // namespace quire::server
