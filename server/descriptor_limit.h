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

// How many connections each of `num_listeners` gRPC listeners may have beside `http_connections` of
// the HTTP servers: `wanted`, or what descriptors allow, which is logged.
std::int32_t LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                  std::int32_t http_connections);

}  // namespace quire::server
