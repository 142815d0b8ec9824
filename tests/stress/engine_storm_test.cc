#include <gtest/gtest.h>

#include <vector>

#include "tests/stress/storm.h"

namespace quire::engine {
namespace {

TEST(EngineStormTest, FakeModel) {
  const auto model = MakeFakeModel();
  RunStorm(*model, *model, StormRequests());
}

TEST(EngineStormTest, RecurrentFakeModel) {
  const auto model = MakeRecurrentFakeModel();
  RunStorm(*model, *model, StormRequests() / 2);
}

TEST(EngineStormTest, OverlappedFakeModel) {
  const auto calm = MakeFakeModel();
  const auto model = MakeFakeModel(/*max_steps_in_flight=*/2);
  RunStorm(*model, *calm, StormRequests());
}

TEST(EngineStormTest, OverlappedWindowedFakeModel) {
  const std::vector<cache::CacheGroup> groups = {{.window = 24}, {.window = 0}, {.window = 40}};
  const auto calm = MakeFakeModel(1, groups);
  const auto model = MakeFakeModel(/*max_steps_in_flight=*/2, groups);
  RunStorm(*model, *calm, StormRequests() / 2, /*usable_pages=*/72);
}

}  // namespace
}  // namespace quire::engine
