#include "server/edge/connection_places.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace quire::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) {
  return kStart + absl::Seconds(seconds);
}

TEST(ConnectionPlacesTest, EvictsLongestSilentThenLongestIdleThenYoungest) {
  ConnectionPlaces places;
  for (std::uint64_t number = 0; number < 6; ++number) {
    places.Add(number, "a", At(0.01 * static_cast<double>(number)));
  }
  places.SetPhase(1, Phase::kIdle, At(0.09));
  places.SetPhase(2, Phase::kIdle, At(0.08));
  places.SetPhase(3, Phase::kBusy, At(0.08));
  EXPECT_EQ(places.TakeOne("", At(0.105)), 0u) << "silent for 0.1 s";
  EXPECT_EQ(places.TakeOne("", At(0.105)), 4u) << "1 and 2 are between two calls";
  EXPECT_EQ(places.TakeOne("", At(0.105)), 5u);
  places.Add(6, "a", At(1.05));
  EXPECT_EQ(places.TakeOne("", At(1.1)), 2u) << "6 may still send its first bytes";
  EXPECT_EQ(places.TakeOne("", At(1.1)), 1u);
  EXPECT_EQ(places.TakeOne("", At(1.1)), 6u) << "none is idle any more";
  EXPECT_EQ(places.TakeOne("", At(0.105)), std::nullopt) << "in use";
  EXPECT_EQ(places.size(), 1u);
  EXPECT_TRUE(places.CheckIntegrity().ok());
}

TEST(ConnectionPlacesTest, EvictsRecentSilentConnectionsLastForAFirstCall) {
  ConnectionPlaces places;
  for (std::uint64_t number = 0; number < 4; ++number) places.Add(number, "a", At(0));
  places.SetPhase(1, Phase::kIdle, At(0.15));
  places.SetPhase(2, Phase::kBusy, At(0.15));
  places.Add(4, "a", At(0.16));
  EXPECT_EQ(places.TakeOneForCall(At(0.2)), 0u) << "silent for 0.1 s";
  EXPECT_EQ(places.TakeOneForCall(At(0.2)), 3u);
  EXPECT_EQ(places.TakeOneForCall(At(0.2)), 1u);
  EXPECT_EQ(places.TakeOneForCall(At(0.2)), 4u);
  EXPECT_EQ(places.TakeOneForCall(At(0.2)), std::nullopt);
}

TEST(ConnectionPlacesTest, BusyConnectionIsNotEvicted) {
  ConnectionPlaces places;
  places.Add(1, "a", At(0));
  EXPECT_EQ(places.TakeOne("a", At(5)), 1u);
  EXPECT_EQ(places.size("a"), 0u);
  places.SetPhase(1, Phase::kBusy, At(5));
  EXPECT_EQ(places.size("a"), 1u);
  places.SetPhase(1, Phase::kIdle, At(6));
  EXPECT_EQ(places.TakeOne("b", At(7)), std::nullopt);
  EXPECT_EQ(places.TakeOne("a", At(7)), 1u);
}

TEST(ConnectionPlacesTest, EvictsTheLongestStalledLast) {
  ConnectionPlaces places;
  for (std::uint64_t number = 0; number < 3; ++number) places.Add(number, "a", At(0));
  places.SetPhase(0, Phase::kStalled, At(1));
  places.SetPhase(1, Phase::kStalled, At(1.1));
  places.SetPhase(2, Phase::kIdle, At(2));
  places.SetPhase(0, Phase::kStalled, At(1.5));  // more of its message arrived
  EXPECT_EQ(places.TakeOne("", At(2)), 2u);
  EXPECT_EQ(places.TakeOne("", At(2)), std::nullopt) << "both may still continue";
  EXPECT_EQ(places.TakeOne("", At(2.2)), 1u);
  EXPECT_EQ(places.TakeOne("", At(2.2)), std::nullopt);
  EXPECT_TRUE(places.CheckIntegrity().ok());
}

TEST(ConnectionPlacesTest, FindsTheLongestLeavingConnection) {
  ConnectionPlaces places;
  for (std::uint64_t number = 0; number < 3; ++number) places.Add(number, "a", At(0));
  EXPECT_EQ(places.TakeOne("", At(1)), 0u);
  EXPECT_EQ(places.TakeOne("", At(2)), 1u);
  places.SetPhase(2, Phase::kLeaving, At(3));
  places.SetPhase(1, Phase::kBusy, At(3));
  EXPECT_EQ(places.TakeLeaving(At(0.9)), std::nullopt);
  EXPECT_EQ(places.TakeLeaving(At(9)), 0u);
  EXPECT_EQ(places.TakeLeaving(At(9)), 2u) << "1 is busy again";
  EXPECT_EQ(places.TakeLeaving(At(9)), std::nullopt);
  EXPECT_TRUE(places.CheckIntegrity().ok());
}

TEST(ConnectionPlacesTest, CountsDescriptorsOfOpenConnections) {
  ConnectionPlaces places;
  for (std::uint64_t number = 0; number < 3; ++number) places.Add(number, "a", At(0));
  EXPECT_EQ(places.descriptors(), 3);
  places.SetDescriptors(1, 3);
  EXPECT_EQ(places.descriptors(), 5);
  places.SetPhase(1, Phase::kLeaving, At(1));
  EXPECT_EQ(places.descriptors(), 2);
  places.SetPhase(1, Phase::kBusy, At(2));
  places.SetPhase(1, Phase::kIdle, At(3));
  EXPECT_EQ(places.descriptors(), 5) << "it is busy again";
  places.Remove(1);
  EXPECT_EQ(places.descriptors(), 2);
}

struct Listed {
  std::string ip;
  Phase phase;
  absl::Time since;
  int descriptors = 1;
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

List::iterator EvictionChoice(List& list, const std::string& ip, absl::Time now) {
  const auto is_for = [&](List::iterator entry, absl::Duration time) {
    return entry != list.end() && now - entry->second.since >= time;
  };
  const auto silent = First(list, ip, Phase::kSilent);
  if (is_for(silent, absl::Milliseconds(100))) return silent;
  const auto idle = First(list, ip, Phase::kIdle);
  if (is_for(idle, absl::Seconds(1))) return idle;
  if (silent != list.end()) return silent;
  if (idle != list.end()) return idle;
  const auto stalled = First(list, ip, Phase::kStalled);
  return is_for(stalled, absl::Seconds(1)) ? stalled : list.end();
}

void ExpectCounts(const ConnectionPlaces& places, const List& list) {
  std::size_t staying = 0;
  std::int64_t descriptors = 0;
  for (const auto& [number, listed] : list) {
    if (listed.phase == Phase::kLeaving) continue;
    ++staying;
    descriptors += listed.descriptors;
  }
  ASSERT_EQ(places.size(), staying);
  ASSERT_EQ(places.descriptors(), descriptors);
  ASSERT_TRUE(places.CheckIntegrity().ok()) << places.CheckIntegrity();
}

// Runs all operations in random order and compares them with a linearly searched list.
TEST(ConnectionPlacesTest, AgreesWithALinearSearch) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  List list;
  ConnectionPlaces places;
  absl::Time now = kStart;
  for (std::uint64_t number = 0; number < 4000; ++number) {
    now += absl::Milliseconds(random() % 40);
    const std::string ip(1, "abc"[random() % 3]);
    const std::uint64_t any = number == 0 ? 0 : random() % number;
    switch (random() % 7) {
      case 0:
      case 1:
        places.Add(number, ip, now);
        list[number] = {ip, Phase::kSilent, now};
        break;
      case 2:
        places.Remove(any);
        list.erase(any);
        break;
      case 3: {
        const auto phase = static_cast<Phase>(random() % 5);
        places.SetPhase(any, phase, now);
        if (!list.contains(any)) break;
        if (list[any].phase == phase && phase != Phase::kStalled) break;
        list[any] = {list[any].ip, phase, now, list[any].descriptors};
        break;
      }
      case 5:
        places.SetDescriptors(any, 3);
        if (list.contains(any)) list[any].descriptors = 3;
        break;
      case 4: {
        const absl::Time since = now - absl::Milliseconds(random() % 400);
        const auto wanted = First(list, "", Phase::kLeaving);
        const std::optional<std::uint64_t> taken = places.TakeLeaving(since);
        ASSERT_EQ(taken.has_value(), wanted != list.end() && wanted->second.since <= since);
        if (!taken) break;
        ASSERT_EQ(list.at(*taken).since, wanted->second.since);
        list.erase(*taken);
        break;
      }
      default: {
        const std::string of = random() % 2 == 0 ? ip : "";
        const auto wanted = EvictionChoice(list, of, now);
        const std::optional<std::uint64_t> taken = places.TakeOne(of, now);
        ASSERT_EQ(taken.has_value(), wanted != list.end());
        if (!taken) break;
        Listed& evicted = list.at(*taken);  // several may be equally old
        ASSERT_EQ(evicted.since, wanted->second.since);
        ASSERT_EQ(evicted.phase, wanted->second.phase);
        evicted = {evicted.ip, Phase::kLeaving, now, evicted.descriptors};
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCounts(places, list));
  }
}

}  // namespace
}  // namespace quire::server
