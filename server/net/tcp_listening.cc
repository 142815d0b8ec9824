#include "server/net/tcp_listening.h"

#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/validator.h"

namespace quire::server {

absl::Status BindError(const std::string& address, const boost::system::error_code& error) {
  if (error == boost::asio::error::address_in_use) {
    return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address ", address, " cannot be bound: ", error.message()));
}

absl::StatusOr<TcpListening> ListenOnTcp(const std::string& address, bool reuse_port,
                                         const boost::asio::any_io_executor& executor) {
  using boost::asio::ip::tcp;
  ListenAddress parsed;
  if (!ParseListenAddress(address, &parsed) || parsed.is_unix) {
    return absl::InvalidArgumentError(absl::StrCat("address ", address, " is not host:port"));
  }
  boost::system::error_code error;
  tcp::resolver resolver(executor);
  const auto found =
      resolver.resolve(parsed.host == "*" ? "" : parsed.host, absl::StrCat(parsed.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return BindError(address, error);
  TcpListening listening;
  int port = parsed.port;
  for (const auto& entry : found) {
    tcp::endpoint endpoint = entry.endpoint();
    endpoint.port(static_cast<std::uint16_t>(port));
    tcp::acceptor acceptor(executor);
    acceptor.open(endpoint.protocol(), error);
    if (error == boost::asio::error::address_family_not_supported) continue;
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && endpoint.protocol() == tcp::v6()) {
      acceptor.set_option(boost::asio::ip::v6_only(found.size() > 1), error);
    }
    const int on = 1;
    if (!error && reuse_port &&
        setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) != 0) {
      error.assign(errno, boost::system::system_category());
    }
    if (!error) acceptor.bind(endpoint, error);
    if (error && error.value() == EADDRNOTAVAIL) continue;
    if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) port = acceptor.local_endpoint(error).port();
    if (error) return BindError(address, error);
    listening.acceptors.push_back(std::move(acceptor));
  }
  if (listening.acceptors.empty()) return BindError(address, error);
  listening.address = absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
  return listening;
}

}  // namespace quire::server
