#include "kernels/comm/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device.h"
#include "base/mutex.h"
#include "base/shared_library.h"
#include "base/status.h"
#include "base/stream.h"
#include "kernels/backend/backend.h"
#include "kernels/elementwise/sum_rows.h"

namespace quire::kernels {
namespace {

absl::Status NcclStatus(const NcclApi& api, NcclResult result, NcclComm comm,
                        absl::string_view call) {
  if (result == kNcclSuccess) return absl::OkStatus();
  const absl::string_view more = api.last_error(comm);
  return absl::InternalError(
      absl::StrCat("NCCL: ", call, ": ", api.error_string(result), more.empty() ? "" : ": ", more));
}

absl::Status CheckBackends(std::span<const Backend* const> backends) {
  if (backends.empty() || backends.size() > Communicator::kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the group has ", backends.size(), " ranks, it must have 1 to ", Communicator::kMaxRanks));
  }
  for (std::size_t rank = 0; rank < backends.size(); ++rank) {
    QUIRE_CHECK(backends[rank]->cuda() != nullptr);
    for (std::size_t other = 0; other < rank; ++other) {
      const std::int32_t ordinal = backends[rank]->device().ordinal;
      if (ordinal != backends[other]->device().ordinal) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("ranks ", other, " and ", rank, " are both on GPU ", ordinal));
    }
  }
  return absl::OkStatus();
}

}  // namespace

class NcclCommunicator::Group {
 public:
  Group(const NcclApi& api, std::uint32_t size) : api_(api), size_(size) {}

  const NcclApi& api() const { return api_; }
  std::uint32_t size() const { return size_; }

  // Returns the status of the first Abort, or OK.
  absl::Status status() const {
    const MutexLock lock(&mutex_);
    return aborted_;
  }

  void Abort(const absl::Status& why) {
    QUIRE_CHECK(!why.ok());
    const MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = why;
  }

  absl::Status BeginStep(std::uint32_t rank, std::uint32_t num_rows) {
    const MutexLock lock(&mutex_);
    if (!aborted_.ok()) return aborted_;
    const auto [slowest, fastest] = std::minmax_element(begun_.begin(), begun_.begin() + size_);
    const bool is_new = begun_[rank] == *fastest;
    if (is_new && *fastest - *slowest == kStepsAhead) {
      aborted_ = absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " is ", kStepsAhead + 1, " steps ahead of rank ",
                       slowest - begun_.begin(), ", the limit is ", kStepsAhead));
      return aborted_;
    }
    Step& step = steps_[begun_[rank]++ % kStepsAhead];
    if (is_new) step = {.num_rows = num_rows, .rank = rank};
    if (step.num_rows != num_rows) {
      aborted_ = absl::InvalidArgumentError(absl::StrCat("rank ", rank, " begins a step of ",
                                                         num_rows, " rows, but rank ", step.rank,
                                                         " began it with ", step.num_rows));
    }
    return aborted_;
  }

 private:
  // The number of rows of a step, and the first rank that began it.
  struct Step {
    std::uint32_t num_rows = 0;
    std::uint32_t rank = 0;
  };

  const NcclApi api_;
  const std::uint32_t size_;
  mutable Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  // Number of steps that each rank has begun.
  std::array<std::uint64_t, kMaxRanks> begun_ ABSL_GUARDED_BY(mutex_){};
  std::array<Step, kStepsAhead> steps_
      ABSL_GUARDED_BY(mutex_){};  // indexed by step number modulo kStepsAhead
};

absl::StatusOr<NcclApi> NcclCommunicator::Open(absl::string_view library) {
  QUIRE_ASSIGN_OR_RETURN(SharedLibrary opened,
                         SharedLibrary::Open("a model divided among GPUs", library));
  NcclApi api{};
  opened.Resolve("ncclCommInitAll", api.init_all);
  opened.Resolve("ncclAllGather", api.all_gather);
  opened.Resolve("ncclGroupStart", api.group_start);
  opened.Resolve("ncclGroupEnd", api.group_end);
  opened.Resolve("ncclCommGetAsyncError", api.async_error);
  opened.Resolve("ncclCommAbort", api.abort);
  opened.Resolve("ncclGetErrorString", api.error_string);
  opened.Resolve("ncclGetLastError", api.last_error);
  QUIRE_RETURN_IF_ERROR(opened.status());
  return api;
}

absl::StatusOr<NcclCommunicator::Ranks> NcclCommunicator::CreateGroup(
    std::span<const Backend* const> backends, const NcclApi& api) {
  QUIRE_RETURN_IF_ERROR(CheckBackends(backends));
  std::vector<int> devices;
  for (const Backend* backend : backends) devices.push_back(backend->device().ordinal);
  std::vector<NcclComm> comms(backends.size(), nullptr);
  QUIRE_RETURN_IF_ERROR(
      NcclStatus(api, api.init_all(comms.data(), static_cast<int>(comms.size()), devices.data()),
                 nullptr, "ncclCommInitAll"));
  const auto group = std::make_shared<Group>(api, static_cast<std::uint32_t>(backends.size()));
  Ranks ranks;
  for (std::uint32_t rank = 0; rank < group->size(); ++rank) {
    ranks.push_back(
        std::unique_ptr<NcclCommunicator>(new NcclCommunicator(group, backends[rank], rank)));
    ranks.back()->comm_ = comms[rank];
  }
  for (const auto& rank : ranks) {
    QUIRE_RETURN_IF_ERROR(UseDevice(rank->backend_->device()));
    QUIRE_ASSIGN_OR_RETURN(
        rank->parts_,
        DeviceBuffer::Allocate(MemoryKind::kDevice,
                               static_cast<std::int64_t>(group->size() * kChunk * sizeof(float))));
  }
  QUIRE_RETURN_IF_ERROR(Connect(ranks));
  return ranks;
}

absl::Status NcclCommunicator::Connect(const Ranks& ranks) {
  NcclCommunicator& first = *ranks.front();
  for (const std::size_t bytes : {sizeof(float), kChunk * sizeof(float)}) {
    absl::Status status = first.Check(first.group_->api().group_start(), "ncclGroupStart");
    for (const auto& rank : ranks) {
      auto* const all = static_cast<std::byte*>(rank->parts_.data());
      status.Update(
          rank->AllGather({all + rank->rank() * bytes, bytes}, {all, ranks.size() * bytes}));
    }
    status.Update(first.Check(first.group_->api().group_end(), "ncclGroupEnd"));
    QUIRE_RETURN_IF_ERROR(status);
  }
  for (const auto& rank : ranks) {
    QUIRE_RETURN_IF_ERROR(rank->backend_->cuda()->stream->Synchronize());
  }
  return absl::OkStatus();
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<Group> group, const Backend* backend,
                                   std::uint32_t rank)
    : Communicator(rank, group->size()), group_(std::move(group)), backend_(backend) {}

NcclCommunicator::~NcclCommunicator() {
  Abort(absl::UnavailableError(absl::StrCat("rank ", rank(), " of ", size(), " was destroyed")));
  AbortPending();
}

absl::Status NcclCommunicator::BeginStep(std::uint32_t num_rows) {
  return group_->BeginStep(rank(), num_rows);
}

absl::Status NcclCommunicator::AllReduceSum(std::span<float> values) {
  auto* const parts = static_cast<float*>(parts_.data());
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const std::span<float> chunk = values.subspan(begin, std::min(kChunk, values.size() - begin));
    QUIRE_RETURN_IF_ERROR(AllGather(
        std::as_bytes(chunk), std::as_writable_bytes(std::span(parts, size() * chunk.size()))));
    QUIRE_RETURN_IF_ERROR(SumRows(*backend_, {.x = parts,
                                              .sum = chunk.data(),
                                              .num_rows = size(),
                                              .columns = static_cast<std::uint32_t>(chunk.size()),
                                              .begins = true}));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AllGather(std::span<const std::byte> part,
                                         std::span<std::byte> all) {
  QUIRE_CHECK(all.size() == size() * part.size());
  QUIRE_RETURN_IF_ERROR(group_->status());
  return Check(group_->api().all_gather(part.data(), all.data(), part.size(), kNcclInt8, comm_,
                                        backend_->cuda()->stream->cuda()),
               "ncclAllGather");
}

absl::Status NcclCommunicator::Wait(const Event& event) {
  while (true) {
    const absl::StatusOr<bool> done = event.IsDone();
    if (!done.ok()) {
      Abort(done.status());
    } else if (*done && comm_ != nullptr) {
      return absl::OkStatus();
    }
    if (comm_ != nullptr) {
      NcclResult error = kNcclSuccess;
      const NcclResult query = group_->api().async_error(comm_, &error);
      Check(query != kNcclSuccess ? query : error, "asynchronous error").IgnoreError();
    }
    if (const absl::Status aborted = group_->status(); !aborted.ok()) {
      AbortPending();
      return aborted;
    }
    std::this_thread::yield();
  }
}

void NcclCommunicator::Abort(const absl::Status& why) {
  group_->Abort(why);
}

absl::Status NcclCommunicator::Check(NcclResult result, absl::string_view call) {
  const absl::Status status =
      NcclStatus(group_->api(), result, comm_, absl::StrCat(call, " of rank ", rank()));
  if (!status.ok()) Abort(status);
  return status;
}

void NcclCommunicator::AbortPending() {
  if (comm_ != nullptr) (void)group_->api().abort(std::exchange(comm_, nullptr));
}

}  // namespace quire::kernels
