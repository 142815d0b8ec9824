#pragma once

// Makes Asio allocate its memory blocks for watched descriptors in batches, before they are needed.
//
// Asio never frees the small memory block of a watched descriptor, but reuses it for another one.
// Blocks that are allocated one by one during a flood of connections lie between the memory of
// those connections, one in nearly every page. None of these pages can be returned to the kernel
// afterwards.
//
// Place:      inside GrpcAcceptor.
// Invariants: Asio has blocks for kBatchSize / 2 more descriptors than are counted, unless the
//             process had too few descriptors for a batch.
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
  // Counts one less.
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
