#include "base/split_mix.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

// The output of the authors' program for the seed 1234567.
TEST(SplitMixTest, KnownAnswers) {
  std::uint64_t state = 1234567;
  for (const std::uint64_t want :
       {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u}) {
    EXPECT_EQ(SplitMix(state), want);
    state += kSplitMixStep;
  }
}

}  // namespace
}  // namespace quire
