#include <gtest/gtest.h>

#include "tests/stress/real_model.h"
#include "tests/stress/storm.h"

namespace quire::engine {
namespace {

// A real model costs a hundred times as much as the fake one, so it gets a tenth of the requests.
TEST(ModelStormTest, StoryModel) {
  const auto model = MakeStoryModel(2);
  RunStorm(*model, *model, StormRequests() / 10);
}

TEST(ModelStormTest, RecurrentFixture) {
  const auto model = MakeFixtureModel("qwen35-moe-bf16", 2);
  const auto calm = MakeFixtureModel("qwen35-moe-bf16", 2);
  RunStorm(*model, *calm, StormRequests() / 10);
}

}  // namespace
}  // namespace quire::engine
