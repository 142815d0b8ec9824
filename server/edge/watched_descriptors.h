#pragma once

// How many descriptors of connections Asio watches, and memory for more of them beforehand.
//
// Asio keeps a small block for each descriptor that it has ever watched at once, for the next one.
// Blocks that come into being one by one during a flood lie between what its connections hold, one
// in nearly every page, and none of these pages can go back to the system afterwards. So they are
// made many in a row, before they are needed.
//
// Place:      inside GrpcAcceptor.
// Invariants: Asio has blocks for kRow / 2 more descriptors than are counted, as far as the process
//             may have descriptors for a row at once.
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

  // One more is watched.
  void Add();
  // One has been closed.
  void Remove();

  // That no more were removed than added.
  absl::Status CheckIntegrity() const;
  // For which there are blocks, as far as is known.
  std::size_t num_blocks() const;

 private:
  std::size_t MakeRow();

  boost::asio::io_context* const io_;
  mutable Mutex mutex_;
  std::size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t num_blocks_ ABSL_GUARDED_BY(mutex_) = 0;  // at least
};

}  // namespace quire::server
