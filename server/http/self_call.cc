#include "server/http/self_call.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include "absl/strings/string_view.h"

namespace quire::server {

namespace net = boost::asio;
using net::ip::tcp;
using Error = boost::system::error_code;

namespace {

constexpr absl::string_view kRequest =
    "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

}  // namespace

struct SelfCall::Attempt : std::enable_shared_from_this<SelfCall::Attempt> {
  explicit Attempt(const net::any_io_executor& executor) : socket(executor) {}

  void Run(const tcp::endpoint& to) {
    socket.async_connect(to, [self = shared_from_this()](Error error) {
      if (error) return;
      net::async_write(self->socket, net::buffer(kRequest.data(), kRequest.size()),
                       [self](Error, std::size_t) {});
      self->socket.async_read_some(net::buffer(self->answer), [self](Error failed, std::size_t) {
        if (failed != net::error::operation_aborted) self->reachability->RecordAnswer();
      });
    });
  }

  tcp::socket socket;
  std::array<char, 256> answer;
  std::shared_ptr<Reachability> reachability;
};

void SelfCall::Begin(tcp::endpoint to) {
  End();
  if (to.address().is_unspecified()) {
    to.address(to.protocol() == tcp::v6() ? net::ip::address(net::ip::address_v6::loopback())
                                          : net::ip::address_v4::loopback());
  }
  const auto attempt = std::make_shared<Attempt>(executor_);
  attempt->reachability = reachability_;
  attempt->Run(to);
  attempt_ = attempt;
}

void SelfCall::End() {
  const std::shared_ptr<Attempt> attempt = attempt_.lock();
  if (attempt == nullptr) return;
  Error ignored;
  attempt->socket.close(ignored);
}

}  // namespace quire::server
