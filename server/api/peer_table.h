#pragma once

// Peers of gRPC connections, by socket name.
//
// GrpcAcceptor (grpc/grpc_acceptor.h) terminates TLS and passes gRPC one end of a socket pair, so
// gRPC knows neither the client's address nor its certificate. This table maps the name of the
// other end (ServerContext::peer()) to both.
//
// Place:      written by GrpcAcceptor, read by the handlers through HandlerContext.
// Invariants: a name is in the table while its connection is open, and belongs to one connection.
// Threads:    every method from any.
// Lifetime:   outlives listeners and handlers.

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace quire::server {

struct Peer {
  std::string address = {};           // "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711" or "unix:"
  std::string certificate_name = {};  // common name of the verified client certificate
  bool is_local_socket = false;       // a Unix socket
};

class PeerTable {
 public:
  void Add(const std::string& name, Peer peer);
  void Remove(const std::string& name);
  // Returns an empty Peer if the name is not in the table, because its connection has just closed.
  Peer Find(absl::string_view name) const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::server
