#include "base/machine.h"

#include <sched.h>

#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(MachineTest, NamesWhatThisProcessMayUse) {
  const Machine machine = Machine::Detect();
  ASSERT_FALSE(machine.cpus().empty());
  EXPECT_EQ(std::set(machine.cpus().begin(), machine.cpus().end()).size(), machine.cpus().size());
  EXPECT_GE(machine.physical_cores(), 1);
  EXPECT_LE(machine.physical_cores(), static_cast<int>(machine.cpus().size()));
  EXPECT_THAT(machine.isa(),
              ::testing::AnyOf("amx", "avx512vnni", "avx512", "avx2", "neon", "baseline"));
  EXPECT_FALSE(machine.cpu_model().empty());
}

TEST(MachineTest, ObeysTheAffinityMask) {
  const int only = Machine::Detect().cpus().back();
  std::thread bound([only] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(only), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    const Machine machine = Machine::Detect();
    EXPECT_THAT(machine.cpus(), ::testing::ElementsAre(only));
    EXPECT_EQ(machine.physical_cores(), 1);
  });
  bound.join();
}

}  // namespace
}  // namespace quire
