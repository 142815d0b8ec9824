#pragma once

// How many files and connections this process may have open.
//
// Place:   called by main and the daemon once each, before anything listens.
// Threads: one.

#include <cstdint>

namespace quire::server {

struct RaisedDescriptorLimit {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  // Errors of the system, 0 without one.
  int read_error = 0;
  int raise_error = 0;
  int table_error = 0;
};

// Raises the soft limit of open files to the hard one, which the system's defaults leave far above
// it, and enlarges the system's table of them to what they may need, 65 536 at most. A table that
// is full is doubled, and in a process of several threads the system waits for all processors
// meanwhile: the first flood of connections would keep a new one waiting for 20 to 40 ms. So this
// is called while the process has one thread, before there is a log.
RaisedDescriptorLimit RaiseDescriptorLimit();

void LogDescriptorLimit(const RaisedDescriptorLimit& limit);

// Returns the number of connections that each of `num_listeners` gRPC listeners may have beside
// `http_connections` of the HTTP servers: `wanted`, or fewer, which is logged, if its share of the
// descriptors does not suffice. A gRPC connection takes three.
std::int32_t LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                  std::int32_t http_connections);

}  // namespace quire::server
