// Mistakes planted in copies of the Hopper prefill kernel, where it follows windows, soft caps and
// sinks: what comes out is no longer what double precision says, or the emulator ends the process.
// Which text is which mistake: CMakeLists.txt.

#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_launch_sm90.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace attention {

template <typename T>
absl::Status LaunchPrefillSm90WindowEdge(const CudaContext& context, const TileArgs<T>& args,
                                         const cuda::KvLayerMaps& maps, std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90TilesBeforeWindow(const CudaContext& context, const TileArgs<T>& args,
                                                const cuda::KvLayerMaps& maps,
                                                std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90CapOverMask(const CudaContext& context, const TileArgs<T>& args,
                                          const cuda::KvLayerMaps& maps, std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90SinkOfAnotherHead(const CudaContext& context, const TileArgs<T>& args,
                                                const cuda::KvLayerMaps& maps,
                                                std::uint32_t blocks);

}  // namespace attention

namespace {

using Launch = absl::Status (*)(const CudaContext&, const attention::TileArgs<BF16>&,
                                const cuda::KvLayerMaps&, std::uint32_t);

// Of 150 prompt tokens behind 300, by three query heads to a KV head, so that the second half of an
// item's rows begins with another head than the first.
class PlantedAttentionTest : public testing::Test {
 protected:
  static AttentionShape Shape() { return {6, 2, 64, 16, DType::kBF16, DType::kBF16, 0, true, 8}; }
  static double ErrorOf(const AttentionShape& shape, Launch launch) {
    const AttentionBackend cuda(2);
    const AttentionRig rig(shape, {450}, 3);
    const std::vector<StepRows> step = {{0, 300, 150, 0}};
    DeviceStep device(rig, cuda, step);
    const absl::Status status =
        device.Enqueue([&](const Backend& backend, const AttentionParams& params) {
          const auto& keys = std::get<KvView<BF16>>(*params.keys);
          const attention::TileArgs<BF16> args{keys,
                                               std::get<KvView<BF16>>(*params.values),
                                               params.q.as<BF16>(),
                                               params.out.as<BF16>(),
                                               params.q_stride,
                                               params.out_stride,
                                               params.row_offsets,
                                               AttentionPlanAccess::Lists(*params.plan),
                                               params.num_heads / keys.num_heads(),
                                               attention::ScoreScale(params),
                                               attention::RulesOf(params)};
          return launch(*backend.cuda(), args, params.maps->layer(params.layer), cuda.num_sms());
        });
    EXPECT_TRUE(status.ok()) << status;
    return RelativeError(device.Read(), rig.Exact(step));
  }
  static constexpr double kTolerance = 6e-3;
};

TEST_F(PlantedAttentionTest, TheEdgeOfAWindow) {
  AttentionShape shape = Shape();
  shape.window = 100;
  EXPECT_LE(ErrorOf(shape, attention::LaunchPrefillSm90<BF16>), kTolerance);
  EXPECT_GT(ErrorOf(shape, attention::LaunchPrefillSm90WindowEdge<BF16>), 0.02);
}

TEST_F(PlantedAttentionTest, ACapIsBeforeTheMask) {
  AttentionShape shape = Shape();
  shape.softcap = 1;
  EXPECT_LE(ErrorOf(shape, attention::LaunchPrefillSm90<BF16>), kTolerance);
  EXPECT_GT(ErrorOf(shape, attention::LaunchPrefillSm90CapOverMask<BF16>), 0.02);
}

TEST_F(PlantedAttentionTest, TheSinkOfAHead) {
  AttentionShape shape = Shape();
  shape.sinks = true;
  EXPECT_LE(ErrorOf(shape, attention::LaunchPrefillSm90<BF16>), kTolerance);
  EXPECT_GT(ErrorOf(shape, attention::LaunchPrefillSm90SinkOfAnotherHead<BF16>), 0.02);
}

// The producer brings tiles that no consumer takes.
TEST_F(PlantedAttentionTest, TilesBeforeAWindow) {
  AttentionShape shape = Shape();
  shape.window = 100;
  EXPECT_DEATH(ErrorOf(shape, attention::LaunchPrefillSm90TilesBeforeWindow<BF16>),
               "kernel attention prefill sm_90a");
}

}  // namespace
}  // namespace quire::kernels
