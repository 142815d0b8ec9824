#include "server/net/connection_evictor.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>

namespace quire::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) {
  return kStart + absl::Seconds(seconds);
}

std::optional<std::uint64_t> Evict(ConnectionEvictor& evictor, const std::string& ip, double at) {
  const auto evicted = evictor.EvictOne(ip, At(at));
  if (!evicted) return std::nullopt;
  return evicted->number;
}

TEST(ConnectionEvictorTest, LongestIdleConnectionIsEvictedFirst) {
  ConnectionEvictor evictor;
  for (std::uint64_t number = 0; number < 5; ++number) {
    evictor.Add(number, "a", At(0.01 * static_cast<double>(number)));
  }
  evictor.SetPhase(1, Phase::kBusy, At(0.05));
  evictor.SetPhase(3, Phase::kBusy, At(0.06));
  evictor.SetPhase(1, Phase::kIdle, At(0.07));
  EXPECT_EQ(Evict(evictor, "", 0.08), 0u);
  EXPECT_EQ(Evict(evictor, "", 0.08), 2u);
  EXPECT_EQ(Evict(evictor, "", 0.08), 4u);
  EXPECT_EQ(Evict(evictor, "", 0.08), 1u) << "idle again since 0.07";
  EXPECT_EQ(Evict(evictor, "", 9), std::nullopt) << "3 is busy";
  EXPECT_EQ(evictor.size(), 1u);
  EXPECT_TRUE(evictor.CheckIntegrity().ok());
}

TEST(ConnectionEvictorTest, ConnectionThatIsBusyAfterItsEvictionIsKept) {
  ConnectionEvictor evictor;
  evictor.Add(1, "a", At(0));
  EXPECT_EQ(Evict(evictor, "a", 5), 1u);
  EXPECT_EQ(evictor.size("a"), 0u);
  evictor.SetPhase(1, Phase::kBusy, At(5));
  EXPECT_EQ(evictor.size("a"), 1u);
  evictor.SetPhase(1, Phase::kIdle, At(6));
  EXPECT_EQ(Evict(evictor, "b", 7), std::nullopt);
  EXPECT_EQ(Evict(evictor, "a", 7), 1u);
}

TEST(ConnectionEvictorTest, StalledConnectionsAreEvictedAfterIdleOnes) {
  ConnectionEvictor evictor;
  for (std::uint64_t number = 0; number < 3; ++number) evictor.Add(number, "a", At(0));
  evictor.SetPhase(0, Phase::kAwaitingBytes, At(1));
  evictor.SetPhase(1, Phase::kAwaitingBytes, At(1.1));
  evictor.SetPhase(2, Phase::kIdle, At(2));
  evictor.SetPhase(0, Phase::kAwaitingBytes, At(1.5));  // more of its request arrived
  EXPECT_EQ(evictor.EvictOne("", At(2))->phase, Phase::kIdle);
  EXPECT_EQ(Evict(evictor, "", 2), std::nullopt) << "none has been stalled for a second";
  const auto evicted = evictor.EvictOne("", At(2.2));
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(evicted->number, 1u);
  EXPECT_EQ(evicted->phase, Phase::kAwaitingBytes);
  EXPECT_EQ(Evict(evictor, "", 2.2), std::nullopt);
  EXPECT_TRUE(evictor.CheckIntegrity().ok());
}

struct Listed {
  std::string ip;
  Phase phase;
  absl::Time since;
};
using List = std::map<std::uint64_t, Listed>;

List::iterator First(List& list, const std::string& ip, Phase phase) {
  auto best = list.end();
  for (auto it = list.begin(); it != list.end(); ++it) {
    if (it->second.phase != phase || (!ip.empty() && it->second.ip != ip)) continue;
    if (best == list.end() || it->second.since < best->second.since) best = it;
  }
  return best;
}

List::iterator ToEvict(List& list, const std::string& ip, absl::Time now) {
  const auto idle = First(list, ip, Phase::kIdle);
  if (idle != list.end()) return idle;
  const auto stalled = First(list, ip, Phase::kAwaitingBytes);
  return stalled != list.end() && now - stalled->second.since >= absl::Seconds(1) ? stalled
                                                                                  : list.end();
}

void ExpectCounts(const ConnectionEvictor& evictor, const List& list) {
  std::size_t open = 0;
  std::map<std::string, std::size_t> by_ip;
  for (const auto& [number, listed] : list) {
    if (listed.phase == Phase::kClosing) continue;
    ++open;
    ++by_ip[listed.ip];
  }
  ASSERT_EQ(evictor.size(), open);
  for (const auto& [ip, count] : by_ip) ASSERT_EQ(evictor.size(ip), count);
  ASSERT_TRUE(evictor.CheckIntegrity().ok()) << evictor.CheckIntegrity();
}

// Runs all operations in random order and compares with a list that is searched linearly.
TEST(ConnectionEvictorTest, MatchesALinearSearch) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  List list;
  ConnectionEvictor evictor;
  absl::Time now = kStart;
  for (std::uint64_t number = 0; number < 4000; ++number) {
    now += absl::Milliseconds(random() % 40);
    const std::string ip(1, "abc"[random() % 3]);
    const std::uint64_t any = number == 0 ? 0 : random() % number;
    switch (random() % 6) {
      case 0:
      case 1:
        evictor.Add(number, ip, now);
        list[number] = {ip, Phase::kIdle, now};
        break;
      case 2:
        evictor.Remove(any);
        list.erase(any);
        break;
      case 3: {
        const auto phase = static_cast<Phase>(random() % 4);
        evictor.SetPhase(any, phase, now);
        if (!list.contains(any)) break;
        if (list[any].phase == phase && phase != Phase::kAwaitingBytes) break;
        list[any] = {list[any].ip, phase, now};
        break;
      }
      default: {
        const std::string of = random() % 2 == 0 ? ip : "";
        const auto wanted = ToEvict(list, of, now);
        const auto evicted = evictor.EvictOne(of, now);
        ASSERT_EQ(evicted.has_value(), wanted != list.end());
        if (!evicted) break;
        Listed& listed = list.at(evicted->number);  // several may be equally old
        ASSERT_EQ(listed.since, wanted->second.since);
        ASSERT_EQ(listed.phase, wanted->second.phase);
        ASSERT_EQ(listed.phase, evicted->phase);
        listed = {listed.ip, Phase::kClosing, now};
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCounts(evictor, list));
  }
}

}  // namespace
}  // namespace quire::server
