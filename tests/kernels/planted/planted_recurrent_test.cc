// Injected faults in copies of the scan of recurrent layers. The emulator aborts with the fault's
// description and accepts the unmodified kernel. CMakeLists.txt lists the text of each fault.

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/recurrent/state_scan.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace internal {

absl::Status StateScanCudaInputsNotArrived(const CudaContext& context,
                                           const StateScanParams& params);
absl::Status StateScanCudaInputsNotWhole(const CudaContext& context, const StateScanParams& params);
absl::Status StateScanCudaInputsStillRead(const CudaContext& context,
                                          const StateScanParams& params);

}  // namespace internal

namespace {

// One row of 9 tokens, which are three tiles of inputs.
TEST(PlantedRecurrentDeathTest, DetectsFaultsInTheScan) {
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  options.check = cuda_emulator::CheckedLaunches::kAll;
  cuda_emulator::SetOptions(options);
  {
    constexpr std::uint32_t kTokens = 9, kSize = 16, kStride = 3 * kSize;
    const EmulatedBackend cuda;
    const DeviceArray<float> qkv(cuda, RandomFloats(kTokens * kStride, 1, 0.1f)),
        factors(cuda, std::vector<float>(kTokens, 0.5f)), out(cuda, kTokens * kSize),
        states(cuda, 2 * kSize * kSize);
    using Words = std::vector<std::uint32_t>;
    const DeviceArray<std::uint32_t> slots(cuda, Words{1}), none(cuda, Words{0}),
        offsets(cuda, Words{0, kTokens}), live(cuda, Words{1, 0});
    std::vector<std::int32_t> order(kTokens);
    std::iota(order.begin(), order.end(), 0);
    const DeviceArray<std::int32_t> positions(cuda, order);
    const StateScanParams params{.rows = {.states = reinterpret_cast<std::byte*>(states.data()),
                                          .slot_stride = kSize * kSize * sizeof(float),
                                          .slots = {.state_in = slots.data(),
                                                    .state_out = slots.data(),
                                                    .snapshot_at = none.data(),
                                                    .snapshot_slot = none.data(),
                                                    .max_rows = 1},
                                          .row_offsets = offsets.data(),
                                          .positions = positions.data(),
                                          .batch_size = 1,
                                          .num_tokens = kTokens,
                                          .live_rows = live.data()},
                                 .q = qkv.data(),
                                 .k = qkv.data() + kSize,
                                 .v = qkv.data() + 2 * kSize,
                                 .decay = factors.data(),
                                 .rate = factors.data(),
                                 .out = out.data(),
                                 .qkv_stride = kStride,
                                 .heads = 1,
                                 .key_heads = 1,
                                 .key_size = kSize,
                                 .value_size = kSize};
    const auto run = [&](auto scan) {
      ASSERT_TRUE(scan(*(*cuda).cuda(), params).ok());
      cuda.Wait();
    };
    const auto says = [](const std::string& name, const std::string& what) {
      return absl::StrCat("kernel state_scan, .*(", what, ").*planted/", name, "/");
    };
    run(internal::StateScanCuda);
    EXPECT_DEATH(run(internal::StateScanCudaInputsNotArrived),
                 says("InputsNotArrived", "to which a copy is under way"));
    EXPECT_DEATH(run(internal::StateScanCudaInputsNotWhole),
                 says("InputsNotWhole",
                      "no barrier orders the two|which no thread has written|to "
                      "which a copy is under way"));
    EXPECT_DEATH(run(internal::StateScanCudaInputsStillRead),
                 says("InputsStillRead", "no barrier orders the two"));
  }
  cuda_emulator::Reset();
}

}  // namespace
}  // namespace quire::kernels
