#pragma once

// Limits of open files and connections.
//
// Place:   called once each by main and the daemon, before any listener opens.
// Threads: one.

#include <cstdint>

namespace quire::server {

struct RaisedDescriptorLimit {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  // Values of errno, 0 on success.
  int read_error = 0;
  int raise_error = 0;
  int table_error = 0;
};

// Raises the soft limit of open files to the hard limit, and enlarges the kernel's descriptor table
// accordingly, at most to 65 536. The kernel doubles a full table, and in a multithreaded process
// it then waits for all processors: the first burst of connections would delay a new one by 20 to
// 40 ms. So this is called while the process has one thread, before logging starts.
RaisedDescriptorLimit RaiseDescriptorLimit();

void LogDescriptorLimit(const RaisedDescriptorLimit& limit);

struct GrpcConnectionLimit {
  std::int32_t max_connections = 0;
  std::int64_t max_descriptors = 0;  // for all connections
};

// Returns the limits of each of `num_listeners` gRPC listeners, next to `http_connections` of the
// HTTP servers: a share of the descriptors, and `wanted` connections. Logs a warning if the
// descriptors suffice only for fewer connections.
GrpcConnectionLimit LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                         std::int32_t http_connections);

}  // namespace quire::server
