#include "tests/cuda_emulator/access_check.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/access_count.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"
#include "tests/cuda_emulator/source_line.h"

namespace quire::cuda_emulator {

constinit thread_local bool is_checking = false;
std::atomic<bool> some_thread_checks{false};

namespace {

constexpr std::uint32_t kBytes = 4;  // bytes of memory per cell
constexpr std::uint32_t kAllBytes = (1u << kBytes) - 1;
constexpr std::uint32_t kMaxVector = 16;  // bytes of one lane's load or store

// Records which thread accessed which bytes of a cell, and when. 0 means no access.
class Record {
 public:
  Record() = default;
  Record(std::uint32_t block, std::uint32_t member, std::uint32_t clock, std::uint32_t bytes,
         bool is_atomic)
      : bits_(std::uint64_t{block} << 38 | std::uint64_t{member} << 27 |
              std::uint64_t{clock & kMaxClock} << 5 | bytes << 1 | (is_atomic ? 1u : 0u)) {}
  std::uint32_t block() const { return static_cast<std::uint32_t>(bits_ >> 38); }
  std::uint32_t member() const { return static_cast<std::uint32_t>(bits_ >> 27 & 0x7ff); }
  std::uint32_t clock() const { return static_cast<std::uint32_t>(bits_ >> 5 & kMaxClock); }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(bits_ >> 1 & kAllBytes); }
  bool is_atomic() const { return (bits_ & 1) != 0; }
  bool is_empty() const { return bits_ == 0; }
  bool SameAccess(const Record& other) const { return ((bits_ ^ other.bits_) & ~0x1eull) == 0; }
  bool SameThread(const Record& other) const { return (bits_ ^ other.bits_) >> 27 == 0; }
  void AddBytes(std::uint32_t bytes) { bits_ |= std::uint64_t{bytes} << 1; }

 private:
  std::uint64_t bits_ = 0;
};

}  // namespace

struct AccessCell {
  Record write;
  Record reads[2];  // of two threads, the later first
  // Offsets from the start of the program.
  std::uint32_t write_code = 0;
  std::uint32_t read_code = 0;
};
static_assert(sizeof(AccessCell) == 32);

namespace {

using Cell = AccessCell;

struct Launches {
  // Block numbers of the running launch, and of the oldest launch that it may overlap.
  std::uint32_t first = 1;
  std::uint32_t overlapped = 1;
  std::uint32_t next_block = 1;
  // Names of the launches that may overlap, by their first block.
  std::vector<std::pair<std::uint32_t, std::string>> names;
  std::unordered_map<const void*, OtherBlocks> published;  // by the address of the atomic
};
Launches launches;

Cell* MapCells(std::uint64_t bytes_of_memory) {
  const std::uint64_t bytes = bytes_of_memory / kBytes * sizeof(Cell);
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("512 GiB of addresses for records of accesses (vm.overcommit_memory, ulimit -v)");
    std::abort();
  }
  return static_cast<Cell*>(p);
}

// Null before the first checked launch.
Cell* device_cells = nullptr;

Cell* SharedCells() {
  SharedBytes& bytes = *shared_bytes;
  if (bytes.cells == nullptr) [[unlikely]]
    bytes.cells = MapCells(kSharedWindow);
  return bytes.cells;
}

// The cases that IsOrdered does not decide.
[[gnu::noinline]] bool IsOrderedByOther(const Record& record, const Thread& thread,
                                        bool for_async_proxy) {
  const ThreadClock& clock = thread.clock;
  const Seen& seen = *clock.seen;
  const std::uint32_t member = record.member();
  if (record.block() == thread.block) {
    if (for_async_proxy && member < NumThreads()) {
      const std::uint32_t fenced = member == thread.index      ? clock.async_fenced
                                   : seen.async_clocks.empty() ? 0
                                                               : seen.async_clocks[member];
      return record.clock() <= fenced;
    }
    return member == thread.index || record.clock() <= seen.clocks[member];
  }
  if (record.block() < launches.first) return seen.clocks[FrontMember(NumThreads())] != 0;
  for (const auto& [block, other] : seen.other_blocks) {
    if (block == record.block()) return record.clock() <= other->clocks[member];
  }
  return false;
}

[[gnu::always_inline]] inline bool IsOrdered(const Record& record, const Thread& thread,
                                             bool for_async_proxy) {
  if (record.block() < launches.overlapped) return true;
  if (record.block() == thread.block && !for_async_proxy) {
    const std::uint32_t member = record.member();
    return member == thread.index || record.clock() <= thread.clock.seen->clocks[member];
  }
  return IsOrderedByOther(record, thread, for_async_proxy);
}

const char* Verb(Access access) {
  switch (access) {
    case Access::kRead:
      return "reads";
    case Access::kWrite:
      return "writes";
    case Access::kAtomic:
      return "changes by an atomic";
    case Access::kAsyncRead:
      return "reads through the async proxy";
  }
  return "";
}

// Describes the thread that made the access of a record.
std::string Who(const Record& record, const Thread& thread) {
  if (record.block() < launches.first) {
    std::string name = "an earlier kernel";
    for (const auto& [first, of] : launches.names) {
      if (first <= record.block()) name = absl::StrCat("kernel ", of, " in front");
    }
    return name;
  }
  if (record.block() != thread.block) {
    return absl::StrCat("thread ", record.member(), " of another block");
  }
  return record.member() < NumThreads() ? absl::StrCat("thread ", record.member()) : "a bulk copy";
}

std::string Missing(const Record& record, const Thread& thread, const void* p, Access access) {
  if (record.block() < launches.first) return "DependencyWait has not been called";
  if (record.block() != thread.block && !IsSharedPointer(p))
    return "no fence and atomic order the blocks";
  if (access == Access::kAsyncRead && IsOrdered(record, thread, /*for_async_proxy=*/false)) {
    return "no FenceAsyncShared lies between";
  }
  return "no barrier orders the two";
}

// The current action of a thread.
struct Doing {
  Doing(const Thread& of, Access what, const void* at)
      : thread(of),
        access(what),
        code(CodeOffset(at)),
        record(of.block, of.index, of.clock.now, /*bytes=*/0, what == Access::kAtomic) {}
  const Thread& thread;
  const Access access;
  const std::uint32_t code;
  const Record record;  // of no bytes
};

// `earlier` is a record of the cell of p.
[[noreturn]] [[gnu::cold]] void ReportRace(const Cell& cell, const Record& earlier, const void* p,
                                           const Doing& now) {
  const bool earlier_writes = &earlier == &cell.write;
  const std::uint32_t code = earlier_writes ? cell.write_code : cell.read_code;
  Fatal(absl::StrCat("thread ", now.thread.index, " ", Verb(now.access), " ", DescribeMemory(p),
                     ", which ", Who(earlier, now.thread),
                     earlier_writes ? " wrote at " : " read at ", LineOf(CodeAt(code)), ": ",
                     Missing(earlier, now.thread, p, now.access)));
}

[[noreturn]] [[gnu::cold]] void ReportCopyUnderWay(const Cell& cell, const void* p,
                                                   const Doing& now) {
  Fatal(absl::StrCat("thread ", now.thread.index, " ", Verb(now.access), " ", DescribeMemory(p),
                     ", to which a copy is under way that began at ",
                     LineOf(CodeAt(cell.write_code))));
}

[[noreturn]] [[gnu::cold]] void ReportUnwritten(const void* p, const Doing& now) {
  Fatal(absl::StrCat("thread ", now.thread.index, " ", Verb(now.access), " ", DescribeMemory(p),
                     ", which no thread has written"));
}

// Removes a cell's records of clusters whose shared memory was there before.
void ForgetBefore(Cell* cell, std::uint32_t first_block) {
  if (cell->write.block() < first_block) cell->write = Record();
  for (Record& read : cell->reads) {
    if (read.block() < first_block) read = Record();
  }
}

[[gnu::always_inline]] inline void CheckCell(Cell* cell, const void* p, std::uint32_t bytes,
                                             const Doing& now) {
  const Thread& thread = now.thread;
  const Access access = now.access;
  Record own = now.record;
  own.AddBytes(bytes);
  const auto overlaps = [bytes](const Record& r) { return (r.bytes() & bytes) != 0; };
  const bool writes = access == Access::kWrite || access == Access::kAtomic;
  const bool both_atomic = access == Access::kAtomic && cell->write.is_atomic();
  if (overlaps(cell->write) && !both_atomic && !cell->write.SameAccess(own) &&
      !IsOrdered(cell->write, thread, access == Access::kAsyncRead)) {
    ReportRace(*cell, cell->write, p, now);
  }
  if (!writes) {
    cell->read_code = now.code;
    if (cell->reads[0].SameAccess(own)) return cell->reads[0].AddBytes(bytes);
    if (!cell->reads[0].SameThread(own)) cell->reads[1] = cell->reads[0];
    cell->reads[0] = own;
    return;
  }
  for (Record& read : cell->reads) {
    if (!overlaps(read)) continue;
    if (!IsOrdered(read, thread, /*for_async_proxy=*/false)) {
      ReportRace(*cell, read, p, now);
    }
    read = Record();
  }
  cell->write_code = now.code;
  if (cell->write.SameAccess(own)) return cell->write.AddBytes(bytes);
  cell->write = own;
}

// Calls `visit(cell, first byte, mask)` for the cells of [offset, offset + bytes).
template <typename Visit>
[[gnu::always_inline]] inline void ForEachCell(Cell* cells, std::uint64_t offset,
                                               std::uint32_t bytes, Visit visit) {
  const std::uint64_t end = offset + bytes;
  if ((offset | bytes) % kBytes == 0) {
    for (std::uint64_t at = offset; at < end; at += kBytes) {
      visit(cells + at / kBytes, at, kAllBytes);
    }
    return;
  }
  for (std::uint64_t at = offset; at < end;) {
    const std::uint64_t next = std::min(end, (at / kBytes + 1) * kBytes);
    const auto mask = static_cast<std::uint32_t>(((1u << (next - at)) - 1) << (at % kBytes));
    visit(cells + at / kBytes, at, mask);
    at = next;
  }
}

void CheckDevice(const Thread& thread, const void* p, std::uint32_t bytes, Access access,
                 const void* code) {
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - device_arena);
  if (is_counting && bytes <= kMaxVector) CountDevice(thread, p, bytes, code);
  const Doing now(thread, access, code);
  ForEachCell(device_cells, offset, bytes, [&](Cell* cell, std::uint64_t at, std::uint32_t mask) {
    CheckCell(cell, device_arena + at, mask, now);
  });
}

}  // namespace

void BeginChecks(const KernelLaunch& launch, bool follows) {
  if (device_cells == nullptr) device_cells = MapCells(kDeviceArenaBytes);
  is_checking = true;
  some_thread_checks = true;
  BeginCounts(launch.name.c_str());
  launches.first = launches.next_block;
  if (!follows) {
    launches.overlapped = launches.first;
    launches.names.clear();
  }
  launches.names.emplace_back(launches.first, launch.name);
  launches.published.clear();
}

void EndChecks() {
  is_checking = false;
  some_thread_checks = false;
  is_counting = false;
}

std::uint32_t BeginBlockChecks() {
  constexpr std::uint32_t kMaxBlocks = 1u << 26;
  if (launches.next_block == kMaxBlocks) Fatal("more blocks than can be checked in one process");
  return launches.next_block++;
}

void CheckShared(const Thread& thread, std::uint32_t address, std::uint32_t bytes, Access access,
                 const void* code) {
  if (!is_checking) return;
  SharedBytes& states = *shared_bytes;
  const bool reads = access != Access::kWrite;
  if (is_counting && bytes <= kMaxVector && access != Access::kAsyncRead) {
    CountShared(thread, address, bytes, code);
  }
  const Doing now(thread, access, code);
  ForEachCell(SharedCells(), address, bytes, [&](Cell* cell, std::uint64_t at, std::uint32_t mask) {
    const std::byte* const p = shared_window + at;
    const std::size_t i = at / kBytes;
    if (states.copies[i] != 0) [[unlikely]]
      ReportCopyUnderWay(*cell, p, now);
    if (reads && (states.written[i] & mask) != mask) [[unlikely]]
      ReportUnwritten(p, now);
    ForgetBefore(cell, thread.cluster);
    CheckCell(cell, p, mask, now);
    if (!reads || access == Access::kAtomic) states.written[i] |= static_cast<std::uint8_t>(mask);
  });
}

void CheckAccess(const void* p, std::uint32_t bytes, Access access, const void* code) {
  const Thread& thread = *current_thread;
  const auto* const at = static_cast<const std::byte*>(p);
  if (IsSharedPointer(p)) {
    return CheckShared(thread, static_cast<std::uint32_t>(at - shared_window), bytes, access, code);
  }
  if (IsInDeviceArena(p)) return CheckDevice(thread, p, bytes, access, code);
  if (IsFiberStack(p)) {
    if (!thread.products.empty()) CheckRegisters(p, bytes, access != Access::kRead);
    return;
  }
  if (access == Access::kRead && (IsInProgram(p) || IsArgument(p, bytes))) return;
  if (!IsKernelCode(code)) return;
  Fatal(absl::StrCat("thread ", thread.index, " ", Verb(access), " ", bytes, " bytes at ",
                     DescribeAddress(p), ", which is memory of the host"));
}

void CheckAlignment(const void* p, std::uint32_t alignment) {
  if (!IsSharedPointer(p) && !IsInDeviceArena(p)) return;
  Fatal(absl::StrCat("an access of ", alignment, " bytes at ", DescribeMemory(p),
                     " needs a multiple of ", alignment, " and is ",
                     reinterpret_cast<std::uintptr_t>(p) % alignment, " bytes beyond one"));
}

void CheckAtomic(const void* p, std::uint32_t bytes, const void* code) {
  if (!is_checking) return;
  CheckAccess(p, bytes, Access::kAtomic, code);
  if (IsSharedPointer(p)) return;
  ExchangeThroughAtomic(&current_thread->clock, current_thread->block, &launches.published[p]);
}

void ForgetAccesses(const void* p, std::uint64_t bytes) {
  if (device_cells == nullptr) return;  // nothing was ever checked
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - device_arena);
  madvise(device_cells + offset / kBytes, bytes / kBytes * sizeof(Cell), MADV_DONTNEED);
}

void BeginCopy(std::uint32_t address, std::uint32_t bytes, const void* code) {
  if (!is_checking) return;
  SharedBytes& states = *shared_bytes;
  CheckShared(*current_thread, address, bytes, Access::kWrite, code);
  for (std::uint32_t i = address / kBytes; i < (address + bytes) / kBytes; ++i) ++states.copies[i];
}

void EndCopy(std::uint32_t address, std::uint32_t bytes, std::uint32_t member, std::uint32_t clock,
             const void* code) {
  if (!is_checking) return;
  SharedBytes& states = *shared_bytes;
  Cell* const cells = SharedCells();
  const Record record(CurrentBlockNumber(), member, clock, kAllBytes, /*is_atomic=*/false);
  for (std::uint32_t i = address / kBytes; i < (address + bytes) / kBytes; ++i) {
    --states.copies[i];
    cells[i].write = record;
    cells[i].write_code = CodeOffset(code);
  }
}

void CheckRegisters(const void* p, std::uint32_t bytes, bool writes) {
  const auto* const begin = static_cast<const std::byte*>(p);
  const auto overlaps = [&](const void* from, std::size_t size) {
    const auto* const first = static_cast<const std::byte*>(from);
    return begin < first + size && first < begin + bytes;
  };
  for (const PendingProduct& product : current_thread->products) {
    if (overlaps(product.d, product.columns / 2 * sizeof(float))) {
      Fatal("an accumulator of a wgmma product is touched before WgmmaWait");
    }
    if (writes && product.a_in_registers && overlaps(product.a_from, sizeof(product.a_registers))) {
      Fatal("an operand of a wgmma product is overwritten in its registers before WgmmaWait");
    }
  }
}

}  // namespace quire::cuda_emulator
