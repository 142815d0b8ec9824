// Injected faults in copies of the kernels that are fused behind a product, and of the Hopper
// product. The emulator aborts with the fault's description and accepts the unmodified kernel.
// CMakeLists.txt lists the text of each fault.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "kernels/moe/route.h"
#include "kernels/sampling/sampling_device.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace internal {

absl::Status RouteCudaNoFenceBefore(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaNoFenceBehind(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaNoBarrierBefore(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaNoBarrierBehind(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaTileOverFlag(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaTileNotWhole(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaScoresOverFlag(const CudaContext& context, const RouteParams& params);
absl::Status RouteCudaChoicesNotWhole(const CudaContext& context, const RouteParams& params);
absl::Status LinearTensorCoreCudaHeadsNotWhole(const CudaContext& context,
                                               const LinearParams& params);
absl::Status LinearTensorCoreCudaStageNotArrived(const CudaContext& context,
                                                 const LinearParams& params);
absl::Status LinearTensorCoreCudaStageNotWhole(const CudaContext& context,
                                               const LinearParams& params);
absl::Status LinearTensorCoreCudaSumsOverRing(const CudaContext& context,
                                              const LinearParams& params);
absl::Status LinearTensorCoreCudaSumsByArrival(const CudaContext& context,
                                               const LinearParams& params);
absl::Status GroupedLinearTensorCoreCudaPlacesOverFlag(const CudaContext& context,
                                                       const GroupedLinearParams& params);
absl::Status GroupedLinearTensorCoreCudaPlacesNotWhole(const CudaContext& context,
                                                       const GroupedLinearParams& params);
absl::StatusOr<bool> LinearSm90CudaStageStillRead(const CudaContext& context,
                                                  const LinearParams& params);
absl::StatusOr<bool> LinearSm90CudaPeerStillReads(const CudaContext& context,
                                                  const LinearParams& params);
absl::StatusOr<bool> LinearSm90CudaPeerNotReady(const CudaContext& context,
                                                const LinearParams& params);
absl::StatusOr<bool> LinearSm90CudaPeerLeftAlone(const CudaContext& context,
                                                 const LinearParams& params);
absl::StatusOr<bool> LinearSm90CudaStageGivenAwayEarly(const CudaContext& context,
                                                       const LinearParams& params);
absl::StatusOr<bool> LinearSm90CudaSumsOverStages(const CudaContext& context,
                                                  const LinearParams& params);
absl::StatusOr<bool> LinearSm90CudaSumsNotWhole(const CudaContext& context,
                                                const LinearParams& params);
absl::Status LaunchSamplesScanNotWhole(const CudaContext& context, const SamplerArgs& args,
                                       const SamplerNeeds& needs);
absl::Status LaunchSamplesListNotWhole(const CudaContext& context, const SamplerArgs& args,
                                       const SamplerNeeds& needs);
absl::Status LaunchSamplesMassNotWhole(const CudaContext& context, const SamplerArgs& args,
                                       const SamplerNeeds& needs);

}  // namespace internal

namespace {

constexpr char kBlocks[] = "no fence and atomic order the blocks";
constexpr char kThreads[] = "no barrier orders the two";

// Returns the text that the process prints when it aborts: the place of the fault in the copy of
// this name, and its description.
std::string Says(const std::string& kernel, const std::string& name, const std::string& what) {
  return absl::StrCat("kernel ", kernel, ", .*planted/", name, "/.*: ", what);
}

std::vector<BF16> RandomRows(std::size_t n, std::uint32_t seed) {
  std::vector<BF16> values;
  for (const float v : RandomFloats(n, seed, 0.2f)) values.push_back(BF16::FromFloat(v));
  return values;
}

class PlantedDeathTest : public testing::Test {
 protected:
  PlantedDeathTest() {
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.check = cuda_emulator::CheckedLaunches::kAll;
    cuda_emulator::SetOptions(options);
    cuda_.emplace();
  }
  ~PlantedDeathTest() override {
    cuda_.reset();
    cuda_emulator::Reset();
  }

  const EmulatedBackend& cuda() const { return *cuda_; }
  const CudaContext& context() const { return *(*cuda()).cuda(); }

  PackedLinear Pack(std::uint32_t n, std::uint32_t k, std::uint32_t seed) const {
    const std::vector<BF16> values = RandomRows(std::size_t{n} * k, seed);
    const WeightRows source{values.data(), n};
    return *PackLinearWeights(*cuda(), {&source, 1}, DType::kBF16, k,
                              {.activations = DType::kBF16});
  }

 private:
  std::optional<EmulatedBackend> cuda_;
};

using Route = absl::Status (*)(const CudaContext&, const RouteParams&);

// Two tiles of features with four sub-ranges of K each.
TEST_F(PlantedDeathTest, DetectsFaultsInFusedRouting) {
  constexpr std::uint32_t kExperts = 256, kInputs = 1024, kRows = 2, kTopK = 2;
  const PackedLinear weight = Pack(kExperts, kInputs, 1);
  const DeviceArray<BF16> x(cuda(), RandomRows(kRows * kInputs, 2));
  const DeviceArray<float> logits(cuda(), kRows * kExperts), weights(cuda(), kRows * kTopK),
      row_weights(cuda(), kRows * kTopK);
  const DeviceArray<std::uint32_t> experts(cuda(), kRows * kTopK), offsets(cuda(), kExperts + 1),
      rows(cuda(), kRows * kTopK), places(cuda(), kRows * kTopK);
  const RouteParams params{.x = x.data(),
                           .weight = &weight,
                           .logits = logits.data(),
                           .choice = {.logits = logits.data(),
                                      .experts = experts.data(),
                                      .weights = weights.data(),
                                      .logits_stride = kExperts,
                                      .num_rows = kRows,
                                      .num_experts = kExperts,
                                      .top_k = kTopK},
                           .offsets = offsets.data(),
                           .rows = rows.data(),
                           .row_weights = row_weights.data(),
                           .places = places.data(),
                           .x_stride = kInputs};
  ASSERT_TRUE(internal::CanFuseRoute(params));
  const auto run = [&](Route route) {
    ASSERT_TRUE(route(context(), params).ok());
    cuda().Wait();
  };
  run(internal::RouteCuda);
  const std::tuple<Route, const char*, const char*> mistakes[] = {
      {internal::RouteCudaNoFenceBefore, "NoFenceBefore", kBlocks},
      {internal::RouteCudaNoFenceBehind, "NoFenceBehind", kBlocks},
      {internal::RouteCudaNoBarrierBefore, "NoBarrierBefore", kBlocks},
      {internal::RouteCudaNoBarrierBehind, "NoBarrierBehind", kThreads},
      {internal::RouteCudaTileOverFlag, "TileOverFlag", kThreads},
      {internal::RouteCudaTileNotWhole, "TileNotWhole", kThreads},
      {internal::RouteCudaScoresOverFlag, "ScoresOverFlag", kThreads},
      {internal::RouteCudaChoicesNotWhole, "ChoicesNotWhole", kThreads}};
  for (const auto& [planted, name, what] : mistakes) {
    EXPECT_DEATH(run(planted), Says("route", name, what));
  }
}

// Two heads of q and one each of k and v.
TEST_F(PlantedDeathTest, DetectsFaultsInFusedHeadStores) {
  constexpr std::uint32_t kHeadSize = 64, kFeatures = 4 * kHeadSize, kInputs = 64, kRows = 2;
  cache::KvGeometry geometry;
  geometry.num_blocks = 3;
  geometry.num_layers = 1;
  geometry.page_size = 16;
  geometry.num_heads = 1;
  geometry.head_size = kHeadSize;
  geometry.dtype = DType::kBF16;
  const DeviceArray<BF16> pages(cuda(), 3 * static_cast<std::size_t>(geometry.block_stride()));
  constexpr std::uint32_t kLookupStride = 24;
  const DeviceArray<std::uint32_t> table(cuda(), std::vector<std::uint32_t>(2 * kLookupStride, 1)),
      lengths(cuda(), std::vector<std::uint32_t>{0, 0});
  const auto collection = MakeKvCollection(
      geometry, pages.data(), {table.data(), lengths.data(), kLookupStride, 2, 16, 16, 16});
  ASSERT_TRUE(collection.ok()) << collection.status();
  const AnyKvView keys = KeyView(*collection, 0), values = ValueView(*collection, 0);
  const PackedLinear weight = Pack(kFeatures, kInputs, 1);
  const DeviceArray<BF16> x(cuda(), RandomRows(kRows * kInputs, 2)), qkv(cuda(), kRows * kFeatures);
  const DeviceArray<std::int32_t> token_rows(cuda(), std::vector<std::int32_t>{0, 1}),
      positions(cuda(), std::vector<std::int32_t>{0, 1});
  const QkvStoreParams store{.keys = &keys,
                             .values = &values,
                             .qkv = qkv.data(),
                             .qkv_stride = kFeatures,
                             .cosines = nullptr,
                             .sines = nullptr,
                             .row_offsets = nullptr,
                             .token_rows = token_rows.data(),
                             .positions = positions.data(),
                             .batch_size = 2,
                             .num_rows = kRows,
                             .num_heads = 2,
                             .rotary_size = 0};
  const LinearParams params{.x = x.data(),
                            .weight = &weight,
                            .y = qkv.data(),
                            .x_stride = kInputs,
                            .y_stride = kFeatures,
                            .num_rows = kRows,
                            .store = &store};
  const auto run = [&](auto linear) {
    ASSERT_TRUE(linear(context(), params).ok());
    cuda().Wait();
  };
  run(internal::LinearTensorCoreCuda);
  EXPECT_DEATH(run(internal::LinearTensorCoreCudaHeadsNotWhole),
               "kernel linear, .*: no barrier orders the two, at .*planted/HeadsNotWhole/");
}

// K has more tiles than there are stages, and the output tile overlaps the last one's stage. Scales
// and zero points arrive with the quantized weights.
TEST_F(PlantedDeathTest, DetectsFaultsInQuantizedProducts) {
  constexpr std::uint32_t kInputs = 448, kRows = 64;
  const QuantizedShape shape{.format = WeightFormat::kInt4,
                             .n = 128,
                             .k = kInputs,
                             .group = 64,
                             .has_min = true,
                             .has_zero_points = true};
  const absl::StatusOr<PackedLinear> weight = MakeQuantized(shape).Pack(*cuda());
  ASSERT_TRUE(weight.ok()) << weight.status();
  const DeviceArray<BF16> x(cuda(), RandomRows(kRows * kInputs, 2));
  const DeviceArray<float> y(cuda(), kRows * shape.n);
  const LinearParams params{.x = x.data(),
                            .weight = &*weight,
                            .y = y.data(),
                            .x_stride = kInputs,
                            .y_stride = shape.n,
                            .num_rows = kRows};
  const auto run = [&](auto linear) {
    ASSERT_TRUE(linear(context(), params).ok());
    cuda().Wait();
  };
  run(internal::LinearTensorCoreCuda);
  EXPECT_DEATH(run(internal::LinearTensorCoreCudaStageNotArrived),
               "kernel linear, .*to which a copy is under way .*/StageNotArrived/");
  EXPECT_DEATH(run(internal::LinearTensorCoreCudaStageNotWhole),
               absl::StrCat("kernel linear, .*(", kThreads,
                            "|which no thread has written), at .*/StageNotWhole/"));
  EXPECT_DEATH(run(internal::LinearTensorCoreCudaSumsOverRing),
               Says("linear", "SumsOverRing", kThreads));
}

// Four-bit weights with two groups per tile of K and four sub-ranges of K in separate blocks.
TEST_F(PlantedDeathTest, DetectsFaultsInQuantizedSubRanges) {
  constexpr std::uint32_t kFeatures = 640, kInputs = 1024, kRows = 3;
  ASSERT_EQ(cuda::LinearReductionOf(kFeatures, kInputs).splits, 4u);
  const Quantized made =
      MakeQuantized({.format = WeightFormat::kInt4, .n = kFeatures, .k = kInputs, .group = 32});
  const auto weight = made.Pack(*cuda());
  ASSERT_TRUE(weight.ok()) << weight.status();
  const std::vector<BF16> inputs = RandomRows(kRows * kInputs, 2);
  std::vector<double> exact;
  for (std::uint32_t row = 0; row < kRows; ++row) {
    for (std::uint32_t n = 0; n < kFeatures; ++n) {
      double sum = 0;
      for (std::uint32_t k = 0; k < kInputs; ++k) {
        sum +=
            double{inputs[row * kInputs + k].ToFloat()} * made.worth[std::size_t{n} * kInputs + k];
      }
      exact.push_back(sum);
    }
  }
  const DeviceArray<BF16> x(cuda(), inputs);
  const auto run = [&](auto linear) {
    const DeviceArray<float> y(cuda(), kRows * kFeatures);
    const LinearParams params{.x = x.data(),
                              .weight = &*weight,
                              .y = y.data(),
                              .x_stride = kInputs,
                              .y_stride = kFeatures,
                              .num_rows = kRows};
    EXPECT_TRUE(linear(context(), params).ok());
    return y.Get();
  };
  const std::vector<float> right = run(internal::LinearTensorCoreCuda);
  EXPECT_LE(RelativeError(right, exact), 1e-5);
  EXPECT_EQ(run(internal::LinearTensorCoreCuda), right);
  // The result is as close to double precision, but no longer bitwise equal to that of other row
  // counts.
  const std::vector<float> by_arrival = run(internal::LinearTensorCoreCudaSumsByArrival);
  EXPECT_LE(RelativeError(by_arrival, exact), 1e-5);
  EXPECT_NE(by_arrival, right);
}

// Four rows with two choices each, whose positions are not ascending.
TEST_F(PlantedDeathTest, DetectsFaultsInFusedSums) {
  constexpr std::uint32_t kFeatures = 128, kInputs = 64, kRows = 4, kTopK = 2;
  const PackedLinear weight = Pack(kFeatures, kInputs, 1);
  const auto weights =
      LinearGroupsOf(1, [&](std::uint32_t) -> const PackedLinear& { return weight; });
  ASSERT_TRUE(weights);
  const DeviceArray<BF16> x(cuda(), RandomRows(kRows * kTopK * kInputs, 4));
  const DeviceArray<float> y(cuda(), kRows * kTopK * kFeatures), sum(cuda(), kRows * kFeatures),
      chosen_weights(cuda(), RandomFloats(kRows * kTopK, 5));
  const DeviceArray<std::uint32_t> offsets(cuda(), std::vector<std::uint32_t>{0, kRows * kTopK}),
      places(cuda(), std::vector<std::uint32_t>{0, 4, 1, 5, 6, 2, 7, 3});
  const GroupedLinearParams params{.x = x.data(),
                                   .weights = *weights,
                                   .offsets = offsets.data(),
                                   .y = y.data(),
                                   .x_stride = kInputs,
                                   .y_stride = kFeatures,
                                   .num_rows = kRows * kTopK,
                                   .sum = ChosenSum{.places = places.data(),
                                                    .weights = chosen_weights.data(),
                                                    .y = sum.data(),
                                                    .y_stride = kFeatures,
                                                    .num_rows = kRows,
                                                    .top_k = kTopK}};
  ASSERT_TRUE(CanFuseGroupedSum(params, *params.sum));
  const auto run = [&](auto linear) {
    ASSERT_TRUE(linear(context(), params).ok());
    cuda().Wait();
  };
  run(internal::GroupedLinearTensorCoreCuda);
  EXPECT_DEATH(run(internal::GroupedLinearTensorCoreCudaPlacesOverFlag),
               Says("grouped_linear", "PlacesOverFlag", kThreads));
  EXPECT_DEATH(run(internal::GroupedLinearTensorCoreCudaPlacesNotWhole),
               Says("grouped_linear", "PlacesNotWhole", kThreads));
}

// K has more tiles than there are stages and one sub-range. There are more row tiles than the
// device has room for, so that two blocks form a cluster.
TEST_F(PlantedDeathTest, DetectsFaultsInTheHopperProduct) {
  constexpr std::uint32_t kFeatures = 640, kInputs = 384, kRows = 130;
  const PackedLinear weight = Pack(kFeatures, kInputs, 1);
  const DeviceArray<BF16> x(cuda(), RandomRows(kRows * kInputs, 2));
  const DeviceArray<float> y(cuda(), kRows * kFeatures);
  const LinearParams params{.x = x.data(),
                            .weight = &weight,
                            .y = y.data(),
                            .x_stride = kInputs,
                            .y_stride = kFeatures,
                            .num_rows = kRows};
  const auto run = [&](auto linear) {
    const absl::StatusOr<bool> is_launched = linear(context(), params);
    ASSERT_TRUE(is_launched.ok() && *is_launched);
    cuda().Wait();
  };
  run(internal::LinearSm90Cuda);
  const auto says = [](const std::string& name, const std::string& what) {
    return Says("linear sm_90a", name, what);
  };
  EXPECT_DEATH(run(internal::LinearSm90CudaStageStillRead),
               "kernel linear sm_90a, .*an arrival beyond the 1 of this phase .*/StageStillRead/");
  EXPECT_DEATH(run(internal::LinearSm90CudaPeerStillReads),
               absl::StrCat("kernel linear sm_90a, .* writes .*(", kThreads,
                            "|to which a copy is under way).*/PeerStillReads/"));
  EXPECT_DEATH(run(internal::LinearSm90CudaPeerNotReady),
               absl::StrCat("kernel linear sm_90a, .*(", kThreads,
                            "|which no thread has written), at .*/PeerNotReady/"));
  EXPECT_DEATH(run(internal::LinearSm90CudaPeerLeftAlone),
               "kernel linear sm_90a, .*(has not waited for what thread .* of another block|has "
               "ended already)");
  EXPECT_DEATH(run(internal::LinearSm90CudaStageGivenAwayEarly),
               says("StageGivenAwayEarly", kThreads));
  EXPECT_DEATH(run(internal::LinearSm90CudaSumsOverStages), says("SumsOverStages", kThreads));
  EXPECT_DEATH(run(internal::LinearSm90CudaSumsNotWhole), says("SumsNotWhole", kThreads));
}

// Three blocks. The block that arrives last continues, whatever its id.
TEST_F(PlantedDeathTest, DetectsFaultsInTheSampler) {
  constexpr std::uint32_t kVocab = 2500;
  const DeviceArray<float> logits(cuda(), RandomFloats(kVocab, 1, 2.0f)), x(cuda(), kVocab);
  const DeviceArray<std::uint64_t> buckets(cuda(), internal::kSamplerBuckets), keys(cuda(), kVocab);
  const DeviceArray<std::int32_t> token(cuda(), 1);
  const DeviceArray<LogitBias> bias(cuda(), {{.token = 0, .bias = 1.0f}});
  const DeviceArray<internal::DeviceSampled> result(cuda(), 1);
  internal::DeviceRow row{};
  row.logits = logits.data();
  row.token = token.data();
  row.top_p = 1;
  row.factor = 1;
  row.log_min_p = -std::numeric_limits<float>::infinity();
  row.mask = row.token_logprob = row.num_logprobs = -1;
  row.greedy = row.edited = true;
  row.bias_size = 1;
  const auto run = [&](auto launch, const internal::SamplerNeeds& needs) {
    const DeviceArray<internal::DeviceRow> rows(cuda(), std::vector{row});
    const DeviceArray<internal::SamplerState> states(cuda(),
                                                     std::vector<internal::SamplerState>(1));
    internal::SamplerArgs args{};
    args.rows = rows.data();
    args.bias = bias.data();
    args.states = states.data();
    args.buckets = buckets.data();
    args.x = x.data();
    args.keys = keys.data();
    args.results = result.data();
    args.x_stride = args.vocab = args.text_vocab = kVocab;
    args.num_rows = 1;
    ASSERT_TRUE(launch(context(), args, needs).ok());
    cuda().Wait();
  };
  const internal::SamplerNeeds edits{.edits = true};
  run(internal::LaunchSamples, edits);
  EXPECT_DEATH(run(internal::LaunchSamplesScanNotWhole, edits),
               Says("sampler_scan", "ScanNotWhole", kBlocks));
  row.greedy = row.edited = false;
  row.filtered = row.processed = true;
  row.top_k = 300;
  const internal::SamplerNeeds draws{.samples = true, .filters = true};
  run(internal::LaunchSamples, draws);
  // A header function that has no faulty copy writes the list's length. A premature read is
  // detected.
  EXPECT_DEATH(run(internal::LaunchSamplesListNotWhole, draws),
               absl::StrCat("kernel sampler_keep, .*: ", kBlocks, ", at .*planted/ListNotWhole/"));
  EXPECT_DEATH(run(internal::LaunchSamplesMassNotWhole, draws),
               Says("sampler_keep", "MassNotWhole", kThreads));
}

}  // namespace
}  // namespace quire::kernels
