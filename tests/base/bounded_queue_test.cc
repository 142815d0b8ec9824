#include "base/bounded_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(BoundedQueueTest, IsFirstInFirstOutAndRejectsWhenFull) {
  BoundedQueue<int> queue(3);
  for (int round = 0; round < 5; ++round) {  // wraps around the ring
    EXPECT_TRUE(queue.TryPush(1));
    EXPECT_TRUE(queue.TryPush(2));
    EXPECT_TRUE(queue.TryPush(3));
    EXPECT_FALSE(queue.TryPush(4));
    EXPECT_EQ(queue.size(), 3u);
    EXPECT_EQ(queue.Pop(absl::InfinitePast()), 1);
    EXPECT_TRUE(queue.TryPush(5));
    EXPECT_EQ(queue.Pop(absl::InfinitePast()), 2);
    EXPECT_EQ(queue.Pop(absl::InfinitePast()), 3);
    EXPECT_EQ(queue.Pop(absl::InfinitePast()), 5);
    EXPECT_EQ(queue.Pop(absl::InfinitePast()), std::nullopt);
  }
}

TEST(BoundedQueueTest, RejectedValueStaysWithTheProducer) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  // NOLINTNEXTLINE(bugprone-use-after-move): TryPush moves the value only if it returns true.
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueueTest, PoppedSlotsReleaseTheirValue) {
  BoundedQueue<std::shared_ptr<int>> queue(4);
  auto value = std::make_shared<int>(1);
  EXPECT_TRUE(queue.TryPush(std::shared_ptr<int>(value)));
  EXPECT_EQ(value.use_count(), 2);
  queue.Pop(absl::InfinitePast());
  EXPECT_EQ(value.use_count(), 1);
}

TEST(BoundedQueueTest, PopAllAppendsAtMostMax) {
  BoundedQueue<int> queue(8);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(queue.TryPush(int{i}));
  std::vector<int> out = {-1};
  EXPECT_EQ(queue.PopAll(3, &out), 3u);
  EXPECT_EQ(queue.PopAll(9, &out), 2u);
  EXPECT_EQ(out, (std::vector<int>{-1, 0, 1, 2, 3, 4}));
  EXPECT_EQ(queue.PopAll(9, &out, absl::InfinitePast()), 0u);
}

TEST(BoundedQueueTest, PushSomePushesWhatFits) {
  BoundedQueue<std::unique_ptr<int>> queue(3);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(0)));
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  EXPECT_EQ(**queue.Pop(absl::InfinitePast()), 0);  // the next values wrap around
  std::vector<std::unique_ptr<int>> values;
  for (int i = 2; i < 5; ++i) values.push_back(std::make_unique<int>(i));
  EXPECT_EQ(queue.PushSome(values), 2u);
  EXPECT_EQ(values[0], nullptr);
  EXPECT_EQ(values[1], nullptr);
  ASSERT_NE(values[2], nullptr);
  EXPECT_EQ(*values[2], 4);
  EXPECT_EQ(queue.PushSome(values), 0u);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(**queue.Pop(absl::InfinitePast()), i);
  EXPECT_EQ(queue.PushSome({}), 0u);
  queue.Close();
  EXPECT_EQ(queue.PushSome(values), 0u);
  EXPECT_NE(values[2], nullptr);
}

TEST(BoundedQueueTest, PushSomeWakesEveryConsumer) {
  for (int round = 0; round < 100; ++round) {
    BoundedQueue<int> queue(4);
    std::atomic<int> num_started = 0, sum = 0;
    std::vector<std::thread> consumers(3);
    for (std::thread& consumer : consumers) {
      consumer = std::thread([&] {
        ++num_started;
        sum += queue.Pop(MonotonicNow() + absl::Seconds(20)).value_or(0);
      });
    }
    while (num_started < 3) std::this_thread::yield();  // most of them wait now
    std::vector<int> values = {1, 2, 4};
    EXPECT_EQ(queue.PushSome(values), 3u);
    for (std::thread& consumer : consumers) consumer.join();
    ASSERT_EQ(sum, 7);
  }
}

TEST(BoundedQueueTest, PopTimesOutAtItsDeadline) {
  BoundedQueue<int> queue(1);
  const absl::Time start = MonotonicNow();
  EXPECT_EQ(queue.Pop(start + absl::Milliseconds(20)), std::nullopt);
  EXPECT_GE(MonotonicNow() - start, absl::Milliseconds(20));
  EXPECT_EQ(queue.Pop(absl::InfinitePast()), std::nullopt);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_EQ(queue.Pop(absl::InfinitePast()), 1);
}

TEST(BoundedQueueTest, CloseWakesWaitersAndKeepsItsValues) {
  BoundedQueue<int> queue(2);
  std::thread waiter([&] { EXPECT_EQ(queue.Pop(), std::nullopt); });
  queue.Close();
  waiter.join();

  BoundedQueue<int> full(2);
  EXPECT_TRUE(full.TryPush(1));
  full.Close();
  EXPECT_FALSE(full.TryPush(2));
  EXPECT_EQ(full.Pop(), 1);
  EXPECT_EQ(full.Pop(), std::nullopt);
}

// Every value arrives once, and values of one producer keep their order.
TEST(BoundedQueueTest, ManyProducersManyConsumers) {
  constexpr int kThreads = 4, kValues = 5000;
  BoundedQueue<int> queue(16);
  std::vector<std::vector<int>> got(kThreads);
  std::vector<std::thread> producers, consumers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kValues; ++i) {
        while (!queue.TryPush(t * kValues + i)) std::this_thread::yield();
      }
    });
    consumers.emplace_back([&queue, out = &got[static_cast<std::size_t>(t)], t] {
      if (t % 2 == 0) {
        while (const auto value = queue.Pop()) out->push_back(*value);
      } else {
        while (queue.PopAll(5, out) > 0) {
        }
      }
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  std::vector<int> seen(kThreads * kValues, 0);
  for (const std::vector<int>& values : got) {
    std::vector<int> last(kThreads, -1);
    for (const int value : values) {
      ++seen[static_cast<std::size_t>(value)];
      int& previous = last[static_cast<std::size_t>(value / kValues)];
      EXPECT_LT(previous, value);
      previous = value;
    }
  }
  for (const int count : seen) EXPECT_EQ(count, 1);
}

TEST(BoundedQueueDeathTest, RequiresCapacityForOne) {
  EXPECT_DEATH(BoundedQueue<int> queue(0), "check failed");
}

}  // namespace
}  // namespace quire
