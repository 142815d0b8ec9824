#include "tests/cuda_emulator/access_count.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

constinit thread_local bool is_counting = false;

namespace {

constexpr std::uint32_t kBanks = 32;
constexpr std::uint32_t kSector = 32;

struct Instruction {
  std::uint32_t lanes = 0;
  std::uint32_t bytes = 0;
  bool is_shared = false;
  std::uint64_t addresses[kWarpSize];
};

// The accesses of a warp's lanes at one place of the code.
struct Place {
  std::uint32_t times[kWarpSize] = {};
  std::vector<Instruction> instructions;
};

using WarpPlaces = std::unordered_map<const void*, Place>;

WarpPlaces places[kMaxResidentBlocks][kMaxWarps];
AccessCounts* counts = nullptr;

// Counts by kernel. They are written at the end of the process, so the map is never destroyed.
std::map<std::string, AccessCounts>& AllCounts() {
  static auto& all = *new std::map<std::string, AccessCounts>();
  return all;
}

void WriteCounts() {
  FILE* const file = std::fopen(std::getenv("QUIRE_EMULATOR_COUNTS"), "w");
  if (file == nullptr) {
    std::perror("QUIRE_EMULATOR_COUNTS");
    return;
  }
  const char* separator = "{\n";
  for (const auto& [kernel, of] : AllCounts()) {
    std::fprintf(file, "%s \"%s\": {\"shared_passes\": %llu, \"shared_conflicts\": %llu, ",
                 separator, kernel.c_str(), static_cast<unsigned long long>(of.shared_passes),
                 static_cast<unsigned long long>(of.shared_conflicts));
    std::fprintf(file, "\"device_sectors\": %llu, \"device_bytes\": %llu}",
                 static_cast<unsigned long long>(of.device_sectors),
                 static_cast<unsigned long long>(of.device_bytes));
    separator = ",\n";
  }
  std::fprintf(file, "\n}\n");
  std::fclose(file);
}

void Count(const Thread& thread, std::uint64_t address, std::uint32_t bytes, bool is_shared,
           const void* code) {
  Place& place = places[thread.slot][thread.warp][code];
  const std::uint32_t n = place.times[thread.lane]++;
  if (n == place.instructions.size()) place.instructions.emplace_back();
  Instruction& instruction = place.instructions[n];
  instruction.lanes |= 1u << thread.lane;
  instruction.bytes = bytes;
  instruction.is_shared = is_shared;
  instruction.addresses[thread.lane] = address;
}

void Add(const Instruction& of) {
  std::uint32_t other = 0;
  if (of.is_shared) {
    const std::uint32_t passes = SharedPasses(of.addresses, of.lanes, of.bytes, &other);
    counts->shared_passes += passes;
    counts->shared_conflicts += passes - other;
  } else {
    counts->device_sectors += Sectors(of.addresses, of.lanes, of.bytes, &other);
    counts->device_bytes += other;
  }
}

}  // namespace

void BeginCounts(const char* kernel) {
  static const bool is_wanted = std::getenv("QUIRE_EMULATOR_COUNTS") != nullptr;
  static const bool is_registered = is_wanted && std::atexit(WriteCounts) == 0;
  is_counting = is_registered;
  if (is_counting) counts = &AllCounts()[kernel];
}

void FinishWarp(std::uint32_t slot, std::uint32_t warp) {
  for (const auto& [code, place] : places[slot][warp]) {
    for (const Instruction& instruction : place.instructions) Add(instruction);
  }
  places[slot][warp].clear();
}

void CountShared(const Thread& thread, std::uint32_t address, std::uint32_t bytes,
                 const void* code) {
  Count(thread, address, bytes, /*is_shared=*/true, code);
}

void CountDevice(const Thread& thread, const void* p, std::uint32_t bytes, const void* code) {
  Count(thread, reinterpret_cast<std::uintptr_t>(p), bytes, /*is_shared=*/false, code);
}

// Lanes of 8 bytes are served in two halves of the warp, lanes of 16 in four quarters. Lanes of one
// pass that access different words of one bank are serialized.
std::uint32_t SharedPasses(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes,
                           std::uint32_t* least) {
  const std::uint32_t words = std::max(1u, bytes / 4);
  const std::uint32_t lanes_a_pass = kWarpSize / words;
  std::uint32_t passes = 0;
  *least = 0;
  for (std::uint32_t first = 0; first < kWarpSize; first += lanes_a_pass) {
    std::set<std::uint64_t> of_bank[kBanks];
    std::size_t most = 0;
    for (std::uint32_t lane = first; lane < first + lanes_a_pass; ++lane) {
      if ((lanes >> lane & 1u) == 0) continue;
      for (std::uint32_t word = 0; word < words; ++word) {
        const std::uint64_t at = addresses[lane] / 4 + word;
        of_bank[at % kBanks].insert(at);
        most = std::max(most, of_bank[at % kBanks].size());
      }
    }
    passes += static_cast<std::uint32_t>(most);
    *least += most > 0 ? 1 : 0;
  }
  return passes;
}

std::uint32_t Sectors(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes,
                      std::uint32_t* distinct_bytes) {
  std::set<std::uint64_t> sectors;
  std::set<std::uint64_t> starts;
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    starts.insert(addresses[lane]);
    sectors.insert(addresses[lane] / kSector);
    sectors.insert((addresses[lane] + bytes - 1) / kSector);
  }
  *distinct_bytes = static_cast<std::uint32_t>(starts.size()) * bytes;
  return static_cast<std::uint32_t>(sectors.size());
}

}  // namespace quire::cuda_emulator
