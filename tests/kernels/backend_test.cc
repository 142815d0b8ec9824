#include "kernels/backend/backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "hwy/highway.h"
#include "kernels/backend/isa.h"
#include "kernels/backend/kernel_check.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

TEST(BackendTest, CudaBackendRequiresAStreamOfAGpu) {
  const Stream stream = *Stream::Create(Device::Cpu());
  ThreadPool pool(1);
  const auto backend = Backend::CreateCuda(stream, Determinism::kBatchInvariant, &pool);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(backend.status().message(), testing::HasSubstr("device cpu has no CUDA kernels"));
}

TEST(BackendTest, WorkspaceGrowsAndKeepsItsMemory) {
  Workspace workspace;
  std::byte* const first = workspace.Reserve(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(workspace.Reserve(50), first);
  EXPECT_EQ(workspace.Reserve(100), first);
  EXPECT_NE(workspace.Reserve(100000), nullptr);
}

TEST(BackendTest, VisitsEveryIndexOnceForAnyThreadCount) {
  for (const int threads : {1, 2, 3, 7}) {
    const TestBackend backend(threads);
    for (const std::int64_t n : {0, 1, 2, 6, 7, 8, 1000}) {
      for (const double work : {0.0, 1e9}) {
        std::vector<std::atomic<int>> range(static_cast<std::size_t>(n));
        std::vector<std::atomic<int>> items(static_cast<std::size_t>(n));
        (*backend).ParallelFor(n, work, [&](std::int64_t begin, std::int64_t end, int part) {
          EXPECT_LT(part, threads);
          for (std::int64_t i = begin; i < end; ++i) ++range[static_cast<std::size_t>(i)];
        });
        (*backend).ParallelItems(n, work, [&](std::int64_t i, int part) {
          EXPECT_LT(part, threads);
          ++items[static_cast<std::size_t>(i)];
        });
        const auto once = [](const auto& visits) {
          return std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; });
        };
        EXPECT_TRUE(once(range));
        (*backend).ParallelFor(
            n, work,
            [&](std::int64_t begin, std::int64_t end, int) {
              EXPECT_EQ(begin % 3, 0);
              for (std::int64_t i = begin; i < end; ++i) --range[static_cast<std::size_t>(i)];
            },
            /*grain=*/3);
        EXPECT_TRUE(std::all_of(range.begin(), range.end(), [](const auto& v) { return v == 0; }));
        EXPECT_TRUE(once(items));
      }
    }
  }
}

// Packing and computing divide the panels of a matrix equally, so that on a NUMA machine a thread
// computes on memory that it touched first.
TEST(BackendTest, EveryThreadStartsWithItsOwnShare) {
  const TestBackend backend(3);
  for (const std::int64_t n : {3, 7, 64, 1001}) {
    std::vector<std::int64_t> begins(3, -1);
    std::atomic<int> arrived{0};
    (*backend).ParallelFor(n, 1e9, [&](std::int64_t begin, std::int64_t, int part) {
      std::int64_t& mine = begins[static_cast<std::size_t>(part)];
      if (mine >= 0) return;
      mine = begin;
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    });
    for (std::int64_t part = 0; part < 3; ++part) {
      EXPECT_EQ(begins[static_cast<std::size_t>(part)], n * part / 3);
    }
  }
}

TEST(BackendTest, OtherThreadsTakeTheWorkOfABlockedThread) {
  constexpr std::int64_t kItems = 100;
  const TestBackend backend(2);
  std::atomic<std::int64_t> done{0};
  std::int64_t held = 0;  // items of the chunk in which the caller is blocked
  (*backend).ParallelFor(kItems, 1e9, [&](std::int64_t begin, std::int64_t end, int part) {
    if (part == 0 && held == 0) {
      held = end - begin;
      const absl::Time give_up = MonotonicNow() + absl::Seconds(20);
      while (done < kItems - held && MonotonicNow() < give_up) std::this_thread::yield();
      EXPECT_EQ(done, kItems - held) << "no other thread took the rest of this thread's share";
    }
    done += end - begin;
  });
  EXPECT_EQ(done, kItems);
  EXPECT_LT(held, kItems / 4);
}

TEST(IsaTest, SelectsByNameAndRejectsOthers) {
  const TestBackend backend(1);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    EXPECT_EQ((*backend).isa(), isa);
  }
  EXPECT_EQ((*backend).isa(), AvailableIsas().front());
  EXPECT_EQ(SelectCpuIsa("mmx").code(), absl::StatusCode::kInvalidArgument);
  // A machine is either x86 or Arm.
  EXPECT_TRUE(!SelectCpuIsa("sse4").ok() || !SelectCpuIsa("neon").ok());
  EXPECT_TRUE(SelectCpuIsa("auto").ok());
}

TEST(IsaTest, ListsAvailableLevelsAndKeepsTheChoice) {
  const std::vector<std::string> isas = AvailableIsas();
  const TestBackend backend(1);
  for (const std::string& isa : isas) {
    const ScopedIsa scoped(isa);
    EXPECT_EQ(AvailableCpuIsas(), isas);
    EXPECT_EQ((*backend).isa(), isa);
  }
}

TEST(KernelCheckTest, TableHasALinePerCheck) {
  const std::vector<KernelCheck> checks = {
      {.kernel = "bf16 product", .shape = "int4 g32, 9 x 72 x 640"},
      {.kernel = "norm", .shape = "9 x 333", .error = 1.5e-7, .limit = 5e-6},
      {.kernel = "norm", .shape = "1 x 3", .error = 0.5, .limit = 5e-6, .fault = "wrong"},
      {.kernel = "steps", .shape = "all", .skipped = "no logits"}};
  EXPECT_EQ(
      KernelCheckTable(checks),
      "kernel        shape                   error     limit     bits equal  result\n"
      "bf16 product  int4 g32, 9 x 72 x 640  0.0e+00   0.0e+00   yes         passed\n"
      "norm          9 x 333                 1.5e-07   5.0e-06   no          passed\n"
      "norm          1 x 3                   5.0e-01   5.0e-06   no          FAILED: wrong\n"
      "steps         all                     -         -         -           skipped: no logits\n");
}

TEST(IsaTest, BF16ActivationsNeedAvx2) {
  const TestBackend backend(1, CpuActivations::kAuto);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    EXPECT_EQ((*backend).activations(),
              isa == "amx" ? CpuActivations::kBF16 : CpuActivations::kInt8)
        << isa;
    for (const CpuActivations activations :
         {CpuActivations::kAuto, CpuActivations::kInt8, CpuActivations::kF32}) {
      EXPECT_TRUE(CheckCpuActivations(activations).ok()) << isa;
    }
    const absl::Status status = CheckCpuActivations(CpuActivations::kBF16);
    if (isa != "sse4" && isa != "neon" && isa != "scalar") {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              absl::StrCat("bf16 is not available with instruction set ", isa,
                           ", because it needs the fused multiply-add of avx2 or better; use auto, "
                           "int8 or f32"));
  }
}

// The errno values of an operating system without AMX tile support, of a system call filter, and of
// a signal stack that is too small for the tiles.
TEST(IsaTest, ReportsDeniedRegistersAndAutoSkipsTheLevel) {
  constexpr auto kTrue = [] { return true; };
  for (const internal::IsaLevel& amx :
       {internal::IsaLevel{"amx", HWY_AVX3, kTrue, [] { return EINVAL; }},
        internal::IsaLevel{"amx", HWY_AVX3, kTrue, [] { return EPERM; }},
        internal::IsaLevel{"amx", HWY_AVX3, kTrue, [] { return ENOSPC; }}}) {
    const absl::Status status = internal::CheckLevel(amx, HWY_AVX3);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                testing::HasSubstr("operating system denies this process its registers"));
    EXPECT_THAT(status.message(), testing::HasSubstr(std::strerror(amx.request_registers())));
    const internal::IsaLevel vnni = {"avx512_vnni", HWY_AVX3, kTrue};
    const internal::IsaLevel scalar = {"scalar", HWY_SCALAR, kTrue};
    EXPECT_EQ(internal::BestLevel(std::array{amx, vnni, scalar}, HWY_AVX3 | HWY_SCALAR), 1u);
    EXPECT_EQ(internal::BestLevel(std::array{amx, vnni, scalar}, HWY_SCALAR), 2u);
  }
}

TEST(IsaTest, RequestsRegistersOnlyIfTheLevelCanBeSelected) {
  static int requests;
  requests = 0;
  const auto request = [] {
    ++requests;
    return 0;
  };
  internal::IsaLevel amx = {"amx", HWY_AVX3, [] { return false; }, request};
  const internal::IsaLevel scalar = {"scalar", HWY_SCALAR, [] { return true; }};
  EXPECT_THAT(internal::CheckLevel(amx, HWY_AVX3).message(),
              testing::HasSubstr("not available on this CPU"));
  EXPECT_EQ(internal::BestLevel(std::array{amx, scalar}, HWY_AVX3 | HWY_SCALAR), 1u);
  EXPECT_EQ(requests, 0);
  amx.has_features = [] { return true; };
  EXPECT_TRUE(internal::CheckLevel(amx, HWY_AVX3).ok());
  EXPECT_EQ(requests, 1);
  EXPECT_EQ(internal::BestLevel(std::array{amx, scalar}, HWY_AVX3 | HWY_SCALAR), 0u);
}

}  // namespace
}  // namespace quire::kernels
