#pragma once

// Opens connections of the process to its own listener, to check that the listener still serves.
//
// Place:      inside GrpcAcceptor.
// Invariants: the local address of a connection is registered before the listener can accept it.
// Threads:    one thread at a time calls Connect. RemoveIfOwn is thread-safe.

#include <boost/asio/generic/stream_protocol.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace quire::server {

class SelfConnector {
 public:
  using Endpoint = boost::asio::generic::stream_protocol::endpoint;

  // Returns a non-blocking socket that is connected to `listening`, the local address of a
  // listener. Returns UNAVAILABLE if no descriptor is free or the connection takes more than a
  // second.
  absl::StatusOr<int> Connect(const Endpoint& listening);
  // Returns true if `remote`, the remote address of an accepted connection, belongs to a connection
  // that Connect has opened. Forgets the address.
  bool RemoveIfOwn(const Endpoint& remote);

 private:
  Mutex mutex_;
  std::vector<std::string> not_accepted_ ABSL_GUARDED_BY(mutex_);  // local addresses, as bytes
};

}  // namespace quire::server
