#pragma once

// What tests set up and ask: the device that is emulated, faults, counters.
//
// Threads: any; the state is one for the process.

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace quire::cuda_emulator {

// False in the binaries that run the same tests on a real GPU (real_device.cc): there options are
// what the GPU has, faults cannot be injected and nothing is counted.
bool IsEmulated();

// Which launches have their accesses to memory checked (access_check.h): it takes several times as
// long as running them.
enum class CheckedLaunches : std::uint8_t {
  kNone,
  kSome,  // the first of every kernel, and four in a row now and then
  kAll,
};

struct EmulatorOptions {
  // Of the order of threads and blocks, and of when bytes land. QUIRE_EMULATOR_SEED sets the
  // default.
  std::uint64_t seed = 1;
  int num_devices = 1;  // all alike; they share memory_bytes
  int compute_capability = 90;
  int num_sms = 4;
  // 0: no driver.
  int driver_version = 13000;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  // Whether work on streams runs only when the host waits for it.
  bool deferred = true;
  // QUIRE_EMULATOR_CHECK (none, some, all) sets the default.
  CheckedLaunches check = CheckedLaunches::kSome;
  // For tests of the emulator: the host may touch memory of the device without the runtime.
  bool host_may_touch = false;
};

EmulatorOptions GetOptions();
void SetOptions(const EmulatorOptions& options);

// A failure to come.
struct Fault {
  // "cudaMalloc": the call fails. "kernel:NAME": the kernel of this name fails when it runs, so
  // that the error appears where the host waits.
  std::string where;
  cudaError_t error = cudaErrorUnknown;
  std::uint32_t after = 0;  // calls that still succeed
  // The device is lost: every later call fails with this error too. Always so for kernels.
  bool sticky = false;
};
// Each fault strikes once.
void InjectFault(const Fault& fault);

// For libraries that tests stand in for: enqueues what is neither kernel nor copy and touches
// memory of the device in its turn. It runs under the lock of the runtime, and is asked again for
// as long as it returns cudaErrorNotReady.
cudaError_t EnqueueOperation(cudaStream_t stream, std::function<cudaError_t()> operation);

// Since the start of the process or Reset().
std::uint64_t LaunchCount(const std::string& kernel);
std::uint64_t LaunchCount();
std::map<std::string, std::uint64_t> LaunchCounts();  // by kernel
// Blocks of all launches of a kernel.
std::uint64_t BlockCount(const std::string& kernel);
// Collectives that warps have met in, since the start of the process.
std::uint64_t CollectiveCount();
// Operations that wait on streams until the host waits for them.
std::uint64_t QueuedOperations();
std::uint64_t DeviceBytesAllocated();
// Blocks of device and pinned memory that were allocated, and those that were freed, since the
// start of the process. The emulated API has no other calls that allocate.
std::uint64_t AllocationCount();
// Of all blocks of pinned memory that were allocated since the start of the process, freed ones
// included.
std::uint64_t PinnedBytesEverAllocated();

// Default options, no faults, a device that works, counters at 0. Memory and streams stay.
void Reset();

}  // namespace quire::cuda_emulator
