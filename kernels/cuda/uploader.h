#pragma once

// Host memory, often a mapped file, to a device: the threads of a pool copy pieces into pinned
// staging buffers, two per thread, and each piece leaves for the device while the next one is
// staged.

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

// Place:      made by LoadModel for the time of loading, lent to PackLinearWeights by the Backend.
// Invariants: bytes arrive unchanged; at most 2 * threads * piece_bytes of pinned memory.
// Threads:    one at a time; uses the pool.
// Lifetime:   stream and pool outlive it. Finish before what was copied is used elsewhere than on
//             the stream.
class Uploader {
 public:
  // The usual piece: large enough to keep a link busy while the next one is staged.
  static constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

  // Returns RESOURCE_EXHAUSTED without pinned memory. `total_bytes` is for the progress line, 0
  // when unknown.
  // REQUIRES: a CUDA stream, piece_bytes > 0.
  static absl::StatusOr<std::unique_ptr<Uploader>> Create(const Stream& stream, ThreadPool* pool,
                                                          std::int64_t piece_bytes,
                                                          std::int64_t total_bytes);

  // The host bytes are read before it returns; they arrive in the order of the stream.
  absl::Status Copy(void* device_to, const void* host_from, std::int64_t bytes);

  // Waits until everything has arrived, and logs how fast it was.
  absl::Status Finish();

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Staging {
    std::byte* bytes = nullptr;
    Event sent;
  };

  Uploader(const Stream& stream, ThreadPool* pool, std::int64_t piece_bytes,
           std::int64_t total_bytes);

  // Stages at most piece_bytes and enqueues them, from thread `part`.
  absl::Status Send(int part, void* device_to, const void* host_from, std::int64_t bytes);
  void LogProgress(bool finished);

  const Stream& stream_;
  ThreadPool* const pool_;
  const std::int64_t piece_bytes_;
  const std::int64_t total_bytes_;
  DeviceBuffer pinned_;
  std::vector<Staging> stagings_;   // two per thread, side by side
  std::vector<std::uint8_t> turn_;  // by thread: which of its two comes next
  Mutex stream_mutex_;              // enqueues on stream_
  std::int64_t bytes_ = 0;
  absl::Time start_;
  absl::Time last_line_;
};

}  // namespace quire::kernels
