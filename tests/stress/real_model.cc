#include "tests/stress/real_model.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "cache_manager/pool/kv_pool.h"
#include "gtest/gtest.h"
#include "kernels/backend/backend.h"
#include "models/blocks/layer_groups.h"
#include "runtime/cpu_runner.h"
#include "runtime/cuda_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/cache_manager/cache_test_util.h"
#include "tests/testing/paths.h"

namespace quire::engine {
namespace {

// A stress test without its model proves nothing.
template <typename T>
T OrDie(absl::StatusOr<T> value, const char* what) {
  if (!value.ok()) {
    ADD_FAILURE() << what << ": " << value.status();
    std::abort();
  }
  return *std::move(value);
}

// The model in a directory.
class RealModel : public StressModel {
 public:
  RealModel(const std::string& directory, int threads, models::Quantization quantization,
            DeviceKind device = DeviceKind::kCpu, DType kv_dtype = DType::kF32)
      : threads_(threads),
        kv_dtype_(kv_dtype),
        stream_(MakeStream(device)),
        backend_(MakeBackend(stream_.get(), &threads_)),
        model_(OrDie(runtime::LoadModel(directory, backend_,
                                        {.activation = activation(), .quantization = quantization}),
                     "model")),
        tokenizer_(OrDie(text::Tokenizer::Load(directory), "tokenizer")) {}

  std::unique_ptr<runtime::StepRunner> MakeRunner(const StressPool& pool) override {
    pool_ = OrDie(cache::KvPool::Create(Geometry(pool), {.stream = stream_.get()}), "pool");
    std::vector<std::uint8_t> has_text(model_->config.vocab_size);
    for (std::size_t i = 0; i < has_text.size(); ++i) {
      has_text[i] = tokenizer_->HasText(static_cast<std::int32_t>(i)) ? 1 : 0;
    }
    const runtime::RunnerOptions options{.max_rows = pool.max_rows,
                                         .max_step_tokens = 256,
                                         .max_logprobs = 20,
                                         .has_text = std::move(has_text),
                                         .num_state_slots = NumStateSlots(pool),
                                         .activation = activation(),
                                         .max_context_tokens = pool.max_context_tokens};
    if (stream_ != nullptr) {
      auto runner =
          OrDie(runtime::CudaRunner::Create(*model_, backend_, &*pool_, options), "runner");
      states_ = runner->states();
      return runner;
    }
    auto runner = OrDie(runtime::CpuRunner::Create(*model_, backend_, &*pool_, options), "runner");
    states_ = runner->states();
    return runner;
  }
  std::unique_ptr<cache::CacheManager> MakeCacheManager(const StressPool& pool) override {
    cache::CacheManagerOptions options;
    options.geometry = Geometry(pool);
    options.groups = models::CacheGroupsOf(layers_);
    options.max_rows = pool.max_rows;
    options.max_context_tokens = pool.max_context_tokens;
    options.max_row_overlap_tokens =
        stream_ == nullptr ? kStressChunkTokens : 2 * kStressChunkTokens;
    options.num_state_slots = NumStateSlots(pool);
    options.prefix_caching = pool.prefix_caching;
    return OrDie(cache::CacheManager::Create(options), "cache manager");
  }
  EngineOptions Options(const StressPool& pool) const override {
    EngineOptions options;
    options.model_id = std::string("m");
    options.fingerprint = model_->fingerprint;
    options.vocab_size = static_cast<std::int32_t>(model_->config.vocab_size);
    options.limits.vocab_size = options.vocab_size;
    options.max_context_tokens = static_cast<std::int32_t>(pool.max_context_tokens);
    options.eos_token_ids = model_->config.eos_ids;
    options.max_running_sequences = static_cast<std::int32_t>(pool.max_rows);
    SetCommonOptions(options);
    return options;
  }
  const text::Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::int32_t prompt_vocab() const override {
    return static_cast<std::int32_t>(model_->config.vocab_size);
  }

 private:
  cache::KvGeometry Geometry(const StressPool& pool) const {
    return OrDie(
        runtime::KvGeometryFor(model_->spec, kStressPageSize, kv_dtype_, pool.usable_pages + 1),
        "geometry");
  }
  std::uint32_t NumStateSlots(const StressPool& pool) const {
    return layers_.state_bytes > 0 ? 1 + pool.max_rows + pool.snapshots : 0;
  }
  DType activation() const { return kv_dtype_ == DType::kF32 ? DType::kF32 : DType::kBF16; }

  static std::unique_ptr<Stream> MakeStream(DeviceKind device) {
    if (device == DeviceKind::kCpu) return nullptr;
    return std::make_unique<Stream>(
        OrDie(Stream::Create(OrDie(OpenCudaDevice(0), "device")), "stream"));
  }
  static kernels::Backend MakeBackend(const Stream* stream, ThreadPool* threads) {
    return OrDie(
        stream == nullptr
            ? kernels::Backend::Create(Device::Cpu(), threads, kernels::CpuActivations::kInt8)
            : kernels::Backend::CreateCuda(*stream, kernels::Determinism::kBatchInvariant, threads),
        "backend");
  }

  ThreadPool threads_;
  const DType kv_dtype_;

 protected:
  const std::unique_ptr<Stream> stream_;  // null on the CPU

 private:
  const kernels::Backend backend_;
  const std::unique_ptr<runtime::Model> model_;
  const std::unique_ptr<text::Tokenizer> tokenizer_;
  const models::LayerGroups layers_ = models::PlanLayerGroups(model_->spec);

 protected:
  std::int64_t slot_bytes() const { return layers_.state_bytes; }

  std::optional<cache::KvPool> pool_;
  std::span<std::byte> states_;  // all state slots of the last runner
};

// Bytes of 0xff are NaN, so a sequence that reads a released page or slot gets NaN logits.
class FixtureModel : public RealModel {
 public:
  using RealModel::RealModel;

  std::unique_ptr<runtime::StepRunner> MakeRunner(const StressPool& pool) override {
    class Runner : public HookedRunner {
     public:
      Runner(std::unique_ptr<runtime::StepRunner> runner, std::function<void()> hook)
          : HookedRunner(runner.get(), std::move(hook)), owned_(std::move(runner)) {}

     private:
      const std::unique_ptr<runtime::StepRunner> owned_;
    };
    return std::make_unique<Runner>(RealModel::MakeRunner(pool), [this] {
      PoisonFreePages();
      PoisonFreeSlots();
    });
  }
  std::unique_ptr<cache::CacheManager> MakeCacheManager(const StressPool& pool) override {
    std::unique_ptr<cache::CacheManager> cache = RealModel::MakeCacheManager(pool);
    cache_ = cache.get();
    return cache;
  }

 private:
  void PoisonFreePages() {
    const std::vector<cache::PageUse> pages = cache_->DescribePages();
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      if (pages[i].kind == cache::PageUse::Kind::kFree) Poison(pool_->page_blocks(BlockId{i + 1}));
    }
  }

  // Fills memory of the model's device.
  void Poison(std::span<std::byte> bytes) {
    if (stream_ == nullptr) {
      std::ranges::fill(bytes, std::byte{0xff});
      return;
    }
    const std::vector<std::byte> poisoned(bytes.size(), std::byte{0xff});
    const auto size = static_cast<std::int64_t>(poisoned.size());
    EXPECT_TRUE(stream_->Copy(bytes.data(), poisoned.data(), size).ok());
    EXPECT_TRUE(stream_->Synchronize().ok());
  }

  std::vector<std::byte> Read(std::span<const std::byte> bytes) {
    if (stream_ == nullptr) return {bytes.begin(), bytes.end()};
    std::vector<std::byte> read(bytes.size());
    const auto size = static_cast<std::int64_t>(read.size());
    EXPECT_TRUE(stream_->Copy(read.data(), bytes.data(), size).ok());
    EXPECT_TRUE(stream_->Synchronize().ok());
    return read;
  }

  void PoisonFreeSlots() {
    const cache::StatePool& pool = cache::CacheManagerPeer::states(*cache_);
    const auto slot_of = [&](std::uint32_t slot) {
      return states_.subspan(static_cast<std::size_t>(slot * slot_bytes()),
                             static_cast<std::size_t>(slot_bytes()));
    };
    for (std::uint32_t slot = 1; slot < pool.num_slots(); ++slot) {
      if (pool.state(cache::StateSlot{slot}) != cache::SlotState::kFree) continue;
      Poison(slot_of(slot));
    }
    if (pool.num_slots() == 0) return;
    EXPECT_TRUE(std::ranges::all_of(Read(slot_of(0)), [](std::byte byte) {
      return byte == std::byte{0};
    })) << "the null slot was written";
  }

  cache::CacheManager* cache_ = nullptr;  // of the last created engine
};

}  // namespace

std::unique_ptr<StressModel> MakeStoryModel(int threads, models::Quantization quantization) {
  return std::make_unique<RealModel>(paths::Source("assets/story"), threads, quantization);
}
std::unique_ptr<StressModel> MakeFixtureModel(const std::string& folder, int threads,
                                              DeviceKind device, DType kv_dtype) {
  return std::make_unique<FixtureModel>(paths::TestData(absl::StrCat("models/", folder)), threads,
                                        models::Quantization::kAuto, device, kv_dtype);
}

}  // namespace quire::engine
