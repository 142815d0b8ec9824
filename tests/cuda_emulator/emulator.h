#pragma once

// Configuration and inspection for tests: the emulated device, injected faults, counters.
//
// Threads: any. The state is global to the process.

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace quire::cuda_emulator {

// False in the binaries that run the same tests on a real GPU (real_device.cc). There the options
// reflect the GPU, faults cannot be injected and nothing is counted.
bool IsEmulated();

// The launches whose memory accesses are checked (access_check.h). A check takes several times as
// long as the launch.
enum class CheckedLaunches : std::uint8_t {
  kNone,
  kSome,  // the first launch of every kernel, and four in a row from time to time
  kAll,
};

struct EmulatorOptions {
  // Seed of the order of threads and blocks, and of the arrival times of bytes. QUIRE_EMULATOR_SEED
  // sets the default.
  std::uint64_t seed = 1;
  int num_devices = 1;  // all equal; they share memory_bytes
  int compute_capability = 90;
  int num_sms = 4;
  // 0 means that there is no driver.
  int driver_version = 13000;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  // If set, work on streams runs only when the host waits for it.
  bool deferred = true;
  // QUIRE_EMULATOR_CHECK (none, some, all) sets the default.
  CheckedLaunches check = CheckedLaunches::kSome;
  // For tests of the emulator: the host may access device memory without the runtime.
  bool host_may_touch = false;
};

EmulatorOptions GetOptions();
void SetOptions(const EmulatorOptions& options);

// A fault to inject.
struct Fault {
  // "cudaMalloc": the call fails. "kernel:NAME": the kernel of this name fails when it runs, so
  // that the error appears when the host waits.
  std::string where;
  cudaError_t error = cudaErrorUnknown;
  std::uint32_t after = 0;  // calls that still succeed
  // The device is lost: every later call also fails with this error. Always true for kernels.
  bool sticky = false;
};
// Each fault is injected once.
void InjectFault(const Fault& fault);

// For fake libraries of tests: enqueues an operation that is neither kernel nor copy and accesses
// device memory in its turn. It runs under the runtime's lock, and is repeated as long as it
// returns cudaErrorNotReady.
cudaError_t EnqueueOperation(cudaStream_t stream, std::function<cudaError_t()> operation);

// Counted since the start of the process or Reset().
std::uint64_t LaunchCount(const std::string& kernel);
std::uint64_t LaunchCount();
std::map<std::string, std::uint64_t> LaunchCounts();  // by kernel
// Number of blocks of all launches of a kernel.
std::uint64_t BlockCount(const std::string& kernel);
// Number of warp collectives since the start of the process.
std::uint64_t CollectiveCount();
// Number of operations on streams that wait for the host to wait for them.
std::uint64_t QueuedOperations();
std::uint64_t DeviceBytesAllocated();
// Number of allocated and of freed blocks of device and pinned memory since the start of the
// process. The emulated API has no other allocating calls.
std::uint64_t AllocationCount();
// Counts since the start of the process: begun captures and instantiated graphs; calls that load a
// kernel or set or query its attributes; encoded tensor maps.
std::uint64_t CaptureCount();
std::uint64_t FunctionCallCount();
std::uint64_t TensorMapCount();
// Bytes of all blocks of pinned memory allocated since the start of the process, including freed
// ones.
std::uint64_t PinnedBytesEverAllocated();

// Restores default options, no faults, a working device and zero counters. Memory and streams
// remain.
void Reset();

}  // namespace quire::cuda_emulator
