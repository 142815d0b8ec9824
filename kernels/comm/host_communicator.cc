#include "kernels/comm/host_communicator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/stream.h"

namespace quire::kernels {
namespace {

// The arguments of one rank for an operation.
struct Contribution {
  absl::string_view operation;
  std::span<const std::byte> bytes;
};

using Contributions = std::array<Contribution, Communicator::kMaxRanks>;

}  // namespace

// Synchronizes the ranks. An operation is a round in two halves:
//
//   Arrive          each rank stores its contribution and waits for all others or for an abort
//   FinishReading   each rank has read all contributions and waits for the other ranks
//
// Abort does not interrupt a round in which all ranks have arrived, because ranks are reading each
// other's memory.
class HostCommunicator::Group {
 public:
  explicit Group(std::uint32_t size) : size_(size) {}

  std::uint32_t size() const { return size_; }

  // Returns the contributions of all ranks. They may be read until FinishReading.
  absl::StatusOr<Contributions> Arrive(std::uint32_t rank, const Contribution& contribution) {
    const MutexLock lock(&mutex_);
    if (!abort_status_.ok()) return abort_status_;
    contributions_[rank] = contribution;
    const std::uint64_t round = rounds_begun_ + 1;
    if (++ranks_arrived_ < size_) {
      while (rounds_begun_ < round && abort_status_.ok()) changed_.Wait(&mutex_);
    } else if (const absl::Status same_call = CheckSameCall(); !same_call.ok()) {
      abort_status_ = same_call;
      changed_.NotifyAll();
    } else {
      rounds_begun_ = round;
      ranks_arrived_ = 0;
      ranks_reading_ = size_;
      changed_.NotifyAll();
    }
    if (rounds_begun_ < round) return abort_status_;
    return contributions_;
  }

  // Waits until no rank reads the contributions any longer. REQUIRES: Arrive returned OK.
  void FinishReading() {
    const MutexLock lock(&mutex_);
    const std::uint64_t round = rounds_begun_;
    if (--ranks_reading_ == 0) {
      rounds_finished_ = round;
      changed_.NotifyAll();
    }
    while (rounds_finished_ < round) changed_.Wait(&mutex_);
  }

  void Abort(const absl::Status& why) {
    QUIRE_CHECK(!why.ok());
    const MutexLock lock(&mutex_);
    if (!abort_status_.ok()) return;
    abort_status_ = why;
    changed_.NotifyAll();
  }

  absl::Status CheckIntegrity() const {
    const MutexLock lock(&mutex_);
    // ranks_arrived_ stays at size_ only if the contributions differ, which aborts the group.
    const bool arrivals_are_valid =
        ranks_arrived_ < size_ || (ranks_arrived_ == size_ && !abort_status_.ok());
    const bool is_between_rounds = rounds_begun_ == rounds_finished_ && ranks_reading_ == 0;
    const bool is_inside_round = rounds_begun_ == rounds_finished_ + 1 && ranks_reading_ > 0 &&
                                 ranks_reading_ <= size_ && ranks_arrived_ == 0;
    if (arrivals_are_valid && (is_between_rounds || is_inside_round)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("group of ", size_, " ranks: ", ranks_arrived_,
                                            " arrived, ", ranks_reading_, " reading, rounds begun ",
                                            rounds_begun_, ", finished ", rounds_finished_));
  }

 private:
  absl::Status CheckSameCall() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Contribution& first = contributions_[0];
    for (std::uint32_t rank = 1; rank < size_; ++rank) {
      const Contribution& other = contributions_[rank];
      if (other.operation == first.operation && other.bytes.size() == first.bytes.size()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " calls ", other.operation, " with ", other.bytes.size(),
                       " bytes, rank 0 calls ", first.operation, " with ", first.bytes.size()));
    }
    return absl::OkStatus();
  }

  const std::uint32_t size_;
  mutable Mutex mutex_;
  CondVar changed_;
  Contributions contributions_ ABSL_GUARDED_BY(mutex_);
  std::uint32_t ranks_arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint32_t ranks_reading_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t rounds_begun_ ABSL_GUARDED_BY(mutex_) = 0;  // all ranks arrived
  // All ranks have finished reading.
  std::uint64_t rounds_finished_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status abort_status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::vector<std::unique_ptr<HostCommunicator>>> HostCommunicator::CreateGroup(
    std::uint32_t size) {
  if (size < 1 || size > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group has ", size, " ranks, it must have 1 to ", kMaxRanks));
  }
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<HostCommunicator>> ranks;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    ranks.push_back(std::unique_ptr<HostCommunicator>(new HostCommunicator(group, rank)));
  }
  return ranks;
}

HostCommunicator::HostCommunicator(std::shared_ptr<Group> group, std::uint32_t rank)
    : Communicator(rank, group->size()), group_(std::move(group)) {}

HostCommunicator::~HostCommunicator() {
  group_->Abort(
      absl::UnavailableError(absl::StrCat("rank ", rank(), " of ", size(), " was destroyed")));
}

absl::Status HostCommunicator::Wait(const Event& event) {
  return event.Synchronize();
}

// Every rank adds up all elements. Dividing the additions among the ranks would need one more
// synchronization, which would cost more than it saves within one machine.
absl::Status HostCommunicator::AllReduceSum(std::span<float> values) {
  Reserve(values.size());
  QUIRE_ASSIGN_OR_RETURN(const Contributions parts,
                         group_->Arrive(rank(), {"AllReduceSum", std::as_bytes(values)}));
  std::fill_n(sum_.begin(), values.size(), 0.0f);
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    const auto* const added = reinterpret_cast<const float*>(parts[rank].bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i) sum_[i] += added[i];
  }
  group_->FinishReading();
  std::copy_n(sum_.begin(), values.size(), values.begin());
  return absl::OkStatus();
}

absl::Status HostCommunicator::AllGather(std::span<const std::byte> part,
                                         std::span<std::byte> all) {
  QUIRE_CHECK(all.size() == size() * part.size());
  QUIRE_ASSIGN_OR_RETURN(const Contributions parts, group_->Arrive(rank(), {"AllGather", part}));
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    std::copy(parts[rank].bytes.begin(), parts[rank].bytes.end(),
              all.begin() + static_cast<std::ptrdiff_t>(rank * part.size()));
  }
  group_->FinishReading();
  return absl::OkStatus();
}

void HostCommunicator::Reserve(std::size_t elements) {
  if (elements > sum_.size()) sum_.resize(elements);
}

void HostCommunicator::Abort(const absl::Status& why) {
  group_->Abort(why);
}

absl::Status HostCommunicator::CheckIntegrity() const {
  return group_->CheckIntegrity();
}

}  // namespace quire::kernels
