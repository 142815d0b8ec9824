// The self-check of the kernels on an emulated GPU. The linker replaces some launch functions by
// those of this test (--wrap), which inject faults.

#include "runtime/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/device_buffer.h"
#include "base/status.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "formats/model_files.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/sparse/index_score.h"
#include "kernels/sparse/index_store.h"
#include "kernels/sparse/select_topk.h"
#include "models/blocks/layer_groups.h"
#include "runtime/cuda_runner.h"
#include "runtime/first_steps.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/self_check_context.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tools/quire/synthetic_model.h"

namespace quire::kernels::internal {

// Declares the function without a fault and the one that the linker calls instead. The last two
// arguments are the mangled names of the function and of its parameters.
#define QUIRE_INJECTABLE(result, name, type, function, params)                                \
  result Real##name(const CudaContext& context, const type& params_) __asm__(                 \
      "__real__ZN5quire7kernels8internal" function "ERKNS0_11CudaContextERKNS0_" params "E"); \
  result Wrap##name(const CudaContext& context, const type& params_) __asm__(                 \
      "__wrap__ZN5quire7kernels8internal" function "ERKNS0_11CudaContextERKNS0_" params "E")

QUIRE_INJECTABLE(absl::Status, Linear, LinearParams, "20LinearTensorCoreCuda", "12LinearParams");
QUIRE_INJECTABLE(absl::StatusOr<bool>, LinearSm90, LinearParams, "14LinearSm90Cuda",
                 "12LinearParams");
QUIRE_INJECTABLE(absl::Status, Attention, AttentionParams, "18PagedAttentionCuda",
                 "15AttentionParams");
QUIRE_INJECTABLE(absl::Status, QkvStore, QkvStoreParams, "12QkvStoreCuda", "14QkvStoreParams");
QUIRE_INJECTABLE(absl::Status, Norm, RmsNormParams, "11RmsNormCuda", "13RmsNormParams");
QUIRE_INJECTABLE(absl::Status, Gate, GatedProductParams, "16GatedProductCuda",
                 "18GatedProductParams");
QUIRE_INJECTABLE(absl::Status, Embedding, EmbeddingParams, "13EmbeddingCuda", "15EmbeddingParams");
QUIRE_INJECTABLE(absl::Status, IndexStore, IndexStoreParams, "14IndexStoreCuda",
                 "16IndexStoreParams");
QUIRE_INJECTABLE(absl::Status, IndexScore, IndexScoreParams, "14IndexScoreCuda",
                 "16IndexScoreParams");
QUIRE_INJECTABLE(absl::Status, Select, SelectTopKParams, "14SelectTopKCuda", "16SelectTopKParams");

// A copy of the kernel without a barrier (tests/kernels/planted).
absl::Status LinearTensorCoreCudaStageNotWhole(const CudaContext& context,
                                               const LinearParams& params);

namespace {

enum class Fault : std::uint8_t {
  kNone,
  kMissingBarrier,
  kWrongTileEdge,
  kBatchDependentBits,
  kUnwrittenRow,
  kRowBehindWritten,
  kPaddingRead,
  kHopperOnly,
  kWrongScale,
  kSwappedHeads,
  kStalePage,
  kBatchDependentAttention,
  kKeysAsValues,
  kWrongEpsilon,
  kGateWithoutActivation,
  kScaledEmbedding,
  kShiftedEmbedding,
  kWrongIndexEpsilon,
  kRoundedIndexScale,
  kOneKeyTooFew,
  kWrongSparseScale,
};
Fault injected = Fault::kNone;

// `rows` rows of a product from `first` on.
LinearParams RowsOf(const LinearParams& params, std::uint32_t first, std::uint32_t rows) {
  LinearParams part = params;
  part.x = params.x + first * params.x_stride;
  part.y = params.y + first * params.y_stride;
  if (params.residual != nullptr) part.residual = params.residual + first * params.residual_stride;
  part.num_rows = rows;
  return part;
}

}  // namespace

absl::Status WrapLinear(const CudaContext& context, const LinearParams& params) {
  const std::uint32_t rows = params.num_rows;
  switch (injected) {
    case Fault::kMissingBarrier:
      return LinearTensorCoreCudaStageNotWhole(context, params);
    case Fault::kWrongTileEdge:
      if (rows <= 64) break;
      // The second tile begins one row early in x.
      QUIRE_RETURN_IF_ERROR(RealLinear(context, RowsOf(params, 0, 64)));
      {
        LinearParams second = RowsOf(params, 64, rows - 64);
        second.x = params.x + 63 * params.x_stride;
        return RealLinear(context, second);
      }
    case Fault::kBatchDependentBits:
      // The scalar kernel sums in another order.
      if (rows < 9 || params.gate || params.weight->format() != WeightFormat::kPlain) break;
      return LinearScalarCuda(context, params);
    case Fault::kUnwrittenRow:
      if (rows < 9) break;
      return RealLinear(context, RowsOf(params, 0, rows - 1));
    case Fault::kRowBehindWritten: {
      if (rows < 9 || params.residual != nullptr) break;
      LinearParams behind = RowsOf(params, rows, 1);
      behind.x = params.x;
      QUIRE_RETURN_IF_ERROR(RealLinear(context, behind));
      break;
    }
    case Fault::kPaddingRead: {
      if (rows < 9) break;
      QUIRE_RETURN_IF_ERROR(RealLinear(context, RowsOf(params, 0, rows - 1)));
      LinearParams last = RowsOf(params, rows - 1, 1);
      last.x = params.x + rows * params.x_stride;
      return RealLinear(context, last);
    }
    default:
      break;
  }
  return RealLinear(context, params);
}

absl::StatusOr<bool> WrapLinearSm90(const CudaContext& context, const LinearParams& params) {
  if (injected != Fault::kHopperOnly) return RealLinearSm90(context, params);
  LinearParams fewer = params;
  --fewer.num_rows;
  return RealLinearSm90(context, fewer);
}

// Swaps the first two heads of the result.
absl::Status SwapHeads(const CudaContext& context, const AttentionParams& params) {
  const std::int64_t head = KvShapeOf(*params.keys).head_size * DTypeSize(params.out.dtype());
  std::uint32_t rows = 0;
  QUIRE_RETURN_IF_ERROR(context.stream->Synchronize());
  QUIRE_RETURN_IF_ERROR(
      context.stream->Copy(&rows, params.row_offsets + params.batch_size, sizeof(rows)));
  QUIRE_RETURN_IF_ERROR(context.stream->Synchronize());
  std::vector<std::byte> heads(static_cast<std::size_t>(2 * head));
  for (std::uint32_t row = 0; row < rows; ++row) {
    void* const at = (params.out + row * params.out_stride).data();
    QUIRE_RETURN_IF_ERROR(context.stream->Copy(heads.data(), at, 2 * head));
    QUIRE_RETURN_IF_ERROR(context.stream->Synchronize());
    std::rotate(heads.begin(), heads.begin() + head, heads.end());
    QUIRE_RETURN_IF_ERROR(context.stream->Copy(at, heads.data(), 2 * head));
    QUIRE_RETURN_IF_ERROR(context.stream->Synchronize());
  }
  return absl::OkStatus();
}

// Runs attention with the first page of the first sequence in place of its second page.
absl::Status AttendToStalePage(const CudaContext& context, const AttentionParams& params) {
  return std::visit(
      [&](auto keys) -> absl::Status {
        auto values = std::get<decltype(keys)>(*params.values);
        std::vector<std::uint32_t> table(std::size_t{params.batch_size} * keys.lookup_stride);
        const auto bytes = static_cast<std::int64_t>(table.size() * sizeof(std::uint32_t));
        QUIRE_RETURN_IF_ERROR(context.stream->Synchronize());
        QUIRE_RETURN_IF_ERROR(context.stream->Copy(table.data(), keys.lookup_table, bytes));
        QUIRE_RETURN_IF_ERROR(context.stream->Synchronize());
        table[1] = table[0];
        QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer stale,
                               DeviceBuffer::Allocate(MemoryKind::kDevice, bytes));
        QUIRE_RETURN_IF_ERROR(context.stream->Copy(stale.data(), table.data(), bytes));
        keys.lookup_table = values.lookup_table = static_cast<const std::uint32_t*>(stale.data());
        const AnyKvView stale_keys(keys), stale_values(values);
        AttentionParams changed = params;
        changed.keys = &stale_keys;
        changed.values = &stale_values;
        QUIRE_RETURN_IF_ERROR(RealAttention(context, changed));
        return context.stream->Synchronize();
      },
      *params.keys);
}

absl::Status WrapAttention(const CudaContext& context, const AttentionParams& params) {
  AttentionParams changed = params;
  // The reference has f32 queries.
  if (params.q.is_f32()) return RealAttention(context, params);
  switch (injected) {
    case Fault::kWrongScale:
      changed.scale *= 1.1f;
      break;
    case Fault::kSwappedHeads:
      QUIRE_RETURN_IF_ERROR(RealAttention(context, params));
      return SwapHeads(context, params);
    case Fault::kStalePage:
      return AttendToStalePage(context, params);
    case Fault::kBatchDependentAttention:
      // The portable kernel sums in another order.
      if (params.batch_size > 1) changed.maps = nullptr;
      break;
    case Fault::kWrongSparseScale:
      if (params.live_sequences != nullptr) changed.scale *= 1.1f;
      break;
    default:
      break;
  }
  return RealAttention(context, changed);
}

absl::Status WrapQkvStore(const CudaContext& context, const QkvStoreParams& params) {
  QkvStoreParams changed = params;
  if (injected == Fault::kKeysAsValues) std::swap(changed.keys, changed.values);
  return RealQkvStore(context, changed);
}

absl::Status WrapNorm(const CudaContext& context, const RmsNormParams& params) {
  RmsNormParams changed = params;
  if (injected == Fault::kWrongEpsilon) changed.epsilon = 0.1f;
  return RealNorm(context, changed);
}

absl::Status WrapGate(const CudaContext& context, const GatedProductParams& params) {
  GatedProductParams changed = params;
  if (injected == Fault::kGateWithoutActivation) changed.shape.act = Activation::kRelu2;
  return RealGate(context, changed);
}

absl::Status WrapEmbedding(const CudaContext& context, const EmbeddingParams& params) {
  EmbeddingParams changed = params;
  if (injected == Fault::kScaledEmbedding) changed.scale *= 1.0001f;
  if (injected == Fault::kShiftedEmbedding && params.num_rows > 1) {
    // Every row but the first, which is not written, gets the token of the row before it.
    changed.y += params.y_stride;
    --changed.num_rows;
  }
  return RealEmbedding(context, changed);
}

absl::Status WrapIndexStore(const CudaContext& context, const IndexStoreParams& params) {
  IndexStoreParams changed = params;
  if (injected == Fault::kWrongIndexEpsilon) changed.epsilon = 0.1f;
  return RealIndexStore(context, changed);
}

absl::Status WrapIndexScore(const CudaContext& context, const IndexScoreParams& params) {
  IndexScoreParams changed = params;
  if (injected == Fault::kRoundedIndexScale) changed.scale *= 1.001f;
  return RealIndexScore(context, changed);
}

absl::Status WrapSelect(const CudaContext& context, const SelectTopKParams& params) {
  SelectTopKParams changed = params;
  if (injected == Fault::kOneKeyTooFew) --changed.topk;
  return RealSelect(context, changed);
}

}  // namespace quire::kernels::internal

namespace quire::runtime {
namespace {

using kernels::internal::Fault;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// A loaded model with random weights, and its runner.
struct Stage {
  struct Options {
    std::uint32_t max_step_tokens = 65;
    std::uint32_t max_rows = 4;
    std::uint32_t blocks = 40;
    DType pages = DType::kBF16;
    models::Quantization quantization = models::Quantization::kAuto;
    bool hopper_kernels = true;
    bool fp8_activations = false;
    LoadMode mode = LoadMode::kDummy;
  };

  Stage(const std::string& path, const Options& options)
      : Stage(*formats::ModelFiles::FromPath(path), options) {}
  Stage(const formats::ModelFiles& files, const Options& the_options)
      : options(the_options),
        stream(*Stream::Create(DeviceFor(options))),
        backend(*kernels::Backend::CreateCuda(stream, kernels::Determinism::kBatchInvariant,
                                              &threads)) {
    auto loaded = LoadModel(files, backend,
                            {.mode = options.mode,
                             .activation = activation,
                             .quantization = options.quantization,
                             .fp8_activations = options.fp8_activations});
    QUIRE_CHECK(loaded.ok());
    model = *std::move(loaded);
    pool.emplace(*cache::KvPool::Create(
        *KvGeometryFor(model->spec, /*page_size=*/16, options.pages, options.blocks),
        {.guard_canary = true, .stream = &stream}));
    auto created = CudaRunner::Create(*model, backend, &*pool,
                                      {.max_rows = options.max_rows,
                                       .max_step_tokens = options.max_step_tokens,
                                       .max_logprobs = 5,
                                       .num_state_slots = NumStateSlots(options),
                                       .activation = activation});
    QUIRE_CHECK(created.ok());
    runner = *std::move(created);
  }

  // As ComputeDevice does for device.hopper_kernels.
  static Device DeviceFor(const Options& options) {
    Device device = *OpenCudaDevice(0);
    if (!options.hopper_kernels) device.compute_capability = 80;
    return device;
  }
  std::uint32_t NumStateSlots(const Options& options) const {
    return models::PlanLayerGroups(model->spec).state_bytes > 0 ? 3 + options.max_rows : 0;
  }
  absl::Status Check() { return runner->CheckKernels(absl::Minutes(10), &report); }

  // Runs CompareSteps and returns the first difference.
  absl::Status Compare() {
    const auto max_context_tokens = static_cast<std::uint32_t>(model->spec.max_position);
    auto cache = cache::CacheManager::Create(
        {.geometry = pool->geometry(),
         .groups = models::CacheGroupsOf(models::PlanLayerGroups(model->spec)),
         .max_rows = options.max_rows,
         .max_context_tokens = max_context_tokens,
         .max_row_overlap_tokens = options.max_step_tokens,
         .num_state_slots = NumStateSlots(options)});
    QUIRE_RETURN_IF_ERROR(cache.status());
    const FirstSteps steps = {.cache = cache->get(),
                              .runner = runner.get(),
                              .spec = &model->spec,
                              .max_rows = options.max_rows,
                              .max_step_tokens = options.max_step_tokens,
                              .max_context_tokens = max_context_tokens,
                              .activation = activation};
    QUIRE_RETURN_IF_ERROR(CompareSteps(steps, &compared));
    return FailureOf(compared, backend);
  }

  const Options options;
  const DType activation = options.pages == DType::kF32 ? DType::kF32 : DType::kBF16;
  ThreadPool threads{1};
  Stream stream;
  kernels::Backend backend;
  std::unique_ptr<Model> model;
  std::optional<cache::KvPool> pool;
  std::unique_ptr<CudaRunner> runner;
  SelfCheckReport report;
  std::vector<kernels::KernelCheck> compared;
};

class SelfCheckTest : public ::testing::Test {
 protected:
  SelfCheckTest() {
    cuda_emulator::Reset();
    QUIRE_CHECK(client::WriteSyntheticModel("tiny", path()).ok());
  }
  ~SelfCheckTest() override {
    kernels::internal::injected = Fault::kNone;
    cuda_emulator::Reset();
  }
  std::string path() const { return dir_.path() + "/tiny"; }

  // Injects a fault and expects that the check describes it.
  void ExpectFound(Fault fault, const std::string& kernel, const std::string& text) {
    ExpectFoundIn(path(), {}, fault, kernel, text);
  }
  void ExpectFoundIn(const std::string& model, const Stage::Options& options, Fault fault,
                     const std::string& kernel, const std::string& text) {
    kernels::internal::injected = fault;
    Stage stage(model, options);
    const absl::Status status = stage.Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << kernel << " " << text;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(kernel), HasSubstr(text), HasSubstr("limit "),
                      HasSubstr("device.hopper_kernels: false selects the portable kernels")));
    kernels::internal::injected = Fault::kNone;
  }

 private:
  const testing::TempDir dir_;
};

std::vector<std::string> ShapesOf(const SelfCheckReport& report, const std::string& kernel) {
  std::vector<std::string> shapes;
  for (const kernels::KernelCheck& check : report.checks) {
    if (check.kernel == kernel) shapes.push_back(check.shape);
  }
  return shapes;
}

TEST_F(SelfCheckTest, PassesAndLeavesNoTrace) {
  Stage stage(path(), {.max_step_tokens = 512});
  const std::uint64_t allocations = cuda_emulator::AllocationCount();
  const absl::Status status = stage.Check();
  ASSERT_TRUE(status.ok()) << status << "\n" << kernels::KernelCheckTable(stage.report.checks);
  EXPECT_EQ(cuda_emulator::AllocationCount(), allocations);
  EXPECT_EQ(ShapesOf(stage.report, "bf16 product qkv"),
            (std::vector<std::string>{"bf16, 1 x 256 x 128", "bf16, 8 x 256 x 128",
                                      "bf16, 9 x 256 x 128", "bf16, 17 x 256 x 128",
                                      "bf16, 64 x 256 x 128", "bf16, 65 x 256 x 128",
                                      "bf16, 128 x 256 x 128", "bf16, 129 x 256 x 128",
                                      "bf16, 256 x 256 x 128", "bf16, 512 x 256 x 128"}));
  for (const char* kernel : {"bf16 product o", "bf16 product gate_up", "bf16 product down"}) {
    EXPECT_EQ(ShapesOf(stage.report, kernel).size(), std::size(kCheckedRows)) << kernel;
  }
  // The head computes at most 64 rows of this runner at a time.
  EXPECT_EQ(ShapesOf(stage.report, "bf16 product head").back(), "bf16, 64 x 512 x 128");
  EXPECT_THAT(ShapesOf(stage.report, "attention decode"),
              Contains(HasSubstr("sequences of 63 to 511 tokens")));
  for (const char* kernel :
       {"attention prefill", "KV store", "rope angles", "embedding", "norm", "gate", "sampler"}) {
    EXPECT_FALSE(ShapesOf(stage.report, kernel).empty()) << kernel;
  }
  EXPECT_TRUE(stage.pool->CheckIntegrity().ok());
  std::vector<std::byte> pages(static_cast<std::size_t>(stage.pool->geometry().page_bytes()) *
                               stage.pool->geometry().num_blocks);
  ASSERT_TRUE(
      stage.stream.Copy(pages.data(), stage.pool->blocks(), static_cast<std::int64_t>(pages.size()))
          .ok());
  ASSERT_TRUE(stage.stream.Synchronize().ok());
  EXPECT_TRUE(
      std::all_of(pages.begin(), pages.end(), [](std::byte b) { return b == std::byte{}; }));
}

// Weight formats, page types and portable kernels.
TEST_F(SelfCheckTest, PassesForEveryKindOfModel) {
  using models::Quantization;
  const Stage::Options kinds[] = {
      {.max_step_tokens = 17, .quantization = Quantization::kInt8},
      {.max_step_tokens = 17, .pages = DType::kF8E4M3, .quantization = Quantization::kInt4G32},
      {.max_step_tokens = 17, .pages = DType::kI8},
      {.max_step_tokens = 17, .pages = DType::kF32},
      {.max_step_tokens = 65, .max_rows = 1, .blocks = 3, .hopper_kernels = false}};
  for (const Stage::Options& kind : kinds) {
    Stage stage(path(), kind);
    const absl::Status status = stage.Check();
    EXPECT_TRUE(status.ok()) << status << "\n" << kernels::KernelCheckTable(stage.report.checks);
    EXPECT_GT(stage.report.checks.size(), 10u);
  }
}

// Windows, chunks, sinks, MLA, MoE, bias, norms of q and k, tied embeddings, mxfp4, recurrent
// layers, KV rows that differ.
TEST_F(SelfCheckTest, PassesForEveryFamily) {
  for (const char* name :
       {"llama-bias-bf16", "mistral-window-bf16", "gemma3-text-bf16", "qwen3-hd128-bf16",
        "mixtral-bf16", "gpt-oss-mxfp4", "deepseek-v3-bf16", "phi3-bf16", "qwen35-moe-bf16",
        "nemotron-h-bf16", "lfm2-bf16", "kimi-linear-bf16", "gemma4-bf16", "llama4-bf16"}) {
    Stage stage(paths::TestData(absl::StrCat("models/", name)),
                {.max_step_tokens = 17, .mode = LoadMode::kReal});
    const absl::Status status = stage.Check();
    EXPECT_TRUE(status.ok()) << name << ": " << status << "\n"
                             << kernels::KernelCheckTable(stage.report.checks);
    const absl::Status compared = stage.Compare();
    EXPECT_TRUE(compared.ok()) << name << ": " << compared;
    const bool has_experts = std::ranges::any_of(
        stage.model->spec.layers, [](const models::LayerSpec& layer) { return layer.has_moe(); });
    ASSERT_EQ(stage.compared.size(), 4u);
    EXPECT_EQ(stage.compared.back().skipped,
              has_experts ? "rounding can change the experts or keys that a token chooses" : "");
    EXPECT_EQ(ShapesOf(stage.report, "embedding").size(), 1u) << name;
    EXPECT_EQ(ShapesOf(stage.report, "embedding of layer inputs").size(),
              stage.model->spec.layer_inputs.size > 0 ? 1u : 0u)
        << name;
    EXPECT_GT(stage.runner->graph_steps(), 0u);
  }
}

// The references of row-major fp8 weights are computed by the host.
TEST_F(SelfCheckTest, PassesForFp8OfBothKinds) {
  models::parity::EditedFixture fp8("qwen3-moe-bf16"), exact("qwen3-moe-bf16");
  models::parity::MakeFp8(&fp8, &exact);
  for (const bool hopper_kernels : {true, false}) {
    Stage stage(fp8.Files(), {.max_step_tokens = 17,
                              .hopper_kernels = hopper_kernels,
                              .fp8_activations = true,
                              .mode = LoadMode::kReal});
    const absl::Status status = stage.Check();
    EXPECT_TRUE(status.ok()) << status << "\n" << kernels::KernelCheckTable(stage.report.checks);
    for (const std::string& shape : ShapesOf(stage.report, "bf16 product o")) {
      EXPECT_EQ(absl::StrContains(shape, " by fp8"), hopper_kernels) << shape;
    }
  }
}

TEST_F(SelfCheckTest, FindsFaultsOfProducts) {
  ExpectFound(Fault::kWrongTileEdge, "bf16 product qkv, bf16, 65 x",
              "the result differs from the reference");
  ExpectFound(Fault::kBatchDependentBits, "bf16 product",
              "differs from the same row computed alone");
  ExpectFound(Fault::kUnwrittenRow, "bf16 product qkv, bf16, 9 x",
              "the result has values that are not finite");
  ExpectFound(Fault::kRowBehindWritten, "bf16 product qkv, bf16, 9 x",
              "memory after the last row was written");
  ExpectFound(Fault::kPaddingRead, "bf16 product qkv, bf16, 9 x",
              "the result has values that are not finite");
}

TEST_F(SelfCheckTest, FindsAMissingBarrier) {
  // The emulator itself would end the process.
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  options.check = cuda_emulator::CheckedLaunches::kNone;
  cuda_emulator::SetOptions(options);
  ExpectFound(Fault::kMissingBarrier, "bf16 product", "");
}

TEST_F(SelfCheckTest, FindsFaultsOfAttention) {
  ExpectFound(Fault::kWrongScale, "attention prefill", "the result differs from the reference");
  ExpectFound(Fault::kSwappedHeads, "attention prefill", "the result differs from the reference");
  ExpectFound(Fault::kStalePage, "attention prefill", "the result differs from the reference");
  ExpectFound(Fault::kBatchDependentAttention, "attention prefill",
              "differs from the same sequence computed alone");
}

TEST_F(SelfCheckTest, FindsFaultsOfOtherOps) {
  ExpectFound(Fault::kKeysAsValues, "KV store", "differs from the page that the CPU stores");
  ExpectFound(Fault::kWrongEpsilon, "norm", "the result differs from the reference");
  ExpectFound(Fault::kGateWithoutActivation, "gate", "the result differs from the reference");
  ExpectFound(Fault::kScaledEmbedding, "embedding, bf16, 65 lookups in 512 x 128",
              "the result differs from the reference");
  ExpectFound(Fault::kShiftedEmbedding, "embedding, bf16, 65 lookups in 512 x 128",
              "the result has values that are not finite");
}

TEST_F(SelfCheckTest, FindsFaultsOfGraphs) {
  kernels::internal::injected = Fault::kWrongScale;
  Stage stage(path(), {});  // captures graphs with the fault
  kernels::internal::injected = Fault::kNone;
  EXPECT_THAT(
      std::string(stage.Compare().message()),
      AllOf(HasSubstr("steps, generated token beside a prompt"), HasSubstr("not bitwise equal")));
}

TEST_F(SelfCheckTest, FindsStepsThatDependOnTheirChunks) {
  Stage stage(path(), {.hopper_kernels = false});
  kernels::internal::injected = Fault::kUnwrittenRow;
  EXPECT_THAT(std::string(stage.Compare().message()),
              AllOf(HasSubstr("steps, prompt of 4 + 5 tokens"), HasSubstr("not bitwise equal")));
}

TEST_F(SelfCheckTest, FindsGeneratedTokensThatDifferFromPrompts) {
  kernels::internal::injected = Fault::kWrongEpsilon;
  Stage stage(path(), {});
  kernels::internal::injected = Fault::kNone;
  ASSERT_FALSE(stage.Compare().ok());
  EXPECT_EQ(stage.compared.back().shape, "generated token and the same token in a prompt");
  EXPECT_EQ(stage.compared.back().fault, "the logits differ");
}

TEST_F(SelfCheckTest, FindsFaultsOfASelection) {
  const std::string model = paths::TestData("models/deepseek-v32-bf16");
  const Stage::Options options{.max_step_tokens = 17, .mode = LoadMode::kReal};
  ExpectFoundIn(model, options, Fault::kWrongIndexEpsilon, "index store, 16 heads of 24",
                "the result differs from the reference");
  ExpectFoundIn(model, options, Fault::kRoundedIndexScale, "index score",
                "the scores of row 0 differ from those of the CPU");
  ExpectFoundIn(model, options, Fault::kOneKeyTooFew, "key selection",
                "the keys differ from those of the CPU");
  ExpectFoundIn(model, options, Fault::kWrongSparseScale, "sparse attention, 2 heads of 48",
                "the result differs from the reference");
}

TEST_F(SelfCheckTest, PortableKernelsPassWhereHopperKernelsFail) {
  kernels::internal::injected = Fault::kHopperOnly;
  for (const bool hopper_kernels : {true, false}) {
    Stage stage(path(), {.hopper_kernels = hopper_kernels});
    EXPECT_EQ(stage.Check().ok(), !hopper_kernels);
  }
}

// Enqueues an operation that never ends. cuda_emulator::Reset removes it.
void EnqueueEndlessOperation(const Stream& stream) {
  ASSERT_EQ(cuda_emulator::EnqueueOperation(stream.cuda(), [] { return cudaErrorNotReady; }),
            cudaSuccess);
}

constexpr char kRemedy[] = "; device.hopper_kernels: false selects the portable kernels";

TEST_F(SelfCheckTest, EndsAtItsLimit) {
  Stage stage(path(), {});
  EnqueueEndlessOperation(stage.stream);
  const absl::Status status = stage.runner->CheckKernels(absl::Milliseconds(100), &stage.report);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            absl::StrCat("self-check of the kernels: bf16 product qkv, bf16, 256 x 128: it did not "
                         "end within the time limit of the check",
                         kRemedy));
  cuda_emulator::Reset();
}

TEST_F(SelfCheckTest, FirstStepsEndAtTheirLimit) {
  Stage stage(path(), {});
  EnqueueEndlessOperation(stage.stream);
  stage.runner->LimitWaits(MonotonicNow() + absl::Milliseconds(100));
  const absl::Status status = CheckError(stage.Compare(), stage.backend);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            absl::StrCat("self-check of the kernels: steps, prompt of 9 tokens: a step did not end "
                         "within the time limit of the check",
                         kRemedy));
  cuda_emulator::Reset();
}

TEST_F(SelfCheckTest, DeviceErrorNamesTheKernel) {
  const std::pair<const char*, const char*> kernels[] = {
      {"rope_angles", "rope angles, 65 x 32"},
      {"qkv_store", "KV store, bf16 pages, "},
      {"embedding", "embedding, bf16, 65 lookups in "},
      {"rms_norm", "norm, 65 x 128"},
      {"step inputs", "steps, prompt of 9 tok"}};
  for (const auto& [kernel, text] : kernels) {
    Stage stage(path(), {});
    cuda_emulator::InjectFault(
        {.where = absl::StrCat("kernel:", kernel), .error = cudaErrorIllegalAddress});
    absl::Status status = stage.Check();
    if (status.ok()) status = CheckError(stage.Compare(), stage.backend);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << kernel;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("self-check of the kernels: ", text)),
                      HasSubstr("illegal memory access"), HasSubstr(kRemedy)));
    cuda_emulator::Reset();
  }
}

TEST_F(SelfCheckTest, LackOfMemoryInAStepIsNoSkippedComparison) {
  Stage stage(path(), {.max_rows = 2});
  cuda_emulator::InjectFault(
      {.where = "cudaMemcpyAsync", .error = cudaErrorMemoryAllocation, .after = 8});
  const absl::Status status = CheckError(stage.Compare(), stage.backend);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("self-check of the kernels: steps, generated token beside a prompt: "));
  cuda_emulator::Reset();
}

TEST_F(SelfCheckTest, SmallBuffersAreReportedWithFigures) {
  Stage stage(path(), {});
  const models::StepLimits limits = {.max_rows = 1,
                                     .max_step_tokens = 1,
                                     .head_rows = 1,
                                     .activation = DType::kBF16,
                                     .memory = MemoryKind::kDevice,
                                     .lookup_stride = 24};
  models::StepBuffers buffers = *models::StepBuffers::Allocate(stage.model->spec, limits);
  const SelfCheckParams params{.spec = &stage.model->spec,
                               .weights = stage.model->weights.get(),
                               .backend = &stage.backend,
                               .buffers = &buffers,
                               .limits = limits};
  const absl::Status status = RunSelfCheck(params, absl::Minutes(1), &stage.report);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              ::testing::MatchesRegex(
                  "self-check of the kernels: bf16 product [a-z_]+, bf16, [0-9]+ x [0-9]+: the "
                  "comparison needs [0-9]+ bytes of the buffers of a step, which have [0-9]+; "
                  "raise scheduler.max_step_tokens"));
}

// Returns the reasons why comparisons of steps were skipped, with their shapes.
std::vector<std::pair<std::string, std::string>> SkippedOf(const Stage& stage) {
  std::vector<std::pair<std::string, std::string>> skipped;
  for (const kernels::KernelCheck& check : stage.compared) {
    if (!check.skipped.empty()) skipped.emplace_back(check.shape, check.skipped);
  }
  return skipped;
}

TEST_F(SelfCheckTest, SkippedStepsAreReported) {
  const auto both = [](const std::string& why) {
    return ::testing::ElementsAre(
        ::testing::Pair("generated token beside a prompt", HasSubstr(why)),
        ::testing::Pair("prompt beside a generated token", HasSubstr(why)));
  };
  Stage one_row(path(), {.max_rows = 1});
  EXPECT_TRUE(one_row.Compare().ok());
  EXPECT_THAT(SkippedOf(one_row),
              both("two sequences cannot run at once: max_running_sequences is 1"));
  EXPECT_EQ(one_row.compared.size(), 4u);

  Stage one_page(path(), {.max_rows = 2, .blocks = 2});
  EXPECT_TRUE(one_page.Compare().ok());
  EXPECT_THAT(SkippedOf(one_page), both("two sequences cannot run at once: "));
  EXPECT_THAT(SkippedOf(one_page), both(" available"));

  Stage short_steps(path(), {.max_step_tokens = 3});
  EXPECT_TRUE(short_steps.Compare().ok());
  EXPECT_THAT(SkippedOf(short_steps),
              ::testing::ElementsAre(::testing::Pair(
                  "all", "a step or a sequence is limited to fewer than 4 tokens")));

  Stage embedder(paths::TestData("embeddings/models/llama-embed-mean-f32"),
                 {.max_step_tokens = 17, .pages = DType::kF32, .mode = LoadMode::kReal});
  EXPECT_TRUE(embedder.Compare().ok());
  EXPECT_THAT(SkippedOf(embedder),
              ::testing::ElementsAre(::testing::Pair("all", "the model has no logits")));
}

// A matrix of a Llama and the largest number of its rows.
struct Matrix {
  double n, k;
  double y_bytes;  // of a row
  std::uint32_t max_rows;
};

// Returns the matrices of the kinds that the check finds in a Llama.
std::vector<Matrix> MatricesOf(const client::ModelShape& shape, std::uint32_t max_rows,
                               std::uint32_t head_rows) {
  const double hidden = shape.hidden_size, inner = shape.intermediate_size;
  const double heads = shape.num_heads * shape.head_dim;
  const double qkv = (shape.num_heads + 2.0 * shape.num_kv_heads) * shape.head_dim;
  const double vocab = shape.vocab_size;
  return {{qkv, hidden, qkv * 2, max_rows},
          {hidden, heads, hidden * 4, max_rows},
          {2 * inner, hidden, 2 * inner * 2, max_rows},
          {hidden, inner, hidden * 4, max_rows},
          {vocab, hidden, vocab * 4, std::min(max_rows, head_rows)}};
}

SelfCheckWork WorkOf(const std::vector<Matrix>& matrices) {
  SelfCheckWork work;
  for (const Matrix& matrix : matrices) {
    std::int64_t launches = kPatterns;
    double rows = kPatterns;
    for (const std::uint32_t count : kCheckedRows) {
      if (count > matrix.max_rows) continue;
      launches += 2;
      rows += 2.0 * count;
    }
    work.launches += launches;
    work.weight_bytes += static_cast<double>(launches) * matrix.n * matrix.k * 2;
    work.tensor_flops += rows * 2 * matrix.n * matrix.k;
    work.scalar_flops += 64 * matrix.n * matrix.k;
    // Rows of results, patterns and references.
    work.copied_bytes += (rows + 2.0 * std::size(kCheckedRows)) * matrix.y_bytes +
                         kPatterns * (matrix.k * 6 + matrix.n * 8);
  }
  return work;
}

// The limits of a check of attention over pages of 2 bytes an element.
struct AttentionLimits {
  double tokens;  // that the pages hold
  std::size_t max_rows;
  double max_step_tokens;
};

// Adds the attention of a Llama on a GPU of compute capability 9.0, whose prompt rows all fit. The
// copied bytes are an upper bound.
void AddAttention(const client::ModelShape& shape, const AttentionLimits& limits,
                  SelfCheckWork* work) {
  constexpr double kTokenPatterns = 67, kPromptRows = 70, kStoredTokens = 512,
                   kComparedTokens = 131;
  const double heads = shape.num_heads, out = heads * shape.head_dim;
  const double kv = 2.0 * shape.num_kv_heads * shape.head_dim, qkv = out + kv;
  const double angles = shape.head_dim;  // cosines and sines of a token
  const double stored = std::min({kStoredTokens, limits.max_step_tokens, limits.tokens});
  // Inputs, empty angles, and the angles of two runs.
  const double launch = kTokenPatterns * qkv * 2 + stored * (8 + 3 * angles * 4);
  // Angles, pages and queries.
  const double compared = kComparedTokens * (angles * 4 + kv * 2 + qkv * 2);
  work->copied_bytes += 2 * (std::ceil(limits.tokens / stored) * launch + compared);

  std::vector<double> lengths;
  for (const std::uint32_t length : kCheckedLengths) {
    if (length <= limits.tokens) lengths.push_back(length);
  }
  const std::size_t at_once = std::min(lengths.size(), limits.max_rows);
  const double share = std::floor(limits.max_step_tokens / static_cast<double>(at_once));
  for (const bool is_prompt : {true, false}) {
    for (std::size_t first = 0; first < lengths.size(); first += at_once) {
      const std::size_t count = std::min(at_once, lengths.size() - first);
      // Two runs, a reference, and the portable kernel for generated tokens.
      const double launches = is_prompt ? 3 : 4;
      const std::set<std::size_t> alone = {0, count / 2, count - 1};
      double rows = 0, keys = 0, runs = launches;
      for (std::size_t b = 0; b < count; ++b) {
        const double length = lengths[first + b];
        const double r = is_prompt ? std::min({kPromptRows, share, length}) : 1;
        const double times = launches + (alone.contains(b) ? 1 : 0);
        runs += times - launches;
        rows += r;
        keys += times * (r * length - r * (r - 1) / 2);
      }
      work->launches += static_cast<std::int64_t>(runs);
      work->attention_flops += 2 * keys * heads * 2 * shape.head_dim;
      // Results in bf16, those of the reference in f32 and its queries in both types.
      work->copied_bytes +=
          kTokenPatterns * qkv * 2 + rows * (launches * out * 2 + out * 4 + qkv * 6);
    }
  }
}

// Adds an upper bound of the bytes that embedding, norm, gate and sampler copy.
void AddSmallOps(const client::ModelShape& shape, SelfCheckWork* work) {
  constexpr double kRows = 65, kSamples = 4;
  work->copied_bytes += kRows * (shape.hidden_size * (8 + 8 + 8) + shape.intermediate_size * 8) +
                        kSamples * 4 * shape.vocab_size;
}

// The counted work of a small model is that of its shape. For the shape of an 8B model the same
// formulas give the time on an H100 with assumed rates that are well below those measured.
TEST_F(SelfCheckTest, TakesLessThanASecondForAnEightBillionModel) {
  constexpr double kBandwidth = 2.5e12, kTensorRate = 3e14, kScalarRate = 2e12;
  constexpr double kAttentionRate = 5e11, kCopyRate = 6e9, kCompareRate = 8e9, kLaunch = 1e-4;
  constexpr double kFirstSteps = 7, kStep = 2e-3;  // seconds of launches in a step
  Stage stage(path(), {.max_step_tokens = 512});
  ASSERT_TRUE(stage.Check().ok());
  const SelfCheckWork& counted = stage.report.work;
  const client::ModelShape& tiny_shape = *client::FindShape("tiny");
  SelfCheckWork tiny = WorkOf(MatricesOf(tiny_shape, 512, 64));
  AddAttention(tiny_shape, {.tokens = 512, .max_rows = 4, .max_step_tokens = 512}, &tiny);
  AddSmallOps(tiny_shape, &tiny);
  EXPECT_EQ(counted.launches, tiny.launches);
  EXPECT_EQ(counted.weight_bytes, tiny.weight_bytes);
  EXPECT_EQ(counted.tensor_flops, tiny.tensor_flops);
  EXPECT_EQ(counted.scalar_flops, tiny.scalar_flops);
  EXPECT_EQ(counted.attention_flops, tiny.attention_flops);
  EXPECT_LE(counted.copied_bytes, tiny.copied_bytes);
  EXPECT_GE(counted.copied_bytes, 0.5 * tiny.copied_bytes);

  const client::ModelShape& shape = *client::FindShape("llama-3.1-8b");
  const std::vector<Matrix> matrices = MatricesOf(shape, 512, 256);
  SelfCheckWork large = WorkOf(matrices);
  AddAttention(shape, {.tokens = 2112, .max_rows = 256, .max_step_tokens = 8192}, &large);
  AddSmallOps(shape, &large);
  double layer_bytes = 0;
  for (std::size_t i = 0; i < 4; ++i) layer_bytes += matrices[i].n * matrices[i].k * 2;
  const double step_bytes = layer_bytes * shape.num_layers + matrices[4].n * matrices[4].k * 2;
  const double seconds = large.weight_bytes / kBandwidth + large.tensor_flops / kTensorRate +
                         large.scalar_flops / kScalarRate + large.attention_flops / kAttentionRate +
                         large.copied_bytes * (1 / kCopyRate + 1 / kCompareRate) +
                         static_cast<double>(large.launches) * kLaunch +
                         kFirstSteps * (step_bytes / kBandwidth + kStep);
  EXPECT_LT(seconds, 1);
  RecordProperty("seconds", absl::StrCat(seconds));
}

}  // namespace
}  // namespace quire::runtime
