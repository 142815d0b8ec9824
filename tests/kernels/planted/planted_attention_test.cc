// Injected faults in copies of attention kernels. CMakeLists.txt lists the text of each fault. With
// faults in the Hopper prefill kernel's windows, soft caps and sinks, the result differs from
// double precision. With faults in the synchronization of one-byte pages and wide heads, the
// emulator aborts. Faults in MLA rows show in both ways.

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

template <typename T>
absl::Status LaunchPrefillSm90WidenedNotFenced(const CudaContext& context, const TileArgs<T>& args,
                                               const cuda::KvLayerMaps& maps, std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90BytesNotArrived(const CudaContext& context, const TileArgs<T>& args,
                                              const cuda::KvLayerMaps& maps, std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90BytesStillRead(const CudaContext& context, const TileArgs<T>& args,
                                             const cuda::KvLayerMaps& maps, std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90TileStillMultiplied(const CudaContext& context,
                                                  const TileArgs<T>& args,
                                                  const cuda::KvLayerMaps& maps,
                                                  std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90RowsNotWhole(const CudaContext& context, const TileArgs<T>& args,
                                           const cuda::KvLayerMaps& maps, std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90ScalesOfAnotherKey(const CudaContext& context,
                                                 const TileArgs<T>& args,
                                                 const cuda::KvLayerMaps& maps,
                                                 std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90ScalesOfKeysForValues(const CudaContext& context,
                                                    const TileArgs<T>& args,
                                                    const cuda::KvLayerMaps& maps,
                                                    std::uint32_t blocks);
template <typename T>
absl::Status LaunchPrefillSm90RowsBehindTheLastKey(const CudaContext& context,
                                                   const TileArgs<T>& args,
                                                   const cuda::KvLayerMaps& maps,
                                                   std::uint32_t blocks);

absl::Status LaunchLatentSm90TileNotArrived(const CudaContext& context, const LatentArgs& args,
                                            const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90StageInUse(const CudaContext& context, const LatentArgs& args,
                                        const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90ParityOfBefore(const CudaContext& context, const LatentArgs& args,
                                            const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90WeightsNotFenced(const CudaContext& context, const LatentArgs& args,
                                              const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90WeightsNotWhole(const CudaContext& context, const LatentArgs& args,
                                             const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90MaximaNotWhole(const CudaContext& context, const LatentArgs& args,
                                            const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90ValuesNotDone(const CudaContext& context, const LatentArgs& args,
                                           const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90SpanNotReduced(const CudaContext& context, const LatentArgs& args,
                                            const cuda::TmaTile& rows);
absl::Status LaunchLatentSm90TailNotCleared(const CudaContext& context, const LatentArgs& args,
                                            const cuda::TmaTile& rows);

absl::Status LaunchDecodeWidePartNotWhole(const CudaContext& context, const TileArgs<BF16>& args,
                                          std::uint32_t blocks);
absl::Status LaunchPrefillWidePartNotWhole(const CudaContext& context, const TileArgs<BF16>& args,
                                           std::uint32_t blocks);
absl::Status LaunchDecodeWideStatesOverValues(const CudaContext& context,
                                              const TileArgs<BF16>& args, std::uint32_t blocks);

}  // namespace attention

namespace {

template <typename T>
using Launch = absl::Status (*)(const CudaContext&, const attention::TileArgs<T>&,
                                const cuda::KvLayerMaps&, std::uint32_t);
using LatentLaunch = absl::Status (*)(const CudaContext&, const attention::LatentArgs&,
                                      const cuda::TmaTile&);
using WideLaunch = absl::Status (*)(const CudaContext&, const attention::TileArgs<BF16>&,
                                    std::uint32_t);

// 150 prompt tokens after 300 cached ones with three query heads per KV head, so that the second
// half of an item's rows starts with another head than the first.
class PlantedAttentionTest : public testing::Test {
 protected:
  static AttentionShape Shape() { return {6, 2, 64, 16, DType::kBF16, DType::kBF16, 0, true, 8}; }
  template <typename T = BF16>
  static attention::TileArgs<T> ArgsOf(const AttentionParams& params) {
    const auto& keys = std::get<KvView<T>>(*params.keys);
    return {keys,
            std::get<KvView<T>>(*params.values),
            params.q.as<BF16>(),
            params.out.as<BF16>(),
            params.q_stride,
            params.out_stride,
            params.row_offsets,
            AttentionPlanAccess::Lists(*params.plan),
            params.num_heads / keys.num_heads(),
            attention::ScoreScale(params),
            attention::RulesOf(params)};
  }
  template <typename T = BF16>
  static double ErrorOf(const AttentionShape& shape, Launch<T> launch) {
    const AttentionBackend cuda(2);
    const AttentionRig rig(shape, {450}, 3);
    const std::vector<StepRows> step = {{0, 300, 150, 0}};
    DeviceStep device(rig, cuda, step);
    const absl::Status status =
        device.Enqueue([&](const Backend& backend, const AttentionParams& params) {
          return launch(*backend.cuda(), ArgsOf<T>(params), params.maps->layer(params.layer),
                        cuda.num_sms());
        });
    EXPECT_TRUE(status.ok()) << status;
    return RelativeError(device.Read(), rig.Exact(step));
  }
  static void CheckAllLaunches() {
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.check = cuda_emulator::CheckedLaunches::kAll;
    cuda_emulator::SetOptions(options);
  }
  // Runs over fp8_e4m3 pages with every launch checked.
  static double BytesErrorOf(Launch<F8E4M3> launch) {
    CheckAllLaunches();
    AttentionShape shape = Shape();
    shape.kv = DType::kF8E4M3;
    return ErrorOf<F8E4M3>(shape, launch);
  }
  // Runs a wide-head step of one row class with every launch checked.
  static double WideErrorOf(const StepRows& rows, WideLaunch launch) {
    CheckAllLaunches();
    const AttentionBackend cuda(1);
    AttentionShape shape = Shape();
    shape.head_size = 256;
    shape.tensor_maps = false;
    const AttentionRig rig(shape, {300}, 3);
    DeviceStep device(rig, cuda, {rows});
    const absl::Status status =
        device.Enqueue([&](const Backend& backend, const AttentionParams& params) {
          return launch(*backend.cuda(), ArgsOf(params), 1);
        });
    EXPECT_TRUE(status.ok()) << status;
    return RelativeError(device.Read(), rig.Exact({rows}));
  }
  // Runs decode tokens after two spans of MLA rows with a short last tile, with every launch
  // checked. One block processes both sequences, so that the ring continues from one to the other.
  static double LatentErrorOf(LatentLaunch launch) {
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.check = cuda_emulator::CheckedLaunches::kAll;
    cuda_emulator::SetOptions(options);
    const AttentionBackend cuda(1);
    AttentionShape shape{16, 1, 176, 64, DType::kBF16, DType::kBF16, 0, true, 8};
    shape.value_columns = 160;
    const AttentionRig rig(shape, {1200, 90}, 3);
    const std::vector<StepRows> step = {{0, 1199, 0, 1}, {1, 89, 0, 1}};
    DeviceStep device(rig, cuda, step);
    const absl::Status status =
        device.Enqueue([&](const Backend& backend, const AttentionParams& params) {
          return launch(*backend.cuda(),
                        {.rows = std::get<KvView<BF16>>(*params.keys),
                         .q = params.q.as<BF16>(),
                         .out = params.out.as<BF16>(),
                         .q_stride = params.q_stride,
                         .out_stride = params.out_stride,
                         .row_offsets = params.row_offsets,
                         .live_sequences = params.plan->params().live_sequences,
                         .partials = AttentionPlanAccess::Lists(*params.plan).partials,
                         .partial_rows = attention::kLatentBlockRowsSm90,
                         .num_sms = 1,
                         .num_heads = params.num_heads,
                         .block_rows = attention::kLatentBlockRowsSm90,
                         .value_columns = params.value_columns,
                         .scale_log2 = attention::ScoreScale(params)},
                        params.maps->latent(params.layer));
        });
    EXPECT_TRUE(status.ok()) << status;
    return RelativeError(device.Read(), rig.Exact(step));
  }
  static constexpr double kTolerance = 6e-3;
};

TEST_F(PlantedAttentionTest, DetectsAWrongWindowEdge) {
  AttentionShape shape = Shape();
  shape.window = 100;
  EXPECT_LE(ErrorOf(shape, attention::LaunchPrefillSm90<BF16>), kTolerance);
  EXPECT_GT(ErrorOf(shape, attention::LaunchPrefillSm90WindowEdge<BF16>), 0.02);
}

TEST_F(PlantedAttentionTest, DetectsACapAppliedAfterTheMask) {
  AttentionShape shape = Shape();
  shape.softcap = 1;
  EXPECT_LE(ErrorOf(shape, attention::LaunchPrefillSm90<BF16>), kTolerance);
  EXPECT_GT(ErrorOf(shape, attention::LaunchPrefillSm90CapOverMask<BF16>), 0.02);
}

TEST_F(PlantedAttentionTest, DetectsTheSinkOfAnotherHead) {
  AttentionShape shape = Shape();
  shape.sinks = true;
  EXPECT_LE(ErrorOf(shape, attention::LaunchPrefillSm90<BF16>), kTolerance);
  EXPECT_GT(ErrorOf(shape, attention::LaunchPrefillSm90SinkOfAnotherHead<BF16>), 0.02);
}

// The producer loads tiles that no consumer reads.
TEST_F(PlantedAttentionTest, DetectsTilesLoadedBeforeAWindow) {
  AttentionShape shape = Shape();
  shape.window = 100;
  EXPECT_DEATH(ErrorOf(shape, attention::LaunchPrefillSm90TilesBeforeWindow<BF16>),
               "kernel attention prefill sm_90a");
}

TEST_F(PlantedAttentionTest, DetectsUnsynchronizedOneByteTiles) {
  using attention::LaunchPrefillSm90;
  EXPECT_LE(BytesErrorOf(LaunchPrefillSm90<F8E4M3>), kTolerance);
  EXPECT_DEATH(BytesErrorOf(attention::LaunchPrefillSm90WidenedNotFenced<F8E4M3>),
               "kernel attention prefill bytes sm_90a.*FenceAsyncShared");
  constexpr char kRace[] =
      "kernel attention prefill bytes sm_90a.*(no barrier orders the two|under way)";
  EXPECT_DEATH(BytesErrorOf(attention::LaunchPrefillSm90BytesNotArrived<F8E4M3>), kRace);
  EXPECT_DEATH(BytesErrorOf(attention::LaunchPrefillSm90BytesStillRead<F8E4M3>), kRace);
  EXPECT_DEATH(BytesErrorOf(attention::LaunchPrefillSm90TileStillMultiplied<F8E4M3>), kRace);
  EXPECT_DEATH(BytesErrorOf(attention::LaunchPrefillSm90RowsNotWhole<F8E4M3>), kRace);
}

TEST_F(PlantedAttentionTest, DetectsWrongScalesOfOneBytePages) {
  EXPECT_GT(BytesErrorOf(attention::LaunchPrefillSm90ScalesOfAnotherKey<F8E4M3>), 0.02);
  EXPECT_GT(BytesErrorOf(attention::LaunchPrefillSm90ScalesOfKeysForValues<F8E4M3>), 0.02);
}

TEST_F(PlantedAttentionTest, DetectsUnclearedRowsAfterTheLastKey) {
  EXPECT_GT(BytesErrorOf(attention::LaunchPrefillSm90RowsBehindTheLastKey<F8E4M3>), 0.02);
}

TEST_F(PlantedAttentionTest, DetectsFaultsInMlaRows) {
  EXPECT_LE(LatentErrorOf(attention::LaunchLatentSm90), kTolerance);
  EXPECT_GT(LatentErrorOf(attention::LaunchLatentSm90SpanNotReduced), 0.02);
  // All memory after the last token is NaN.
  EXPECT_FALSE(LatentErrorOf(attention::LaunchLatentSm90TailNotCleared) <= 0.02);
  constexpr char kFound[] =
      "kernel attention latent sm_90a.*(no barrier orders the two|under way|FenceAsyncShared|"
      "deadlock|an arrival beyond|which no thread has written)";
  for (const LatentLaunch launch :
       {attention::LaunchLatentSm90TileNotArrived, attention::LaunchLatentSm90StageInUse,
        attention::LaunchLatentSm90ParityOfBefore, attention::LaunchLatentSm90WeightsNotFenced,
        attention::LaunchLatentSm90WeightsNotWhole, attention::LaunchLatentSm90MaximaNotWhole,
        attention::LaunchLatentSm90ValuesNotDone}) {
    EXPECT_DEATH(LatentErrorOf(launch), kFound);
  }
}

TEST_F(PlantedAttentionTest, DetectsUnsynchronizedWideTiles) {
  constexpr char kRace[] = "kernel attention .* wide, .*(no barrier orders the two|under way)";
  const StepRows prompt{0, 200, 20, 0};
  const StepRows generated{0, 200, 0, 1};
  EXPECT_LE(WideErrorOf(prompt, attention::LaunchPrefillWide), kTolerance);
  EXPECT_LE(WideErrorOf(generated, attention::LaunchDecodeWide), kTolerance);
  EXPECT_DEATH(WideErrorOf(prompt, attention::LaunchPrefillWidePartNotWhole), kRace);
  EXPECT_DEATH(WideErrorOf(generated, attention::LaunchDecodeWidePartNotWhole), kRace);
  EXPECT_DEATH(WideErrorOf(generated, attention::LaunchDecodeWideStatesOverValues), kRace);
}

}  // namespace
}  // namespace quire::kernels
