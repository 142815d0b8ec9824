#pragma once

// Sends a request from an HTTP server to its own address.
//
// Place:    inside HttpServer, on the server's threads. If these threads are blocked, the request
//           fails.
// Threads:  runs on the strand `executor`.
// Lifetime: pending operations own the objects that they use. End cancels the operations.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>

#include "server/api/reachability.h"

namespace quire::server {

class SelfCall {
 public:
  explicit SelfCall(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // Cancels the previous request and sends a new one. Any answer counts, because it shows that a
  // thread accepts and reads. A server with TLS answers by closing the connection.
  void Begin(boost::asio::ip::tcp::endpoint to);
  void End();
  bool is_reachable() const { return reachability_->is_reachable(); }

 private:
  struct Attempt;

  const boost::asio::any_io_executor executor_;
  const std::shared_ptr<Reachability> reachability_ = std::make_shared<Reachability>();
  std::weak_ptr<Attempt> attempt_;
};

}  // namespace quire::server
