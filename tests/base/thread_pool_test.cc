#include "base/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <cfenv>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryPartOnceOnItsOwnThread) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.size(), GetParam());
  std::vector<std::thread::id> first(static_cast<std::size_t>(GetParam()));
  for (int run = 0; run < 200; ++run) {
    std::vector<int> calls(first.size(), 0);
    pool.Run([&](int part) {
      const auto i = static_cast<std::size_t>(part);
      ++calls[i];
      if (run == 0) first[i] = std::this_thread::get_id();
      EXPECT_EQ(first[i], std::this_thread::get_id());
    });
    for (const int count : calls) EXPECT_EQ(count, 1);
  }
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
}

// One part writes plain (non-atomic) memory that another part reads in the next Run. A missing
// barrier would break this, and ThreadSanitizer would report it.
TEST_P(ThreadPoolTest, WritesOfOneRunAreVisibleInTheNext) {
  ThreadPool pool(GetParam());
  const auto n = static_cast<std::size_t>(GetParam());
  std::vector<std::int64_t> now(n), next(n);
  for (std::size_t i = 0; i < n; ++i) now[i] = static_cast<std::int64_t>(i);
  const std::int64_t total = std::accumulate(now.begin(), now.end(), std::int64_t{0});
  for (int run = 0; run < 2000; ++run) {
    pool.Run([&](int part) {
      const auto i = static_cast<std::size_t>(part);
      next[i] = now[(i + 1) % n];
    });
    std::swap(now, next);
  }
  EXPECT_EQ(std::accumulate(now.begin(), now.end(), std::int64_t{0}), total);
}

TEST_P(ThreadPoolTest, ParallelForCoversTheRangeOnce) {
  ThreadPool pool(GetParam());
  for (const std::int64_t n : {0, 1, 2, 7, 8, 63, 64, 65, 1000}) {
    for (const std::int64_t grain : {1, 8, 100}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
      std::atomic<int> calls{0};
      pool.ParallelFor(n, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_TRUE(begin % grain == 0 && (end % grain == 0 || end == n));
        for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        ++calls;
      });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      EXPECT_LE(calls.load(), GetParam());
    }
  }
}

// Covers all hand-overs: workers asleep, workers spinning, the caller last, the caller first.
TEST_P(ThreadPoolTest, SurvivesEveryKindOfPause) {
  for (const absl::Duration spin : {absl::ZeroDuration(), absl::Microseconds(20)}) {
    ThreadPool pool(GetParam(), {.spin = spin});
    std::mt19937 random(7);
    std::atomic<std::int64_t> parts{0};
    const int runs = 1000;
    const auto work = [](unsigned amount) {
      volatile unsigned sink = 0;
      for (unsigned i = 0; i < amount; ++i) sink = sink + i;
    };
    for (int run = 0; run < runs; ++run) {
      const int slow_part = static_cast<int>(random() % 64) % GetParam();
      const unsigned amount = run % 10 == 0 ? 50000 : 10;
      pool.Run([&](int part) {
        if (part == slow_part) work(amount);
        ++parts;
      });
      work(run % 7 == 0 ? 100000 : 10);
    }
    EXPECT_EQ(parts.load(), std::int64_t{runs} * GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

std::vector<int> MaskOfThisThread() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

TEST(ThreadPoolTest, BindsWorkersAndOnRequestTheCaller) {
  // Runs in a separate thread, since a binding is permanent.
  std::thread([] {
    const std::vector<int> all = MaskOfThisThread();
    const std::vector<int> cpus = {all.front(), all.back(), all.front()};
    ThreadPool pool(3, {.cpus = cpus});
    std::vector<std::vector<int>> masks(3);
    const auto look = [&](int part) { masks[static_cast<std::size_t>(part)] = MaskOfThisThread(); };
    pool.Run(look);
    EXPECT_EQ(masks[0], all);
    EXPECT_EQ(masks[1], std::vector{cpus[1]});
    EXPECT_EQ(masks[2], std::vector{cpus[2]});
    pool.BindCaller();
    pool.Run(look);
    EXPECT_EQ(masks[0], std::vector{cpus[0]});
  }).join();
}

TEST(ThreadPoolTest, BindsNoThreadWithoutCpus) {
  const std::vector<int> all = MaskOfThisThread();
  ThreadPool pool(2);
  pool.BindCaller();
  std::atomic<int> same{0};
  pool.Run([&](int) { same += MaskOfThisThread() == all ? 1 : 0; });
  EXPECT_EQ(same.load(), 2);
}

// A library may change the floating-point modes of the thread that loads it. All parts must then
// use the same modes.
TEST(ThreadPoolTest, PartsUseTheFloatingPointModesOfTheCaller) {
  ThreadPool pool(3);
  const auto thirds = [&pool] {
    std::vector<double> result(3);
    pool.Run([&](int part) {
      volatile double one = 1;
      volatile double three = 3;
      result[static_cast<std::size_t>(part)] = one / three;
    });
    return result;
  };
  const std::vector<double> nearest = thirds();
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const std::vector<double> upward = thirds();
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
  for (std::size_t part = 0; part < 3; ++part) {
    EXPECT_EQ(nearest[part], nearest[0]);
    EXPECT_EQ(upward[part], upward[0]);
    EXPECT_LT(nearest[part], upward[part]);
  }
  EXPECT_EQ(thirds(), nearest);
}

TEST(ThreadPoolTest, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

TEST(ThreadPoolDeathTest, RequiresAThread) {
  EXPECT_DEATH(ThreadPool pool(0), "check failed");
  EXPECT_DEATH(ThreadPool pool(2, {.cpus = {0}}), "check failed");
}

}  // namespace
}  // namespace quire
