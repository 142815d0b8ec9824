#include "tools/bench/roofline_probes.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/machine.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire::roofline_probes {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Returns the time of the shortest of `trials` runs of fn(part) on all threads, because a probe
// measures the capability of the machine without other load.
template <typename Fn>
double ShortestSeconds(ThreadPool* pool, int trials, Fn&& fn) {
  double shortest = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const auto start = SteadyClock::now();
    pool->Run(fn);
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    if (trial == 0 || seconds < shortest) shortest = seconds;
  }
  return shortest;
}

// A loop of kSteps rounds with `operations` operations per round.
struct Peak {
  void (*loop)();
  double operations;
  const char* name;
};
constexpr int kSteps = 2'000'000;
constexpr int kChains = 12;  // more than latency times number of ports on current CPUs

double OperationsPerSecond(const Peak& peak, int threads) {
  ThreadPool pool(threads, {.cpus = Machine::Detect().CpusToBind(threads)});
  const double seconds = ShortestSeconds(&pool, 5, [&](int) { peak.loop(); });
  return peak.operations * kSteps * threads / seconds;
}

using SumFn = std::uint64_t (*)(const std::uint64_t* data, std::size_t count);

#if defined(__x86_64__)

// Each round of a peak loop advances kChains independent sums by one step. Written in assembly,
// because a compiler may spill the sums to memory or notice that they are equal. BEGIN runs once.
#define QUIRE_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define QUIRE_LOOP(BEGIN, STEP)                                                                \
  int steps = kSteps;                                                                          \
  asm volatile(BEGIN "1:\n" QUIRE_CHAINS(STEP) "dec %0\njnz 1b\n"                              \
               : "+r"(steps)                                                                   \
               :                                                                               \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                 "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

__attribute__((target("avx2,fma"))) void FmaLoop256() {
#define QUIRE_STEP(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define QUIRE_CLEAR(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n"
  QUIRE_LOOP(QUIRE_CHAINS(QUIRE_CLEAR) QUIRE_CLEAR(14) QUIRE_CLEAR(15), QUIRE_STEP);
#undef QUIRE_STEP
#undef QUIRE_CLEAR
}

// Uses vpmaddwd and vpaddd: 16 products per step.
__attribute__((target("avx2"))) void Int16Loop256() {
#define QUIRE_STEP(i) \
  "vpmaddwd %%ymm14, %%ymm15, %%ymm13\nvpaddd %%ymm13, %%ymm" #i ", %%ymm" #i "\n"
  QUIRE_LOOP("", QUIRE_STEP);
#undef QUIRE_STEP
}

// Uses vpmaddubsw, vpmaddwd with ones, and vpaddd: 32 products per step.
__attribute__((target("avx2"))) void Int8Loop256() {
#define QUIRE_STEP(i)                                                          \
  "vpmaddubsw %%ymm14, %%ymm15, %%ymm13\nvpmaddwd %%ymm12, %%ymm13, %%ymm13\n" \
  "vpaddd %%ymm13, %%ymm" #i ", %%ymm" #i "\n"
  QUIRE_LOOP("", QUIRE_STEP);
#undef QUIRE_STEP
}

__attribute__((target("avx2"))) void VnniLoop256() {
#define QUIRE_STEP(i) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #i "\n"
  QUIRE_LOOP("", QUIRE_STEP);
#undef QUIRE_STEP
}

__attribute__((target("avx512f"))) void FmaLoop512() {
#define QUIRE_STEP(i) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define QUIRE_CLEAR(i) "vpxord %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n"
  QUIRE_LOOP(QUIRE_CHAINS(QUIRE_CLEAR) QUIRE_CLEAR(14) QUIRE_CLEAR(15), QUIRE_STEP);
#undef QUIRE_STEP
#undef QUIRE_CLEAR
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) void VnniLoop512() {
#define QUIRE_STEP(i) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #i "\n"
  QUIRE_LOOP("", QUIRE_STEP);
#undef QUIRE_STEP
}
#undef QUIRE_LOOP
#undef QUIRE_CHAINS

__attribute__((target("avx512f"))) std::uint64_t Sum512(const std::uint64_t* data,
                                                        std::size_t count) {
  __m512i sums[8] = {};
  for (std::size_t i = 0; i + 64 <= count; i += 64) {
    for (std::size_t j = 0; j < 8; ++j) {
      sums[j] = _mm512_add_epi64(sums[j], _mm512_loadu_si512(data + i + 8 * j));
    }
  }
  for (int j = 1; j < 8; ++j) sums[0] = _mm512_add_epi64(sums[0], sums[j]);
  std::uint64_t lanes[8];
  _mm512_storeu_si512(lanes, sums[0]);
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

__attribute__((target("avx2"))) std::uint64_t Sum256(const std::uint64_t* data, std::size_t count) {
  __m256i sums[8] = {};
  for (std::size_t i = 0; i + 32 <= count; i += 32) {
    for (std::size_t j = 0; j < 8; ++j) {
      const auto* const from = reinterpret_cast<const __m256i*>(data + i + 4 * j);
      sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(from));
    }
  }
  for (int j = 1; j < 8; ++j) sums[0] = _mm256_add_epi64(sums[0], sums[j]);
  std::uint64_t lanes[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

#endif  // defined(__x86_64__)

std::uint64_t SumPlain(const std::uint64_t* data, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += data[i + j];
  }
  for (int j = 1; j < 8; ++j) sums[0] += sums[j];
  return sums[0];
}

SumFn FastestSum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Sum512;
  if (__builtin_cpu_supports("avx2")) return Sum256;
#endif
  return SumPlain;
}

Peak FloatLoop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {FmaLoop512, 2.0 * 16 * kChains, "512 bits"};
  if (__builtin_cpu_supports("fma")) return {FmaLoop256, 2.0 * 8 * kChains, "256 bits"};
#endif
  return {nullptr, 0, ""};
}

std::vector<Peak> Int8Loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) {
    return {{VnniLoop512, 2.0 * 64 * kChains, "vpdpbusd, 512 bits"}};
  }
  // clang 14 does not accept "avxvnni" in __builtin_cpu_supports.
  if (Machine::Detect().isa() == "avx_vnni") {
    return {{VnniLoop256, 2.0 * 32 * kChains, "vpdpbusd, 256 bits"}};
  }
  if (__builtin_cpu_supports("avx2")) {
    return {{Int16Loop256, 2.0 * 16 * kChains, "vpmaddwd on 16-bit values, 256 bits"},
            {Int8Loop256, 2.0 * 32 * kChains, "vpmaddubsw and vpmaddwd, 256 bits"}};
  }
#endif
  return {};
}

const Peak* BestInt8Loop() {
  static const std::vector<Peak>& loops = *new std::vector<Peak>(Int8Loops());
  static const Peak* const best = [] {
    const Peak* fastest = nullptr;
    double best_rate = 0;
    for (const Peak& peak : loops) {
      const double rate = OperationsPerSecond(peak, 1);
      if (rate > best_rate) fastest = &peak;
      best_rate = std::max(best_rate, rate);
    }
    return fastest;
  }();
  return best;
}

ReadRate MeasureDramRead(int threads) {
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  QUIRE_CHECK(memory != MAP_FAILED);
  madvise(memory, kBytes, MADV_HUGEPAGE);  // falls back to small pages
  auto* const data = static_cast<std::uint64_t*>(memory);
  const std::size_t part_size = kBytes / sizeof(std::uint64_t) / static_cast<std::size_t>(threads);
  ThreadPool pool(threads, {.cpus = Machine::Detect().CpusToBind(threads)});
  pool.Run([&](int part) {
    std::fill_n(data + static_cast<std::size_t>(part) * part_size, part_size, std::uint64_t{1});
  });
  const SumFn sum = FastestSum();
  // Runs about as long as the kernels. A single pass would be too optimistic on a shared machine,
  // where it may briefly have the full memory bandwidth.
  constexpr int kPasses = 80;
  std::vector<double> seconds;
  seconds.reserve(kPasses);
  for (int pass = 0; pass < kPasses; ++pass) {
    seconds.push_back(ShortestSeconds(&pool, 1, [&](int part) {
      benchmark::DoNotOptimize(sum(data + static_cast<std::size_t>(part) * part_size, part_size));
    }));
  }
  munmap(memory, kBytes);
  const double bytes = static_cast<double>(part_size * sizeof(std::uint64_t)) * threads;
  return {.mean = bytes * kPasses / std::accumulate(seconds.begin(), seconds.end(), 0.0),
          .best = bytes / *std::min_element(seconds.begin(), seconds.end())};
}

// Returns the cached rate for `threads`, measuring it at the first call.
template <typename Rate, typename Measure>
Rate MeasureOnce(std::map<int, Rate>* known, int threads, Measure&& measure) {
  const auto [it, is_new] = known->try_emplace(threads);
  if (is_new) it->second = measure();
  return it->second;
}

}  // namespace

ReadRate DramRead(int threads) {
  static std::map<int, ReadRate>& known = *new std::map<int, ReadRate>;
  return MeasureOnce(&known, threads, [&] { return MeasureDramRead(threads); });
}

double FloatPeak(int threads) {
  static std::map<int, double>& known = *new std::map<int, double>;
  const Peak peak = FloatLoop();
  if (peak.loop == nullptr) return 0;
  return MeasureOnce(&known, threads, [&] { return OperationsPerSecond(peak, threads); });
}

double Int8Peak(int threads) {
  static std::map<int, double>& known = *new std::map<int, double>;
  const Peak* const peak = BestInt8Loop();
  if (peak == nullptr) return 0;
  return MeasureOnce(&known, threads, [&] { return OperationsPerSecond(*peak, threads); });
}

const char* Int8PeakName() {
  const Peak* const peak = BestInt8Loop();
  return peak == nullptr ? "not measured on this architecture" : peak->name;
}

}  // namespace quire::roofline_probes
