#include "server/notify.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/logging.h"

namespace quire::server {
namespace {

// Size of sockaddr_un::sun_path. Neither kind of address needs a terminating NUL.
constexpr std::size_t kMaxAddress = sizeof(sockaddr_un::sun_path);

bool IsAddress(absl::string_view text) {
  return text.size() >= 2 && text.size() <= kMaxAddress && (text[0] == '/' || text[0] == '@');
}

// Returns WATCHDOG_USEC if it applies to this process.
absl::Duration WatchdogFromEnvironment() {
  const char* pid_text = std::getenv("WATCHDOG_PID");
  std::int64_t pid = 0;
  if (pid_text != nullptr && (!absl::SimpleAtoi(pid_text, &pid) || pid != getpid())) {
    return absl::InfiniteDuration();
  }
  const char* text = std::getenv("WATCHDOG_USEC");
  if (text == nullptr) return absl::InfiniteDuration();
  std::int64_t microseconds = 0;
  if (!absl::SimpleAtoi(text, &microseconds) || microseconds <= 0) {
    log::Warn("server", "WATCHDOG_USEC is not a positive number; keep-alive messages are off",
              {{"value", text}});
    return absl::InfiniteDuration();
  }
  return absl::Microseconds(microseconds);
}

// A status is one line, since the protocol separates fields by newlines.
std::string StatusLine(absl::string_view status) {
  return absl::StrCat("STATUS=", absl::StrReplaceAll(status, {{"\n", " "}}));
}

}  // namespace

NotifyTarget NotifyTargetFromEnvironment() {
  const char* socket = std::getenv("NOTIFY_SOCKET");
  if (socket == nullptr || *socket == '\0') return {};
  if (!IsAddress(socket)) {
    log::Warn("server", "NOTIFY_SOCKET is neither a path nor @NAME; the supervisor is not notified",
              {{"value", socket}});
    return {};
  }
  return {.socket = socket, .watchdog = WatchdogFromEnvironment()};
}

Notifier::Notifier(const NotifyTarget& target)
    : interval_(target.watchdog / 2), address_(target.socket) {
  if (address_.empty()) return;
  if (address_[0] == '@') address_[0] = '\0';
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket_.fd < 0) {
    log::Warn("server", "cannot create a socket for the supervisor",
              {{"error", std::strerror(errno)}});
    return;
  }
  const timeval send_timeout = {.tv_sec = 1, .tv_usec = 0};
  setsockopt(socket_.fd, SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof(send_timeout));
}

void Notifier::Ready(absl::string_view status) {
  Send(absl::StrCat("READY=1\n", StatusLine(status)));
}

void Notifier::Status(absl::string_view status) {
  Send(StatusLine(status));
}

void Notifier::Reloading() {
  // The time tells the supervisor which READY=1 belongs to this reload.
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t microseconds = std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
  Send(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", microseconds));
}

void Notifier::Stopping() {
  Send(absl::StrCat("STOPPING=1\n", StatusLine("draining")));
}

void Notifier::KeepAlive(absl::Time now) {
  if (socket_.fd < 0 || interval_ == absl::InfiniteDuration()) return;
  {
    MutexLock lock(&mutex_);
    if (now - last_keep_alive_ < interval_) return;
    last_keep_alive_ = now;
  }
  Send("WATCHDOG=1");
}

void Notifier::Send(absl::string_view lines) {
  if (socket_.fd < 0) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.data(), address_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  ssize_t sent = 0;
  do {
    sent = sendto(socket_.fd, lines.data(), lines.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address), size);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    log::Warn("server", "cannot notify the supervisor",
              {{"message", lines}, {"error", std::strerror(errno)}});
  }
}

}  // namespace quire::server
