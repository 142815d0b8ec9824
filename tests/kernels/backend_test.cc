#include "kernels/backend.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

TEST(BackendTest, ACudaBackendNeedsAStreamOfAGpu) {
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

TEST(BackendTest, EveryIndexIsVisitedOnceForAnyThreadCount) {
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
        EXPECT_TRUE(once(items));
      }
    }
  }
}

// Packing and computing cut the panels of a matrix alike, so that on a machine of several nodes a
// thread computes with the memory that it was the first to touch.
TEST(BackendTest, TheCutDoesNotDependOnTheWork) {
  const TestBackend backend(3);
  for (const std::int64_t n : {3, 7, 64, 1001}) {
    for (const double work : {1e5, 1e9}) {
      std::vector<std::pair<std::int64_t, std::int64_t>> ranges(3);
      (*backend).ParallelFor(n, work, [&](std::int64_t begin, std::int64_t end, int part) {
        ranges[static_cast<std::size_t>(part)] = {begin, end};
      });
      for (std::int64_t part = 0; part < 3; ++part) {
        EXPECT_EQ(ranges[static_cast<std::size_t>(part)],
                  std::pair(n * part / 3, n * (part + 1) / 3));
      }
    }
  }
}

TEST(IsaTest, SelectsByNameAndRefusesTheRest) {
  const TestBackend backend(1);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    EXPECT_EQ((*backend).isa(), isa);
  }
  EXPECT_EQ((*backend).isa(), AvailableIsas().front());
  EXPECT_EQ(SelectCpuIsa("mmx").code(), absl::StatusCode::kInvalidArgument);
  // A machine is x86 or Arm, never both.
  EXPECT_TRUE(!SelectCpuIsa("sse4").ok() || !SelectCpuIsa("neon").ok());
  EXPECT_TRUE(SelectCpuIsa("auto").ok());
}

}  // namespace
}  // namespace quire::kernels
