#include "server/edge/silent_connections.h"

#include <sys/socket.h>

#include <boost/asio/error.hpp>

#include "base/check.h"

namespace quire::server {
namespace {

// False: it has ended, and nothing is left to serve.
bool HasBytes(int fd) {
  char byte = 0;
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

}  // namespace

void SilentConnections::Add(std::uint64_t number, Accepted accepted) {
  const auto [added, is_new] = clients_.try_emplace(number, std::move(accepted));
  QUIRE_CHECK(is_new);
  added->second.socket.async_wait(StreamSocket::wait_read,
                                  [this, number](const boost::system::error_code& error) {
                                    if (error == boost::asio::error::operation_aborted) return;
                                    waiting_.push_back(number);
                                    HandOn();
                                  });
}

// Some have ended since they spoke.
void SilentConnections::HandOn() {
  while (!is_handing_on_ && !waiting_.empty()) {
    const std::uint64_t number = waiting_.front();
    waiting_.pop_front();
    const auto found = clients_.find(number);
    if (found == clients_.end()) continue;
    if (!HasBytes(found->second.socket.native_handle())) {
      End(number);
      continue;
    }
    Accepted accepted = std::move(found->second);
    clients_.erase(found);
    is_handing_on_ = true;
    spoke_(number, std::move(accepted));
  }
}

void SilentConnections::GoOn() {
  is_handing_on_ = false;
  HandOn();
}

const Accepted* SilentConnections::Find(std::uint64_t number) const {
  const auto found = clients_.find(number);
  return found == clients_.end() ? nullptr : &found->second;
}

std::optional<std::uint64_t> SilentConnections::oldest() const {
  if (clients_.empty()) return std::nullopt;
  return clients_.begin()->first;
}

void SilentConnections::End(std::uint64_t number) {
  QUIRE_CHECK(clients_.erase(number) == 1);
  ended_(number);
}

absl::Status SilentConnections::CheckIntegrity() const {
  if (is_handing_on_ || waiting_.empty()) return absl::OkStatus();
  return absl::InternalError("clients that have spoken wait although none is being handed on");
}

}  // namespace quire::server
