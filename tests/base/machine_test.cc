#include "base/machine.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two packages of two cores with two threads, whose siblings are 4 apart.
constexpr char kEightCpus[] = "package:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)";

// Uses a fake topology, /proc and /sys.
class FakeMachineTest : public ::testing::Test {
 protected:
  FakeMachineTest()
      : root_(std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
  }
  ~FakeMachineTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  Machine EightCpus(std::vector<int> allowed = {0, 1, 2, 3, 4, 5, 6, 7}) {
    return Machine::Detect(
        {.root = root_.string(), .topology = kEightCpus, .cpus = std::move(allowed)});
  }

  std::filesystem::path root_;
};

TEST(MachineTest, NamesTheUsableCpus) {
  const Machine machine = Machine::Detect();
  ASSERT_FALSE(machine.cpus().empty());
  EXPECT_EQ(std::set(machine.cpus().begin(), machine.cpus().end()).size(), machine.cpus().size());
  EXPECT_GE(machine.physical_cores(), 1);
  EXPECT_LE(machine.physical_cores(), static_cast<int>(machine.cpus().size()));
  EXPECT_THAT(machine.isa(), ::testing::AnyOf("amx", "avx512_vnni", "avx512", "avx_vnni", "avx2",
                                              "neon", "baseline"));
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
    EXPECT_THAT(machine.cpus(), ElementsAre(only));
    EXPECT_EQ(machine.physical_cores(), 1);
  });
  bound.join();
}

TEST_F(FakeMachineTest, CountsCoresNotThreads) {
  const Machine machine = EightCpus();
  EXPECT_EQ(machine.physical_cores(), 4);
  EXPECT_THAT(machine.core_cpus(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(machine.CpusToBind(4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(machine.CpusToBind(3), IsEmpty());
  EXPECT_THAT(machine.CpusToBind(8), IsEmpty());
}

TEST_F(FakeMachineTest, MaskWithHalfOfACore) {
  const Machine machine = EightCpus({1, 5, 6});
  EXPECT_EQ(machine.physical_cores(), 2);
  EXPECT_THAT(machine.CpusToBind(2), ElementsAre(1, 6));
}

TEST_F(FakeMachineTest, EveryCpuIsACoreWithoutATopology) {
  const Machine machine =
      Machine::Detect({.root = root_.string(), .topology = "pu:3", .cpus = std::vector{0, 1, 2}});
  EXPECT_EQ(machine.physical_cores(), 3);
  EXPECT_EQ(machine.cpu_model(), "unknown");
}

TEST_F(FakeMachineTest, QuotaOfVersion2RoundsUp) {
  Write("proc/self/cgroup", "0::/pod/box");
  Write("sys/fs/cgroup/pod/box/cpu.max", "250000 100000");
  const Machine machine = EightCpus();
  EXPECT_EQ(machine.physical_cores(), 3);
  EXPECT_THAT(machine.CpusToBind(3), IsEmpty());
  EXPECT_THAT(machine.CpusToBind(4), IsEmpty());
}

TEST_F(FakeMachineTest, AppliesTheQuotaOfAParent) {
  Write("proc/self/cgroup", "0::/pod/box");
  Write("sys/fs/cgroup/pod/box/cpu.max", "max 100000");
  Write("sys/fs/cgroup/pod/cpu.max", "100000 100000");
  EXPECT_EQ(EightCpus().physical_cores(), 1);
}

// In a container the paths of the host's cgroups are visible, but only the own cgroup is mounted.
TEST_F(FakeMachineTest, QuotaAtTheMountOfAContainer) {
  Write("proc/self/cgroup", "0::/docker/0123");
  Write("sys/fs/cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(EightCpus().physical_cores(), 2);
}

TEST_F(FakeMachineTest, QuotaOfVersion1) {
  Write("proc/self/cgroup", "7:memory:/m\n4:cpu,cpuacct:/pod/box\n1:name=systemd:/");
  Write("sys/fs/cgroup/cpu/pod/box/cpu.cfs_quota_us", "-1");
  Write("sys/fs/cgroup/cpu/pod/box/cpu.cfs_period_us", "100000");
  EXPECT_EQ(EightCpus().physical_cores(), 4);
  Write("sys/fs/cgroup/cpu/pod/box/cpu.cfs_quota_us", "50000");
  EXPECT_EQ(EightCpus().physical_cores(), 1);
}

TEST_F(FakeMachineTest, IgnoresInvalidQuotas) {
  Write("proc/self/cgroup", "0::/");
  for (const char* bad : {"", "max", "abc 100000", "100000 0", "-5 100000", "1 2 3"}) {
    Write("sys/fs/cgroup/cpu.max", bad);
    EXPECT_EQ(EightCpus().physical_cores(), 4) << bad;
  }
}

// Simulates a sandbox without /sys.
TEST(MachineTest, WithoutATopologyEveryCpuIsACore) {
  setenv("HWLOC_COMPONENTS", "stop", /*overwrite=*/1);
  const Machine machine = Machine::Detect();
  unsetenv("HWLOC_COMPONENTS");
  EXPECT_EQ(machine.cpus().size(), std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_EQ(machine.core_cpus(), machine.cpus());
  EXPECT_GE(machine.physical_cores(), 1);
  EXPECT_EQ(machine.cpu_model(), "unknown");
}

}  // namespace
}  // namespace quire
