#pragma once

// How many files and connections this process may have open.
//
// Place:   called by main and the daemon once each, before anything listens.
// Threads: one.

#include <cstdint>

namespace quire::server {

// Raises the soft limit of open files to the hard one, which the system's defaults leave far above
// it, and logs both.
void RaiseDescriptorLimit();

struct GrpcConnectionLimit {
  std::int32_t max_connections = 0;
  std::int64_t max_descriptors = 0;  // of all of them
};

// What each of `num_listeners` gRPC listeners may have beside `http_connections` of the HTTP
// servers: its share of the descriptors, and `wanted` connections, or as many as have one
// descriptor each, which is logged.
GrpcConnectionLimit LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                         std::int32_t http_connections);

}  // namespace quire::server
