#include "server/net/unix_listening.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/system/error_code.hpp>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/net/tcp_listening.h"

namespace quire::server {
namespace {

using Local = boost::asio::local::stream_protocol;
using Error = boost::system::error_code;

// Returns true if a process accepts connections on the socket file.
bool AcceptsConnections(const std::string& path, const boost::asio::any_io_executor& executor) {
  Local::socket socket(executor);
  Error error;
  socket.connect(Local::endpoint(path), error);
  return !error;
}

// Checks the path and removes a socket file that no process listens on.
absl::Status PreparePath(const std::string& address, const std::string& path,
                         const boost::asio::any_io_executor& executor) {
  constexpr std::size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
  if (path.size() > kMaxPath) {
    return absl::InvalidArgumentError(absl::StrCat("address ", address, ": the path has ",
                                                   path.size(), " bytes, at most ", kMaxPath,
                                                   "; use a shorter path"));
  }
  if (AcceptsConnections(path, executor)) {
    return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", address,
                     ": the file exists and is not a socket; remove it or use another path"));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", address, ": the old socket cannot be removed: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Local::acceptor> ListenOnUnix(const std::string& address, const std::string& path,
                                             std::uint32_t mode,
                                             const boost::asio::any_io_executor& executor) {
  QUIRE_RETURN_IF_ERROR(PreparePath(address, path, executor));
  Local::acceptor acceptor(executor);
  Error error;
  acceptor.open(Local(), error);
  // The mode is set before the socket has a name, so that other users can never open it.
  if (!error && fchmod(acceptor.native_handle(), mode) != 0) {
    error.assign(errno, boost::system::system_category());
  }
  if (!error) acceptor.bind(Local::endpoint(path), error);
  if (error) return BindError(address, error);
  // Restores the permissions that umask removed.
  if (chmod(path.c_str(), mode) != 0) {
    const absl::Status failed = absl::InvalidArgumentError(
        absl::StrCat("address ", address, ": the mode cannot be set: ", strerror(errno)));
    unlink(path.c_str());
    return failed;
  }
  acceptor.listen(Local::acceptor::max_listen_connections, error);
  if (!error) return acceptor;
  unlink(path.c_str());
  return BindError(address, error);
}

}  // namespace quire::server
