// Injects faults into the checked ops. Each must be found, and the next level must be used. The
// faults occur in the child process of the check, on the best level of this machine only.

#include "runtime/cpu_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/backend/isa.h"
#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/recurrent/state_scan.h"
#include "runtime/compute_device.h"
#include "tests/kernels/software_tiles.h"

namespace quire::runtime {
namespace {

using kernels::Backend;
using kernels::CpuActivations;
using kernels::KernelCheck;
using kernels::LinearParams;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DeviceOptions Cpu(std::string isa = "auto") {
  DeviceOptions options;
  options.type = DeviceChoice::kCpu;
  options.isa = std::move(isa);
  options.threads = 1;
  options.pin_threads = false;
  return options;
}

// Options whose product runs `fault` instead of Linear with int8 activations on the best level.
CpuCheckOptions WithFault(std::function<absl::Status(const Backend&, const LinearParams&)> fault) {
  CpuCheckOptions options;
  options.ops.linear = [fault = std::move(fault), level = options.levels[0]](
                           const Backend& backend, const LinearParams& params) {
    if (backend.isa() != level || backend.activations() != CpuActivations::kInt8) {
      return kernels::Linear(backend, params);
    }
    return fault(backend, params);
  };
  return options;
}

[[noreturn]] void ExecuteIllegalInstruction() {
#if defined(__x86_64__)
  asm volatile("ud2");
#endif
  raise(SIGILL);
  _exit(0);
}

[[noreturn]] void Hang() {
  for (;;) pause();
}

struct Fault {
  const char* name;
  CpuCheckOptions options;
  std::string kernel;
  std::string shape;  // a part of it
  std::string fault;  // a part of it
};

// Faults of products.
std::vector<Fault> ProductFaults() {
  std::vector<Fault> faults;
  const auto add = [&](const char* name,
                       std::function<absl::Status(const Backend&, const LinearParams&)> fault,
                       std::string shape, std::string words) {
    faults.push_back({name, WithFault(std::move(fault)), "int8 product", shape, words});
  };
  // Runs Linear, then `change` if the batch has this many rows.
  const auto after = [](std::uint32_t rows, std::function<void(const LinearParams&)> change) {
    return [=](const Backend& backend, const LinearParams& params) {
      const absl::Status status = kernels::Linear(backend, params);
      if (params.num_rows == rows) change(params);
      return status;
    };
  };
  add(
      "IllegalInstruction",
      [](const auto&, const auto&) -> absl::Status { ExecuteIllegalInstruction(); }, "int8, 1 x",
      "signal 4 (Illegal instruction) ended it");
  add("Killed", after(17, [](const auto&) { kill(getpid(), SIGKILL); }), "int8, 17 x",
      "signal 9 (Killed) ended it");
  add("EndsEarly", after(4, [](const auto&) { _exit(0); }), "int8, 4 x", "its process ended early");
  add(
      "ReturnsError",
      [](const auto&, const auto&) { return absl::InternalError("tiles are broken"); }, "int8, 1 x",
      "tiles are broken");
  add("WrongScale",
      after(1,
            [](const LinearParams& params) {
              for (std::uint32_t n = 0; n < params.weight->n(); ++n) params.y.f32()[n] *= 1.01f;
            }),
      "int8, 1 x", "72 of 72 values have wrong bits, the first in row 0");
  add(
      "UnwrittenRow",
      [](const Backend& backend, const LinearParams& params) {
        LinearParams shorter = params;
        if (params.num_rows == 9) shorter.num_rows = 8;
        return kernels::Linear(backend, shorter);
      },
      "int8, 9 x", "72 of 648 values are NaN or were not written");
  add("BitsOfOneRowCount",
      after(17,
            [](const LinearParams& params) {
              float& value = params.y.f32()[5 * params.y_stride + 7];
              value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1u);
            }),
      "int8, 17 x", "1 of 1224 values have wrong bits, the first in row 5");
  add("WritesBeyondRow",
      after(4, [](const LinearParams& params) { params.y.f32()[params.weight->n()] = 0; }),
      "int8, 4 x", "memory beyond the output was written");
  return faults;
}

std::vector<Fault> AllFaults() {
  std::vector<Fault> faults = ProductFaults();
  CpuCheckOptions options;
  const std::string level = options.levels[0];
  options.ops.linear = [level](const Backend& backend, const LinearParams& params) {
    if (backend.isa() == level) Hang();
    return kernels::Linear(backend, params);
  };
  options.time_limit = absl::Seconds(3);
  faults.push_back({"Hangs", options, "int8 product", "int8, 1 x", "it did not end within 3s"});

  options = CpuCheckOptions();
  options.ops.attention = [level](const Backend& backend, const kernels::AttentionParams& params) {
    kernels::AttentionParams scaled = params;
    if (backend.isa() == level) scaled.scale *= 1.001f;
    return kernels::PagedAttention(backend, scaled);
  };
  faults.push_back({"WrongScores", options, "f32 attention", "heads of 64", "above the limit"});

  if (level.starts_with("avx") || level == "amx") {
    options = CpuCheckOptions();
    options.ops.attention = [level](const Backend& backend,
                                    const kernels::AttentionParams& params) {
      const absl::Status status = kernels::PagedAttention(backend, params);
      const bool is_bf16 = backend.activations() == kernels::CpuActivations::kBF16;
      if (backend.isa() == level && is_bf16) params.out.f32()[3] *= 1.001f;
      return status;
    };
    faults.push_back({"WrongBf16Attention", options, "bf16 attention", "heads of 64",
                      "1 of 5376 values have wrong bits, the first in row 0"});
  }

  options = CpuCheckOptions();
  options.ops.norm = [level](const Backend& backend, const kernels::RmsNormParams& params) {
    const absl::Status status = kernels::RmsNorm(backend, params);
    if (backend.isa() == level) params.residual[3] = 0;
    return status;
  };
  faults.push_back({"LosesResidual", options, "rms norm", "9 x 333", "the residual is wrong"});

  options = CpuCheckOptions();
  options.ops.scan = [level](const Backend& backend, const kernels::StateScanParams& params) {
    kernels::StateScanParams restarted = params;
    const std::int32_t first_position = 0;
    if (backend.isa() == level && params.rows.positions[0] > 0) {
      restarted.rows.positions = &first_position;
    }
    return kernels::StateScan(backend, restarted);
  };
  faults.push_back(
      {"ForgetsState", options, "state scan", "2 heads of 24 x 72", "above the limit"});

  options = CpuCheckOptions();
  options.select = [level](absl::string_view isa) {
    if (isa == level) return absl::FailedPreconditionError("no tile registers");
    return kernels::SelectCpuIsa(isa);
  };
  faults.push_back({"CannotBeSelected", options, "selection", level, "no tile registers"});
  return faults;
}

TEST(CpuCheckTest, EveryLevelOfThisMachinePasses) {
  for (const std::string& level : kernels::AvailableCpuIsas()) {
    const absl::StatusOr<CpuLevelCheck> check = CheckCpuLevel(level);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_EQ(check->FindFault(), nullptr) << level << "\n" << KernelCheckTable(check->kernels);
    std::set<std::string> kernels;
    for (const KernelCheck& kernel : check->kernels) {
      kernels.insert(kernel.kernel);
      EXPECT_LE(kernel.error, kernel.limit) << kernel.kernel << ", " << kernel.shape;
    }
    std::set<std::string> expected = {"f32 attention", "f32 product", "int8 product", "rms norm",
                                      "state scan"};
    if (level != "sse4" && level != "neon" && level != "scalar") {
      expected.insert({"bf16 attention", "bf16 product"});
    }
    EXPECT_EQ(kernels, expected) << level;
  }
}

// The check does not depend on the model. It is part of every start on a CPU.
TEST(CpuCheckTest, RecordsItsTime) {
  const CpuCheck check = CheckCpu(Cpu());
  ASSERT_TRUE(check.status.ok()) << check.status;
  EXPECT_GT(check.result.time, absl::ZeroDuration());
  EXPECT_LT(check.result.time, absl::Seconds(5));  // the limit after which a level is skipped
  RecordProperty("seconds", std::to_string(absl::ToDoubleSeconds(check.result.time)));
}

class CpuFaultTest : public testing::TestWithParam<Fault> {
 protected:
  void SetUp() override {
    if (GetParam().options.levels.size() < 2) GTEST_SKIP() << "this machine has one level";
  }
};

TEST_P(CpuFaultTest, IsFoundAndTheNextLevelIsUsed) {
  const Fault& injected = GetParam();
  const std::vector<std::string>& levels = injected.options.levels;
  const CpuCheck check = CheckCpu(Cpu(), injected.options);
  ASSERT_TRUE(check.status.ok()) << check.status;
  EXPECT_EQ(check.isa, levels[1]);
  EXPECT_THAT(check.result.skipped_levels, ElementsAre(levels[0]));
  EXPECT_GT(check.result.checks, 0);
  ASSERT_EQ(check.skipped.size(), 1u);
  EXPECT_EQ(check.skipped[0].level, levels[0]);
  const KernelCheck* const found = check.skipped[0].FindFault();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->kernel, injected.kernel);
  EXPECT_THAT(found->shape, HasSubstr(injected.shape));
  EXPECT_THAT(found->fault, HasSubstr(injected.fault));

  const auto device = ComputeDevice::Open(Cpu(), check);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->Describe().architecture, levels[1]);
  EXPECT_THAT((*device)->Describe().self_check.skipped_levels, ElementsAre(levels[0]));
}

TEST_P(CpuFaultTest, IsAnErrorIfTheLevelIsConfigured) {
  const Fault& injected = GetParam();
  const std::string& level = injected.options.levels[0];
  const CpuCheck check = CheckCpu(Cpu(level), injected.options);
  EXPECT_TRUE(absl::IsFailedPrecondition(check.status));
  EXPECT_THAT(std::string(check.status.message()),
              AllOf(HasSubstr("device.cpu.isa is " + level), HasSubstr(injected.kernel),
                    HasSubstr(injected.shape), HasSubstr(injected.fault),
                    HasSubstr("set device.cpu.isa to auto")));
  const auto device = ComputeDevice::Open(Cpu(level), check);
  EXPECT_EQ(device.status(), check.status);
  EXPECT_FALSE(IsDeviceError(device.status()));
}

INSTANTIATE_TEST_SUITE_P(Faults, CpuFaultTest, testing::ValuesIn(AllFaults()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CpuCheckTest, ErrorIfAllLevelsFail) {
  CpuCheckOptions options;
  options.ops.norm = [](const Backend&, const kernels::RmsNormParams&) { return absl::OkStatus(); };
  const CpuCheck check = CheckCpu(Cpu(), options);
  EXPECT_THAT(std::string(check.status.message()),
              AllOf(HasSubstr("device.cpu.isa is auto, instruction set scalar fails its check"),
                    HasSubstr("rms norm"), HasSubstr("quired --self-check")));
  EXPECT_EQ(check.result.skipped_levels, options.levels);
  EXPECT_EQ(ComputeDevice::Open(Cpu(), check).status(), check.status);
}

TEST(CpuCheckTest, ChecksOnlyTheConfiguredLevel) {
  const CpuCheck check = CheckCpu(Cpu("scalar"));
  EXPECT_TRUE(check.status.ok()) << check.status;
  EXPECT_EQ(check.isa, "scalar");
  EXPECT_GT(check.result.checks, 0);
  EXPECT_THAT(check.skipped, IsEmpty());
}

TEST(CpuCheckTest, ChecksNoLevelThatTheMachineLacks) {
  CpuCheckOptions options;
  options.levels = {"scalar"};
  options.ops.norm = [](const Backend&, const kernels::RmsNormParams&) { return absl::OkStatus(); };
#if defined(__x86_64__)
  const std::string lacking = "neon";
#else
  const std::string lacking = "avx2";
#endif
  const CpuCheck check = CheckCpu(Cpu(lacking), options);
  EXPECT_TRUE(check.status.ok()) << check.status;
  EXPECT_EQ(check.result.checks, 0);
  const absl::Status refused = SelectCheckedIsa(Cpu(lacking), check);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is not available on this CPU"));
  EXPECT_FALSE(IsDeviceError(refused));
}

// The machine has AVX-512 VNNI and appears to have AMX, whose instructions run in software.
class AmxCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::SelectCpuIsa("avx512_vnni").ok()) GTEST_SKIP() << "no AVX-512 VNNI";
    options_.levels = {"amx", "avx512_vnni"};
    options_.time_limit = absl::Minutes(1);
    options_.select = [](absl::string_view level) {
      if (level != "amx") return kernels::SelectCpuIsa(level);
      kernels::internal::SetLevel(kernels::internal::CpuLevel::kAmx);
      return absl::OkStatus();
    };
  }
  void TearDown() override { EXPECT_TRUE(kernels::SelectCpuIsa("auto").ok()); }

  CpuCheckOptions options_;
};

TEST_F(AmxCheckTest, PassesWithTiles) {
  const kernels::ScopedSoftwareTiles tiles;
  const CpuCheck check = CheckCpu(Cpu(), options_);
  ASSERT_TRUE(check.status.ok()) << check.status;
  EXPECT_EQ(check.isa, "amx") << KernelCheckTable(check.skipped.empty() ? std::vector<KernelCheck>()
                                                                        : check.skipped[0].kernels);
}

// Without software tiles the instructions themselves are illegal, unless the machine has AMX.
TEST_F(AmxCheckTest, FallsToAvx512IfTilesAreIllegal) {
  if (kernels::SelectCpuIsa("amx").ok()) GTEST_SKIP() << "this machine has AMX";
  const CpuCheck check = CheckCpu(Cpu(), options_);
  ASSERT_TRUE(check.status.ok()) << check.status;
  EXPECT_THAT(check.result.skipped_levels, ElementsAre("amx"));
  EXPECT_THAT(check.skipped[0].FindFault()->fault, HasSubstr("Illegal instruction"));
}

TEST_F(AmxCheckTest, FallsToInt8OnAvx512IfBf16ProductsAreWrong) {
  const kernels::ScopedSoftwareTiles tiles;
  options_.ops.linear = [](const Backend& backend, const LinearParams& params) {
    const absl::Status status = kernels::Linear(backend, params);
    if (backend.isa() == "amx" && backend.activations() == CpuActivations::kBF16) {
      params.y.f32()[0] += 1;
    }
    return status;
  };
  const CpuCheck check = CheckCpu(Cpu(), options_);
  ASSERT_TRUE(check.status.ok()) << check.status;
  ASSERT_THAT(check.result.skipped_levels, ElementsAre("amx"));
  EXPECT_EQ(check.skipped[0].FindFault()->kernel, "bf16 product");
  kernels::internal::SetLevel(kernels::internal::CpuLevel::kAmx);
  const auto of_integers = [] {
    return kernels::ResolveCpuActivations(CpuActivations::kAuto, /*weights_are_bf16=*/false);
  };
  EXPECT_EQ(of_integers(), CpuActivations::kBF16);
  const auto device = ComputeDevice::Open(Cpu(), check);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->backend().isa(), "avx512_vnni");
  ASSERT_TRUE((*device)->SetActivations(of_integers()).ok());
  // The fingerprint of prefix pages is derived from these activations (PageFingerprint).
  EXPECT_EQ((*device)->backend().activations(), CpuActivations::kInt8);
  EXPECT_EQ((*device)->Describe().activations, "int8");
}

}  // namespace
}  // namespace quire::runtime
