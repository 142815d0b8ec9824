#pragma once

// A call of an HTTP server to itself, through the front door.
//
// Place:    inside HttpServer; on its own threads, so that no answer comes where they stand still.
// Threads:  one at a time, in the sequence of `executor`.
// Lifetime: its operations keep what they need; End cancels them.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>

#include "server/api/reachability.h"

namespace quire::server {

class SelfCall {
 public:
  explicit SelfCall(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // Ends the call before it. Any answer counts, an end of the connection too, which is that of a
  // server that wants TLS: what it takes is a thread that accepts and reads.
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
