#pragma once

// Raises the limit of open files and derives the limit of connections from it.
//
// Place:   called once each by main and the daemon, before any listener opens.
// Threads: one thread.

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
// accordingly, at most to 65 536. Otherwise the kernel would double the table whenever it is full.
// In a multithreaded process, doubling waits for all processors, which delays a new connection by
// 20 to 40 ms. REQUIRES: the process has one thread, and logging has not started.
RaisedDescriptorLimit RaiseDescriptorLimit();

void LogDescriptorLimit(const RaisedDescriptorLimit& limit);

// Returns the number of connections that each of `num_listeners` gRPC listeners may have if the
// HTTP servers have up to `http_connections`. The result is `wanted`, or less if there are too few
// descriptors. A gRPC connection uses three. A lower result is logged, as a warning if the
// configuration sets `wanted`.
std::int32_t LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                  std::int32_t http_connections, bool wanted_is_default);

}  // namespace quire::server
