#include "server/edge/self_connector.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "base/file_descriptor.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxNotAccepted = 4;
constexpr int kTimeoutMs = 1000;

std::string Bytes(const SelfConnector::Endpoint& endpoint) {
  return std::string(reinterpret_cast<const char*>(endpoint.data()), endpoint.size());
}

// Replaces a wildcard address (all interfaces) by the loopback address.
SelfConnector::Endpoint Reachable(SelfConnector::Endpoint endpoint) {
  if (endpoint.data()->sa_family == AF_INET) {
    in_addr& address = reinterpret_cast<sockaddr_in*>(endpoint.data())->sin_addr;
    if (address.s_addr == htonl(INADDR_ANY)) address.s_addr = htonl(INADDR_LOOPBACK);
  } else if (endpoint.data()->sa_family == AF_INET6) {
    in6_addr& address = reinterpret_cast<sockaddr_in6*>(endpoint.data())->sin6_addr;
    if (IN6_IS_ADDR_UNSPECIFIED(&address)) address = in6addr_loopback;
  }
  return endpoint;
}

// Returns the address to bind before connecting to `to`. The kernel chooses the port, or the name
// of a Unix socket.
SelfConnector::Endpoint Unbound(SelfConnector::Endpoint to) {
  if (to.data()->sa_family == AF_UNIX) {
    to.resize(sizeof(sa_family_t));
  } else {
    reinterpret_cast<sockaddr_in*>(to.data())->sin_port = 0;  // sin6_port has the same offset
  }
  return to;
}

// Returns 0 once `fd` is connected, or the error.
int ConnectWithin(int fd, const SelfConnector::Endpoint& to) {
  if (connect(fd, to.data(), static_cast<socklen_t>(to.size())) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd writable = {.fd = fd, .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, kTimeoutMs) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace

absl::StatusOr<int> SelfConnector::Connect(const Endpoint& listening) {
  const Endpoint to = Reachable(listening);
  const Endpoint unbound = Unbound(to);
  const auto fail = [](int error) { return absl::UnavailableError(strerror(error)); };
  FileDescriptor connection(
      socket(to.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.fd < 0) return fail(errno);
  Endpoint local;
  auto size = static_cast<socklen_t>(local.capacity());
  if (bind(connection.fd, unbound.data(), static_cast<socklen_t>(unbound.size())) != 0 ||
      getsockname(connection.fd, local.data(), &size) != 0) {
    return fail(errno);
  }
  local.resize(size);
  {
    MutexLock lock(&mutex_);
    // A listener that accepts no connection must not make the list grow.
    if (not_accepted_.size() >= kMaxNotAccepted) not_accepted_.erase(not_accepted_.begin());
    not_accepted_.push_back(Bytes(local));
  }
  if (const int error = ConnectWithin(connection.fd, to); error != 0) {
    RemoveIfOwn(local);  // a client may get the same address later
    return fail(error);
  }
  return std::exchange(connection.fd, -1);
}

bool SelfConnector::RemoveIfOwn(const Endpoint& remote) {
  MutexLock lock(&mutex_);
  return std::erase(not_accepted_, Bytes(remote)) > 0;
}

}  // namespace quire::server
