#pragma once

// Makes Asio allocate, in batches and before they are needed, the memory blocks of the descriptors
// that its epoll reactor watches.
//
// Asio never frees the small block of a descriptor, but reuses it for another one. Blocks that are
// allocated one by one during a flood of connections fragment the heap. Nearly every page then
// contains such a block between the memory of connections, and cannot be returned to the kernel
// afterwards.
//
// Place:      inside GrpcAcceptor.
// Invariants: after each Add, Asio has blocks for at least kBatchSize / 2 more descriptors than are
//             counted. Asio may have fewer blocks if the process has reached its limit of open
//             descriptors, since allocating a batch opens kBatchSize descriptors.
// Threads:    any.

#include <boost/asio/io_context.hpp>
#include <cstddef>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace quire::server {

class WatchedDescriptors {
 public:
  static constexpr std::size_t kBatchSize = 128;

  explicit WatchedDescriptors(boost::asio::io_context* io) : io_(io) {}

  // Counts one more watched descriptor, and allocates a batch of blocks if few are left.
  void Add();
  // Counts one descriptor less.
  void Remove();

  absl::Status CheckIntegrity() const;
  // Returns the number of descriptors for which there are blocks.
  std::size_t num_blocks() const;

 private:
  std::size_t AllocateBatch();

  boost::asio::io_context* const io_;
  mutable Mutex mutex_;
  std::size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t num_blocks_ ABSL_GUARDED_BY(mutex_) = 0;  // lower bound
};

}  // namespace quire::server
