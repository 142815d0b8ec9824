#include "server/net/peer_address.h"

#include <algorithm>
#include <boost/asio/ip/address_v4.hpp>
#include <boost/asio/ip/address_v6.hpp>

#include "absl/strings/str_cat.h"

namespace quire::server {

namespace ip = boost::asio::ip;

PeerAddress PeerAddressOf(ip::address address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = ip::make_address_v4(ip::v4_mapped, address.to_v6());
  }
  if (!address.is_v6()) return {address.to_string(), address.is_loopback()};
  ip::address_v6::bytes_type bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return {absl::StrCat(ip::address_v6(bytes).to_string(), "/64"), address.is_loopback()};
}

}  // namespace quire::server
