#include "kernels/cuda/uploader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"

namespace quire::kernels {

Uploader::Uploader(const Stream& stream, ThreadPool* pool, std::int64_t piece_bytes,
                   std::int64_t total_bytes)
    : stream_(stream),
      pool_(pool),
      piece_bytes_(piece_bytes),
      total_bytes_(total_bytes),
      next_staging_(static_cast<std::size_t>(pool->size()), 0),
      start_(MonotonicNow()),
      last_logged_(start_) {}

absl::StatusOr<std::unique_ptr<Uploader>> Uploader::Create(const Stream& stream, ThreadPool* pool,
                                                           std::int64_t piece_bytes,
                                                           std::int64_t total_bytes) {
  QUIRE_CHECK(!stream.device().is_cpu() && piece_bytes > 0);
  std::unique_ptr<Uploader> uploader(new Uploader(stream, pool, piece_bytes, total_bytes));
  const std::int64_t count = 2 * std::int64_t{pool->size()};
  QUIRE_ASSIGN_OR_RETURN(uploader->pinned_,
                         DeviceBuffer::Allocate(MemoryKind::kPinned, count * piece_bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    QUIRE_ASSIGN_OR_RETURN(Event sent, Event::Create(stream.device()));
    uploader->stagings_.push_back(
        {static_cast<std::byte*>(uploader->pinned_.data()) + i * piece_bytes, std::move(sent)});
  }
  return uploader;
}

absl::Status Uploader::Send(int part, void* device_to, const void* host_from, std::int64_t bytes) {
  const auto index = static_cast<std::size_t>(part);
  Staging& staging = stagings_[2 * index + next_staging_[index]];
  next_staging_[index] ^= 1;
  QUIRE_RETURN_IF_ERROR(staging.sent.Synchronize());
  std::memcpy(staging.bytes, host_from, static_cast<std::size_t>(bytes));
  const MutexLock lock(&stream_mutex_);
  QUIRE_RETURN_IF_ERROR(stream_.Copy(device_to, staging.bytes, bytes));
  return staging.sent.Record(stream_);
}

absl::Status Uploader::Copy(void* device_to, const void* host_from, std::int64_t bytes) {
  const std::int64_t pieces = (bytes + piece_bytes_ - 1) / piece_bytes_;
  const auto send = [&](int part, std::int64_t piece) {
    const std::int64_t begin = piece * piece_bytes_;
    return Send(part, static_cast<std::byte*>(device_to) + begin,
                static_cast<const std::byte*>(host_from) + begin,
                std::min(piece_bytes_, bytes - begin));
  };
  if (pieces <= 1) {
    if (pieces == 1) QUIRE_RETURN_IF_ERROR(send(0, 0));
  } else {
    std::atomic<std::int64_t> next{0};
    std::vector<absl::Status> errors(static_cast<std::size_t>(pool_->size()));
    pool_->Run([&](int part) {
      absl::Status& error = errors[static_cast<std::size_t>(part)];
      error = UseDevice(stream_.device());
      for (std::int64_t piece = next.fetch_add(1); error.ok() && piece < pieces;
           piece = next.fetch_add(1)) {
        error = send(part, piece);
      }
    });
    for (const absl::Status& error : errors) QUIRE_RETURN_IF_ERROR(error);
  }
  bytes_ += bytes;
  LogProgress(false);
  return absl::OkStatus();
}

void Uploader::LogProgress(bool finished) {
  constexpr absl::Duration kLineInterval = absl::Seconds(2);
  const absl::Time now = MonotonicNow();
  if (!finished && now - last_logged_ < kLineInterval) return;
  last_logged_ = now;
  const double seconds = absl::ToDoubleSeconds(now - start_);
  log::Info("model", finished ? "weights uploaded" : "uploading weights",
            {{"bytes", bytes_},
             {"total_bytes", total_bytes_},
             {"seconds", seconds},
             {"gb_per_second", seconds > 0 ? static_cast<double>(bytes_) / seconds / 1e9 : 0.0}});
}

absl::Status Uploader::Finish() {
  QUIRE_RETURN_IF_ERROR(stream_.Synchronize());
  LogProgress(true);
  return absl::OkStatus();
}

}  // namespace quire::kernels
