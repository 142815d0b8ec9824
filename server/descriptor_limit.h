#pragma once

// Raises the limit of open files and derives the limit of connections from it.
//
// Place:   main raises the limit, and Listeners derives the limit of connections before a listener
//          opens.
// Threads: one thread.

#include <cstdint>

namespace quire::server {

struct RaisedDescriptorLimit {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  // The values of errno after reading the limit, raising it, and enlarging the table; 0 on success.
  int read_error = 0;
  int raise_error = 0;
  int table_error = 0;
};

// Raises the soft limit of open files to the hard limit, and enlarges the kernel's descriptor table
// accordingly, at most to 65 536. Without that, the kernel would double the table whenever it is
// full. In a multithreaded process, doubling waits for all processors, which delays a new
// connection by 20 to 40 ms. REQUIRES: the process has one thread, and logging has not started.
RaisedDescriptorLimit RaiseDescriptorLimit();

void LogDescriptorLimit(const RaisedDescriptorLimit& limit);

// Returns the number of connections that each of `num_listeners` gRPC listeners may have if the
// HTTP servers have up to `http_connections`. A gRPC connection uses three descriptors. Returns
// `wanted` if the descriptors suffice, otherwise the number for which they suffice, but at least
// 16. Logs a result below `wanted`, as a warning if `wanted_is_default` is false.
std::int32_t LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                  std::int32_t http_connections, bool wanted_is_default);

}  // namespace quire::server
