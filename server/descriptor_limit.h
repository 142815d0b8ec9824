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

// Returns the number of connections that each of `num_listeners` gRPC listeners may have beside
// `http_connections` of the HTTP servers: `wanted`, or fewer, which is logged, if its share of the
// descriptors does not suffice. A gRPC connection takes three.
std::int32_t LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                  std::int32_t http_connections);

}  // namespace quire::server
