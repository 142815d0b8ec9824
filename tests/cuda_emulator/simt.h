#pragma once

// Scheduler of emulated kernels. One to four blocks run at a time, and each of their threads is a
// fiber. A fiber runs until it has to wait for other threads (a warp collective, a barrier). The
// seed determines which fiber of which block runs next.
//
// Place:   used by the host emulation of kernels/cuda/*.cuh in include/, by the PTX interpreter
//          (ptx/) and by the emulated runtime only.
// Threads: one kernel at a time in the process; the runtime holds its lock while the kernel runs.
// Errors:  an action that is illegal in a kernel aborts the process with a message that names the
//          kernel, the block and the thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tests/cuda_emulator/random.h"
#include "tests/cuda_emulator/vector_clock.h"

namespace quire::cuda_emulator {

inline constexpr std::uint32_t kWarpSize = 32;
inline constexpr std::uint32_t kMaxThreads = 1024;
inline constexpr std::uint32_t kMaxWarps = kMaxThreads / kWarpSize;
inline constexpr std::uint32_t kMaxSharedBytes = 227 * 1024;
inline constexpr std::uint32_t kMaxResidentBlocks = 4;
inline constexpr std::uint32_t kMaxFibers = kMaxResidentBlocks * kMaxThreads;

// A kernel with its arguments.
struct KernelLaunch {
  std::string name;
  // The address of the kernel, for the limit of its dynamic shared memory. Null: no limit is set.
  const void* function = nullptr;
  std::uint32_t blocks_x = 1;
  std::uint32_t blocks_y = 1;
  std::uint32_t cluster_x = 1;  // blocks of a cluster, which start together
  std::uint32_t threads = 0;
  std::uint32_t shared_bytes = 0;
  // The kernel may start before the preceding kernel has ended. One of its threads must wait for
  // that kernel; otherwise the next kernel could overtake both.
  bool programmatic = false;
  void (*body)(const void* arguments) = nullptr;  // one thread
  std::shared_ptr<const void> arguments;
  std::size_t argument_bytes = 0;
};

// A warpgroup product that was issued but not yet waited for (warpgroup.h).
struct PendingProduct {
  std::uint32_t columns = 0;
  DType type = DType::kInvalid;  // type of A and B
  bool transposed_b = false;
  bool a_in_registers = false;
  bool accumulate = false;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint32_t a_registers[4] = {};
  const std::uint32_t* a_from = nullptr;  // the registers of A
  float* d = nullptr;
  // Values of the accumulators before the first pending product on `d`. Empty for later products.
  std::vector<float> before;
  std::uint32_t group = 0;     // the commit that closed it; 0 while open
  const void* code = nullptr;  // code that issued it
};

// A cp.async that was issued and whose bytes have not arrived.
struct PendingCopy {
  std::uint32_t to = 0;  // shared address
  const void* from = nullptr;
  std::uint32_t bytes = 0;
  bool valid = true;
  std::uint32_t group = 0;     // 0 while open
  const void* code = nullptr;  // code that issued it
};

struct Thread {
  void* context = nullptr;  // state of its suspended fiber
  std::uint32_t index = 0;
  std::uint32_t lane = 0;
  std::uint32_t warp = 0;
  std::uint32_t slot = 0;  // of its block, below kMaxResidentBlocks
  // The name of what the thread waits for, for messages. Null while the thread can run.
  const char* waits_for = nullptr;
  std::uint32_t waits_detail = 0;
  // The collective that the thread has joined.
  const void* collective = nullptr;
  std::uint64_t collective_argument = 0;
  std::uint32_t collective_mask = 0;
  void* operand = nullptr;

  std::vector<PendingCopy> copies;
  std::uint32_t copy_groups = 0;  // committed so far
  std::vector<PendingProduct> products;
  std::uint32_t product_groups = 0;
  bool product_fence = false;
  // Cluster barrier: true after the thread has arrived and before it waits. The phase is that of
  // the arrival.
  bool at_cluster_barrier = false;
  std::uint32_t cluster_phase = 0;
  // True while the thread is in WgmmaWait for `products_done` products.
  bool products_waited = false;
  std::size_t products_done = 0;

  // The numbers of the thread's block and of the first block of its cluster, and the vector clock,
  // in launches with access checks (access_check.h).
  std::uint32_t block = 0;
  std::uint32_t cluster = 0;
  ThreadClock clock;
};

// The running thread. Null outside kernels.
extern constinit thread_local Thread* current_thread;

// True if the calling code is kernel code, not host code in the same file.
inline bool InThread() {
  return current_thread != nullptr;
}

// Options of one launch.
struct RunOptions {
  std::uint64_t seed = 0;
  bool check = false;  // access_check.h
  // The preceding launch was checked too, and this one may overlap it.
  bool follows = false;
};

// Runs every block of the launch. REQUIRES: the runtime has checked the shape.
void RunKernel(const KernelLaunch& launch, const RunOptions& options);

// True while a kernel runs. Where() describes the running thread for messages.
bool InKernel();
std::string Where();
// Writes "<where>: <message>, at <line of the kernel>" to standard error and calls abort().
[[noreturn]] void Fatal(const std::string& message);

// The running launch and block.
const KernelLaunch& CurrentLaunch();
std::uint32_t CurrentBlockX();
std::uint32_t CurrentBlockY();
std::uint32_t CurrentSlot();
std::uint32_t CurrentBlockNumber();
Random& BlockRandom();
// True if the bytes belong to the arguments of the running launch.
bool IsArgument(const void* p, std::size_t bytes);

// Computes the result of a collective for all lanes at once. operands[lane] is the operand of the
// lane, or null for lanes outside `mask` and lanes that have ended.
using CollectiveFunction = void (*)(void* const* operands, std::uint32_t mask,
                                    std::uint64_t argument);
// All lanes of `mask` that have not ended call this with the same function, argument and mask. The
// last lane computes the result. If `all_live`, lanes that have ended are an error, as for the
// .aligned instructions.
void WarpCollective(const char* name, CollectiveFunction function, std::uint64_t argument,
                    std::uint32_t mask, void* operand, bool all_live);

// Makes all earlier actions of the lanes of `mask` of the running warp visible to all of these
// lanes.
void MeetLanes(std::uint32_t mask);

// Synchronizes all threads of the block that have not ended.
void SyncBlock();
// Named barriers have ids 1 to 15.
void NamedBarrier(std::uint32_t id, std::uint32_t threads, bool wait);

// Cluster barrier of all threads of the cluster.
void ArriveCluster();
void WaitCluster();

// While it exists, functions that access the running block use the block of this rank in its
// cluster. The calling thread does not change, and it must not wait. The constructor aborts the
// process if that block has ended.
class InBlock {
 public:
  explicit InBlock(std::uint32_t rank);
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;
  ~InBlock();

 private:
  std::uint32_t from_;  // the slot
};

// Records that the calling thread, of another block, has arrived at a barrier of the running block.
// A thread of the running block must observe the arrival before the block ends.
void NoteArrivalFromOutside();

// Suspends the calling thread until Wake. `what` and `detail` appear in the message of a deadlock.
void Wait(const char* what, std::uint32_t detail);
void Wake(Thread* thread);
std::vector<Thread>& Threads();
std::uint32_t NumThreads();

// Waits for the preceding kernel, which in the emulator has always ended.
void WaitForKernelInFront();
// Makes the calling thread's earlier writes visible to threads that see its later atomic
// operations.
void FenceDevice();
// Makes ordinary writes that the calling thread sees visible to bulk copies and wgmma.
void FenceAsyncProxy();

// The clock of an mbarrier of the running block, for the order of accesses.
struct MbarrierClock {
  std::uint32_t member = 0;  // clock member of its bulk copies
  std::uint32_t copies = 0;  // completed so far
  Meeting arrived;           // arrivals of the current phase
  SeenRef complete[2];       // at the end of the last phases, by parity
};
MbarrierClock& MbarrierClockAt(std::uint32_t address);

// Adds work that the hardware does asynchronously, such as the bytes of bulk copies. It runs at
// once, some time later, or when no thread can run, which is the most likely case. A block that
// ends before its work has run is an error.
void AddLateWork(std::function<void()> work);

// Collectives and switches since the start of the process.
struct SimtCounters {
  std::uint64_t collectives = 0;
  std::uint64_t switches = 0;
};
SimtCounters GetSimtCounters();

}  // namespace quire::cuda_emulator
