#pragma once

// Copies host memory, often a mapped file, to a device. The threads of a pool copy pieces of the
// source into pinned staging buffers, two per thread. A piece is transferred to the device while
// its thread stages the next one.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device_buffer.h"
#include "base/mutex.h"
#include "base/stream.h"
#include "base/thread_pool.h"

namespace quire::kernels {

// Place:      created by LoadModel while loading; PackLinearWeights gets the uploader from the
//             Backend.
// Invariants: pins at most 2 * threads * piece_bytes bytes.
// Threads:    one call at a time; the call uses the pool.
// Lifetime:   stream and pool outlive the uploader. Call Finish before the copied memory is used
//             outside of the stream.
class Uploader {
 public:
  // The default piece size in bytes. It is large enough to keep a link busy while the next piece is
  // staged.
  static constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

  // Returns RESOURCE_EXHAUSTED if pinned memory cannot be allocated. `total_bytes` is used in
  // progress lines; 0 means unknown. REQUIRES: a CUDA stream, piece_bytes > 0.
  static absl::StatusOr<std::unique_ptr<Uploader>> Create(const Stream& stream, ThreadPool* pool,
                                                          std::int64_t piece_bytes,
                                                          std::int64_t total_bytes);

  // Reads all host bytes before it returns. The bytes arrive on the device in stream order.
  absl::Status Copy(void* device_to, const void* host_from, std::int64_t bytes);

  // Waits until all copied bytes have arrived and logs the throughput.
  absl::Status Finish();

 private:
  struct Staging {
    std::byte* bytes = nullptr;
    Event sent;
  };

  Uploader(const Stream& stream, ThreadPool* pool, std::int64_t piece_bytes,
           std::int64_t total_bytes);

  // Stages and enqueues at most piece_bytes bytes, in the thread with the index `part`.
  absl::Status Send(int part, void* device_to, const void* host_from, std::int64_t bytes);
  void LogProgress(bool finished);

  const Stream& stream_;
  ThreadPool* const pool_;
  const std::int64_t piece_bytes_;
  const std::int64_t total_bytes_;
  DeviceBuffer pinned_;
  std::vector<Staging> stagings_;           // two per thread, adjacent
  std::vector<std::uint8_t> next_staging_;  // per thread: 0 or 1, the staging to fill next
  Mutex stream_mutex_;                      // serializes enqueues on stream_
  std::int64_t bytes_ = 0;
  absl::Time start_;
  absl::Time last_logged_;
};

}  // namespace quire::kernels
