#include "tests/kernels/emulated_nccl.h"

#include <driver_types.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "base/device.h"
#include "tests/cuda_emulator/emulator.h"

namespace quire::kernels {
namespace {

struct Gather {
  const void* part = nullptr;
  void* all = nullptr;
  std::size_t bytes = 0;
};

struct Rank {
  bool arrived = false;  // waits at a gather
  bool has_all = false;  // its gather is complete
  Gather gather;
  bool aborted = false;
};

// Shared by its communicators and the operations on their streams.
struct Clique {
  std::mutex mutex;
  std::vector<Rank> ranks;
};

}  // namespace
}  // namespace quire::kernels

// The struct has NCCL's name.
struct ncclComm {
  std::shared_ptr<quire::kernels::Clique> clique;
  int rank;
};

namespace quire::kernels {
namespace {

struct Library {
  std::mutex mutex;
  std::vector<NcclFault> faults;
  std::set<NcclComm> comms;
  std::string last_error;
};
Library library;

NcclResult TakeFault(const std::string& function, int rank) {
  const std::lock_guard<std::mutex> lock(library.mutex);
  const auto fault =
      std::find_if(library.faults.begin(), library.faults.end(),
                   [&](const NcclFault& f) { return f.function == function && f.rank == rank; });
  if (fault == library.faults.end()) return kNcclSuccess;
  const NcclFault taken = *fault;
  library.faults.erase(fault);
  library.last_error = taken.detail;
  return taken.result;
}

bool IsAlive(NcclComm comm) {
  const std::lock_guard<std::mutex> lock(library.mutex);
  return library.comms.contains(comm);
}

NcclResult InitAll(NcclComm* comms, int num_devices, const int* devices) {
  if (const NcclResult fault = TakeFault("ncclCommInitAll", 0); fault != kNcclSuccess) return fault;
  EXPECT_EQ(std::set<int>(devices, devices + num_devices).size(),
            static_cast<std::size_t>(num_devices));
  const auto clique = std::make_shared<Clique>();
  clique->ranks.resize(static_cast<std::size_t>(num_devices));
  const std::lock_guard<std::mutex> lock(library.mutex);
  for (int rank = 0; rank < num_devices; ++rank) {
    comms[rank] = *library.comms.insert(new ncclComm{.clique = clique, .rank = rank}).first;
  }
  return kNcclSuccess;
}

// Gives every rank all parts, starting with the last rank, since the order must not matter.
void Deliver(Clique* clique) {
  for (auto to = clique->ranks.rbegin(); to != clique->ranks.rend(); ++to) {
    auto* all = static_cast<std::byte*>(to->gather.all);
    for (const Rank& from : clique->ranks) {
      EXPECT_EQ(from.gather.bytes, to->gather.bytes) << "ranks gather different sizes";
      std::memmove(all, from.gather.part, from.gather.bytes);
      all += from.gather.bytes;
    }
    to->has_all = true;
  }
}

// Runs when a rank's stream has reached the operation.
cudaError_t Meet(Clique* clique, std::size_t rank, const Gather& gather) {
  const std::lock_guard<std::mutex> lock(clique->mutex);
  Rank& self = clique->ranks[rank];
  if (self.aborted) return cudaSuccess;
  if (!self.arrived) {
    self.arrived = true;
    self.gather = gather;
    const bool all = std::all_of(clique->ranks.begin(), clique->ranks.end(),
                                 [](const Rank& r) { return r.arrived && !r.has_all; });
    if (all) Deliver(clique);
  }
  if (!self.has_all) return cudaErrorNotReady;
  self.arrived = false;
  self.has_all = false;
  return cudaSuccess;
}

NcclResult AllGather(const void* part, void* all, std::size_t bytes, int type, NcclComm comm,
                     CUstream_st* stream) {
  EXPECT_TRUE(IsAlive(comm)) << "a gather after its communicator was aborted";
  EXPECT_EQ(type, kNcclInt8);
  if (const NcclResult fault = TakeFault("ncclAllGather", comm->rank); fault != kNcclSuccess) {
    return fault;
  }
  const auto rank = static_cast<std::size_t>(comm->rank);
  const cudaError_t error = cuda_emulator::EnqueueOperation(
      stream, [clique = comm->clique, rank, gather = Gather{part, all, bytes}] {
        return Meet(clique.get(), rank, gather);
      });
  return error == cudaSuccess ? kNcclSuccess : kNcclUnhandledCudaError;
}

NcclResult Group() {
  return kNcclSuccess;
}

NcclResult AsyncError(NcclComm comm, NcclResult* error) {
  EXPECT_TRUE(IsAlive(comm));
  *error = TakeFault("ncclCommGetAsyncError", comm->rank);
  return kNcclSuccess;
}

NcclResult Abort(NcclComm comm) {
  {
    const std::lock_guard<std::mutex> lock(library.mutex);
    EXPECT_EQ(library.comms.erase(comm), 1u) << "a communicator ends twice";
  }
  {
    const std::lock_guard<std::mutex> lock(comm->clique->mutex);
    Rank& self = comm->clique->ranks[static_cast<std::size_t>(comm->rank)];
    self.aborted = true;
    self.arrived = false;  // its memory may be released from now on
  }
  delete comm;
  return kNcclSuccess;
}

const char* ErrorString(NcclResult result) {
  switch (result) {
    case kNcclUnhandledCudaError:
      return "unhandled cuda error";
    case kNcclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

const char* LastError(NcclComm) {
  const std::lock_guard<std::mutex> lock(library.mutex);
  return library.last_error.c_str();
}

}  // namespace

NcclApi EmulatedNccl() {
  return {.init_all = InitAll,
          .all_gather = AllGather,
          .group_start = Group,
          .group_end = Group,
          .async_error = AsyncError,
          .abort = Abort,
          .error_string = ErrorString,
          .last_error = LastError};
}

void InjectNcclFault(const NcclFault& fault) {
  const std::lock_guard<std::mutex> lock(library.mutex);
  library.faults.push_back(fault);
}

std::uint32_t NumNcclComms() {
  const std::lock_guard<std::mutex> lock(library.mutex);
  return static_cast<std::uint32_t>(library.comms.size());
}

EmulatedRanks::EmulatedRanks(std::uint32_t size) {
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  options.num_devices = static_cast<int>(size);
  cuda_emulator::SetOptions(options);
  std::vector<const Backend*> backends;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    auto gpu = std::make_unique<Gpu>();
    gpu->pool = std::make_unique<ThreadPool>(1);
    auto device = OpenCudaDevice(static_cast<std::int32_t>(rank));
    EXPECT_TRUE(device.ok()) << device.status();
    auto stream = Stream::Create(*device);
    EXPECT_TRUE(stream.ok()) << stream.status();
    gpu->stream = std::make_unique<Stream>(*std::move(stream));
    auto backend = Backend::CreateCuda(*gpu->stream, Determinism::kBatchInvariant, gpu->pool.get());
    EXPECT_TRUE(backend.ok()) << backend.status();
    gpu->backend = std::make_unique<Backend>(*std::move(backend));
    backends.push_back(gpu->backend.get());
    gpus_.push_back(std::move(gpu));
  }
  auto comms = NcclCommunicator::CreateGroup(backends, EmulatedNccl());
  EXPECT_TRUE(comms.ok()) << comms.status();
  comms_ = *std::move(comms);
}

EmulatedRanks::~EmulatedRanks() = default;

}  // namespace quire::kernels
