#pragma once

// The clients behind the socket pairs that gRPC sees as its connections.
//
// GrpcAcceptor terminates TLS and passes one end of a socket pair to gRPC, so gRPC knows neither
// the address nor the certificate of the client. It knows the name of the other end
// (ServerContext::peer()), and this table maps that name to the client.
//
// Place:      written by GrpcAcceptor, read by the handlers through HandlerContext.
// Invariants: a name is in the table while its connection is open, and belongs to one connection.
// Threads:    thread-safe.
// Lifetime:   outlives listeners and handlers.

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace quire::server {

struct Peer {
  std::string address = {};           // "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711" or "unix:"
  std::string certificate_name = {};  // common name of the verified client certificate
  bool is_local_socket = false;       // the client uses a Unix socket
};

class PeerTable {
 public:
  void Add(const std::string& name, Peer peer);
  void Remove(const std::string& name);
  // Returns an empty Peer for an unknown name, which means that the connection has just ended.
  Peer Find(absl::string_view name) const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::server
