#pragma once

// Makes Asio allocate its blocks for watched descriptors in rows, before they are needed.
//
// Asio never frees the small block of a watched descriptor; it keeps it for the next descriptor.
// Blocks that are allocated one by one during a flood of connections lie between the memory of
// those connections, one in nearly every page, and none of these pages can go back to the system
// afterwards.
//
// Place:      inside GrpcAcceptor.
// Invariants: Asio has blocks for kRow / 2 more descriptors than are counted, unless the process
//             had no descriptors for a row.
// Threads:    any.

#include <boost/asio/io_context.hpp>
#include <cstddef>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace quire::server {

class WatchedDescriptors {
 public:
  static constexpr std::size_t kRow = 128;

  explicit WatchedDescriptors(boost::asio::io_context* io) : io_(io) {}

  // Counts one more watched descriptor.
  void Add();
  // Counts one less.
  void Remove();

  absl::Status CheckIntegrity() const;
  // Returns the number of descriptors for which there are blocks.
  std::size_t num_blocks() const;

 private:
  std::size_t MakeRow();

  boost::asio::io_context* const io_;
  mutable Mutex mutex_;
  std::size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t num_blocks_ ABSL_GUARDED_BY(mutex_) = 0;  // at least
};

}  // namespace quire::server
