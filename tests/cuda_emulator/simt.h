#pragma once

// The machine that runs emulated kernels: one to four blocks at a time, with one fiber per thread.
// A fiber runs until it has to wait for others (a warp collective, a barrier). The seed determines
// which fiber of which block runs next.
//
// Place:   below the host emulations of kernels/cuda/*.cuh in include/, the interpreter of their
// PTX
//          (ptx/), and the emulated runtime. Nothing else calls it.
// Threads: one kernel at a time in the process. The runtime holds its lock while a kernel runs.
// Errors:  operations that no kernel may do abort the process with a message that names the kernel,
//          the block and the thread.

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
  std::uint32_t blocks_x = 1;
  std::uint32_t blocks_y = 1;
  std::uint32_t cluster_x = 1;  // number of blocks of a cluster, which start together
  std::uint32_t threads = 0;
  std::uint32_t shared_bytes = 0;
  // The kernel may start before the preceding one has ended. Some thread must then wait for that
  // one, or the next kernel could overtake both.
  bool programmatic = false;
  void (*body)(const void* arguments) = nullptr;  // runs one thread
  std::shared_ptr<const void> arguments;
  std::size_t argument_bytes = 0;
};

// A warpgroup product that was issued and not yet waited for (warpgroup.h).
struct PendingProduct {
  std::uint32_t columns = 0;
  DType type = DType::kInvalid;  // of A and B
  bool transposed_b = false;
  bool a_in_registers = false;
  bool accumulate = false;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint32_t a_registers[4] = {};
  const std::uint32_t* a_from = nullptr;  // the location of A's registers
  float* d = nullptr;
  // Accumulators before the first pending product on `d`. Empty for the other products.
  std::vector<float> before;
  std::uint32_t group = 0;     // of the commit that closed it; 0 while open
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
  void* context = nullptr;  // the state of its fiber
  std::uint32_t index = 0;
  std::uint32_t lane = 0;
  std::uint32_t warp = 0;
  std::uint32_t slot = 0;  // of its block, below kMaxResidentBlocks
  // The operation that it waits for, for messages. Null while it can run.
  const char* waits_for = nullptr;
  std::uint32_t waits_detail = 0;
  // The collective that it has joined.
  const void* collective = nullptr;
  std::uint64_t collective_argument = 0;
  std::uint32_t collective_mask = 0;
  void* operand = nullptr;

  std::vector<PendingCopy> copies;
  std::uint32_t copy_groups = 0;  // committed so far
  std::vector<PendingProduct> products;
  std::uint32_t product_groups = 0;
  bool product_fence = false;
  // State of its cluster's barrier: whether it has arrived without waiting, and in which phase.
  bool at_cluster_barrier = false;
  std::uint32_t cluster_phase = 0;
  // Number of products that it waits for in WgmmaWait.
  bool products_waited = false;
  std::size_t products_done = 0;

  // For checked launches (access_check.h): the number of its block, and its time.
  std::uint32_t block = 0;
  ThreadClock clock;
};

// The running thread. Null outside kernels.
extern constinit thread_local Thread* current_thread;

// Returns whether the calling code belongs to a kernel and not to host code in the same files.
inline bool InThread() {
  return current_thread != nullptr;
}

// Execution options of a launch.
struct RunOptions {
  std::uint64_t seed = 0;
  bool check = false;  // see access_check.h
  // The previous launch was checked too, and this one may overlap it.
  bool follows = false;
};

// Runs every block of the launch. REQUIRES: the runtime has checked the shape.
void RunKernel(const KernelLaunch& launch, const RunOptions& options);

// Returns whether a kernel is running, and where, for messages.
bool InKernel();
std::string Where();
// Prints "<where>: <message>, at <line of the kernel>" to standard error and calls abort().
[[noreturn]] void Fatal(const std::string& message);

// The running launch and block.
const KernelLaunch& CurrentLaunch();
std::uint32_t CurrentBlockX();
std::uint32_t CurrentBlockY();
std::uint32_t CurrentSlot();
std::uint32_t CurrentBlockNumber();
std::uint32_t CurrentClusterNumber();  // the number of its first block
Random& BlockRandom();
// Returns whether the bytes are arguments of the running launch.
bool IsArgument(const void* p, std::size_t bytes);

// Computes the result of a collective for all lanes at once. operands[lane] is the lane's operand,
// or null for lanes outside `mask` and for ended lanes.
using CollectiveFunction = void (*)(void* const* operands, std::uint32_t mask,
                                    std::uint64_t argument);
// All lanes of `mask` that have not ended call this with the same function, argument and mask, and
// the last one computes. With `all_live`, ended lanes are an error, as for the .aligned
// instructions.
void WarpCollective(const char* name, CollectiveFunction function, std::uint64_t argument,
                    std::uint32_t mask, void* operand, bool all_live);

// Earlier accesses of the `mask` lanes of the running warp become visible to all of them.
void MeetLanes(std::uint32_t mask);

// Synchronizes all threads of the block that have not ended.
void SyncBlock();
// Named barriers 1 .. 15.
void NamedBarrier(std::uint32_t id, std::uint32_t threads, bool wait);

// Synchronizes all threads of the cluster.
void ArriveCluster();
void WaitCluster();

// While an object exists, queries of the running block return the block of this rank in the
// cluster. The calling thread keeps its identity and must not wait. Aborts if that block has ended.
class InBlock {
 public:
  explicit InBlock(std::uint32_t rank);
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;
  ~InBlock();

 private:
  std::uint32_t from_;  // the slot
};

// The calling thread, of another block, has arrived at a barrier of the running block. Some thread
// of the running block must see the arrival before the block ends.
void NoteArrivalFromOutside();

// Blocks the calling thread until Wake. `what` and `detail` are used in the message of a deadlock.
void Wait(const char* what, std::uint32_t detail);
void Wake(Thread* thread);
std::vector<Thread>& Threads();
std::uint32_t NumThreads();

// The calling thread waits for the preceding kernel, which has always ended in the emulator.
void WaitForKernelInFront();
// The calling thread's earlier writes become visible to threads that observe its later atomics.
void FenceDevice();
// Ordinary writes visible to the calling thread become visible to bulk copies and wgmma.
void FenceAsyncProxy();

// The part of an mbarrier of the running block in the order of accesses.
struct MbarrierClock {
  std::uint32_t member = 0;  // the member that represents its bulk copies
  std::uint32_t copies = 0;  // arrived so far
  Meeting arrived;           // in this phase
  SeenRef complete[2];       // the last phases, by their parity
};
MbarrierClock& MbarrierClockAt(std::uint32_t address);

// Deferred hardware work (the bytes of bulk copies): at once, later, or when no thread can run, at
// random and mostly as late as possible. A block that ends earlier is an error.
void AddLateWork(std::function<void()> work);

// Number of collectives and switches since the start of the process.
struct SimtCounters {
  std::uint64_t collectives = 0;
  std::uint64_t switches = 0;
};
SimtCounters GetSimtCounters();

}  // namespace quire::cuda_emulator
