#pragma once

// The machine that runs emulated kernels: one to four blocks at a time, every thread of them a
// fiber. A fiber runs until it meets others (a warp collective, a barrier) and has to wait for
// them; who goes on then, of which block, is drawn from the seed.
//
// Place:   below the host emulation of kernels/cuda/*.cuh in include/, the interpreter of their PTX
//          (ptx/), and the emulated runtime; nothing else calls it.
// Threads: one kernel at a time in the process; the runtime holds its lock while it runs.
// Errors:  what no kernel may do ends the process with a message that names the kernel, the block
//          and the thread.

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
  std::uint32_t cluster_x = 1;  // blocks of a cluster, which start together
  std::uint32_t threads = 0;
  std::uint32_t shared_bytes = 0;
  // It may start before the kernel in front of it has ended: some thread must wait for that one, or
  // the kernel behind could overtake both.
  bool programmatic = false;
  void (*body)(const void* arguments) = nullptr;  // one thread
  std::shared_ptr<const void> arguments;
  std::size_t argument_bytes = 0;
};

// A product of a warpgroup that was issued and not waited for (warpgroup.h).
struct PendingProduct {
  std::uint32_t columns = 0;
  DType type = DType::kInvalid;  // of A and B
  bool transposed_b = false;
  bool a_in_registers = false;
  bool accumulate = false;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint32_t a_registers[4] = {};
  const std::uint32_t* a_from = nullptr;  // where they are
  float* d = nullptr;
  // Accumulators as they were before the first pending product on `d`; empty for the others.
  std::vector<float> before;
  std::uint32_t group = 0;     // of the commit that closed it; 0 while open
  const void* code = nullptr;  // that issued it
};

// A cp.async that was issued and whose bytes have not landed.
struct PendingCopy {
  std::uint32_t to = 0;  // shared address
  const void* from = nullptr;
  std::uint32_t bytes = 0;
  bool valid = true;
  std::uint32_t group = 0;     // 0 while open
  const void* code = nullptr;  // that issued it
};

struct Thread {
  void* context = nullptr;  // where its fiber stands
  std::uint32_t index = 0;
  std::uint32_t lane = 0;
  std::uint32_t warp = 0;
  std::uint32_t slot = 0;  // of its block, below kMaxResidentBlocks
  // What it waits for, for messages; null while it can run.
  const char* waits_for = nullptr;
  std::uint32_t waits_detail = 0;
  // The collective it has joined.
  const void* collective = nullptr;
  std::uint64_t collective_argument = 0;
  std::uint32_t collective_mask = 0;
  void* operand = nullptr;

  std::vector<PendingCopy> copies;
  std::uint32_t copy_groups = 0;  // committed so far
  std::vector<PendingProduct> products;
  std::uint32_t product_groups = 0;
  bool product_fence = false;
  // Of its cluster's barrier: whether it has arrived and not waited, and in which phase.
  bool at_cluster_barrier = false;
  std::uint32_t cluster_phase = 0;
  // In WgmmaWait, for this many products.
  bool products_waited = false;
  std::size_t products_done = 0;

  // Of a launch that is checked (access_check.h): the number of its block, and its time.
  std::uint32_t block = 0;
  ThreadClock clock;
};

// The thread that runs now; null outside kernels.
extern constinit thread_local Thread* current_thread;

// Whether the calling code is that of a kernel, not what the host does in the same files.
inline bool InThread() {
  return current_thread != nullptr;
}

// How a launch runs.
struct RunOptions {
  std::uint64_t seed = 0;
  bool check = false;  // access_check.h
  // The launch before was checked too, and this one may overlap it.
  bool follows = false;
};

// Runs every block of the launch. REQUIRES: the shape was checked by the runtime.
void RunKernel(const KernelLaunch& launch, const RunOptions& options);

// Whether a kernel runs now, and where: for messages.
bool InKernel();
std::string Where();
// "<where>: <message>, at <line of the kernel>" to standard error, and abort().
[[noreturn]] void Fatal(const std::string& message);

// The launch and the block that run now.
const KernelLaunch& CurrentLaunch();
std::uint32_t CurrentBlockX();
std::uint32_t CurrentBlockY();
std::uint32_t CurrentSlot();
std::uint32_t CurrentBlockNumber();
std::uint32_t CurrentClusterNumber();  // the number of its first block
Random& BlockRandom();
// Whether the bytes are arguments of the launch that runs now.
bool IsArgument(const void* p, std::size_t bytes);

// Computes the result of a collective for all lanes at once: operands[lane] is what the lane
// passed, null for lanes outside `mask` and for lanes that have ended.
using CollectiveFunction = void (*)(void* const* operands, std::uint32_t mask,
                                    std::uint64_t argument);
// All lanes of `mask` that have not ended call this with the same function, argument and mask; the
// last one computes. `all_live`: lanes that have ended are an error, as for the .aligned
// instructions.
void WarpCollective(const char* name, CollectiveFunction function, std::uint64_t argument,
                    std::uint32_t mask, void* operand, bool all_live);

// What the lanes of `mask` of the running warp did before is seen by all of them afterwards.
void MeetLanes(std::uint32_t mask);

// All threads of the block that have not ended.
void SyncBlock();
// Named barriers 1 .. 15.
void NamedBarrier(std::uint32_t id, std::uint32_t threads, bool wait);

// All threads of the cluster.
void ArriveCluster();
void WaitCluster();

// While it lives, what asks for the block that runs finds the one of this rank in its cluster; the
// calling thread stays who it is, and does not wait. Ends the process when that block has ended.
class InBlock {
 public:
  explicit InBlock(std::uint32_t rank);
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;
  ~InBlock();

 private:
  std::uint32_t from_;  // the slot
};

// The calling thread, of another block, has arrived at a barrier of the one that runs: some thread
// of that must have seen it before the block ends.
void NoteArrivalFromOutside();

// Lets the calling thread wait until Wake: `what` and `detail` are for the message of a deadlock.
void Wait(const char* what, std::uint32_t detail);
void Wake(Thread* thread);
std::vector<Thread>& Threads();
std::uint32_t NumThreads();

// The calling thread waits for the kernel in front, which has always ended here.
void WaitForKernelInFront();
// The calling thread's writes before are seen by those who see what it does to an atomic later.
void FenceDevice();
// Ordinary writes that the calling thread sees are seen by bulk copies and wgmma.
void FenceAsyncProxy();

// An mbarrier's part in the order of accesses, of the block that runs now.
struct MbarrierClock {
  std::uint32_t member = 0;  // that counts for its bulk copies
  std::uint32_t copies = 0;  // landed so far
  Meeting arrived;           // in this phase
  SeenRef complete[2];       // the last phases, by their parity
};
MbarrierClock& MbarrierClockAt(std::uint32_t address);

// Work that the hardware does on its own, the bytes of bulk copies: at once, some time later or
// when no thread can run, by chance; mostly as late as that. A block that ends before is an error.
void AddLateWork(std::function<void()> work);

// Collectives and switches since the start of the process.
struct SimtCounters {
  std::uint64_t collectives = 0;
  std::uint64_t switches = 0;
};
SimtCounters GetSimtCounters();

}  // namespace quire::cuda_emulator
