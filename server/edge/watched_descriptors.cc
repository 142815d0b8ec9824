#include "server/edge/watched_descriptors.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <exception>
#include <vector>

namespace quire::server {

void WatchedDescriptors::Add() {
  MutexLock lock(&mutex_);
  ++count_;
  if (count_ + kBatchSize / 2 <= num_blocks_) return;
  num_blocks_ = std::max(num_blocks_, count_ + AllocateBatch());
}

void WatchedDescriptors::Remove() {
  MutexLock lock(&mutex_);
  --count_;
}

absl::Status WatchedDescriptors::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  if (count_ <= num_blocks_) return absl::OkStatus();
  return absl::InternalError("more descriptors are counted than there were blocks for");
}

std::size_t WatchedDescriptors::num_blocks() const {
  MutexLock lock(&mutex_);
  return num_blocks_;
}

// Makes Asio watch kBatchSize copies of a descriptor that never becomes ready, then stop watching
// them. Returns the number of copies.
std::size_t WatchedDescriptors::AllocateBatch() {
  using Descriptor = boost::asio::posix::stream_descriptor;
  std::vector<Descriptor> batch;
  try {
    batch.reserve(kBatchSize);
    Descriptor first(*io_, eventfd(0, EFD_CLOEXEC));  // throws if there is no descriptor
    while (batch.size() < kBatchSize) {
      const int copy = fcntl(first.native_handle(), F_DUPFD_CLOEXEC, 0);
      if (copy < 0) break;
      batch.emplace_back(*io_, copy);
    }
  } catch (const std::exception&) {  // no descriptor is free; the next call may succeed
  }
  return batch.size();
}

}  // namespace quire::server
