#include "tests/stress/stress_model.h"

#include <utility>
#include <vector>

#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

PoolOptions ToPool(const StressPool& pool) {
  return {.usable_pages = pool.usable_pages,
          .page_size = kStressPageSize,
          .max_rows = pool.max_rows,
          .max_context_tokens = pool.max_context_tokens};
}

class FakeModel : public StressModel {
 public:
  FakeModel(int max_steps_in_flight, std::vector<cache::CacheGroup> groups, bool is_recurrent)
      : max_steps_in_flight_(max_steps_in_flight),
        groups_(std::move(groups)),
        is_recurrent_(is_recurrent) {}

  std::unique_ptr<runtime::StepRunner> MakeRunner(const StressPool& pool) override {
    return std::make_unique<FakeRunner>(
        FakeRunnerOptions{.num_blocks = pool.usable_pages + 1,
                          .page_size = kStressPageSize,
                          .groups = groups_,
                          .num_state_slots = Pool(pool).num_state_slots(),
                          .vocab_size = kByteVocab,
                          .poison_token = kPoisonToken,
                          .max_steps_in_flight = max_steps_in_flight_});
  }
  std::unique_ptr<cache::CacheManager> MakeCacheManager(const StressPool& pool) override {
    return MakeCache(Pool(pool));
  }
  EngineOptions Options(const StressPool& pool) const override {
    EngineOptions options = MakeOptions(ToPool(pool));
    SetCommonOptions(options);
    return options;
  }
  const text::Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::int32_t prompt_vocab() const override { return 256; }

 private:
  PoolOptions Pool(const StressPool& pool) const {
    PoolOptions options = ToPool(pool);
    options.groups = groups_;
    options.max_row_overlap_tokens =
        kStressChunkTokens * static_cast<std::uint32_t>(max_steps_in_flight_);
    if (is_recurrent_) options.snapshots = pool.snapshots;
    return options;
  }

  const int max_steps_in_flight_;
  const std::vector<cache::CacheGroup> groups_;
  const bool is_recurrent_;
  const std::unique_ptr<text::Tokenizer> tokenizer_ = MakeByteTokenizer();
};

}  // namespace

void SetCommonOptions(EngineOptions& options) {
  options.prefill_chunk_tokens = kStressChunkTokens;
  options.max_step_tokens = 256;
  options.max_step_prompt_tokens = 96;
  options.step_time_target = absl::InfiniteDuration();
  options.text_threads = 2;
}

std::unique_ptr<StressModel> MakeFakeModel(int max_steps_in_flight,
                                           std::vector<cache::CacheGroup> groups) {
  return std::make_unique<FakeModel>(max_steps_in_flight, std::move(groups),
                                     /*is_recurrent=*/false);
}

std::unique_ptr<StressModel> MakeRecurrentFakeModel() {
  return std::make_unique<FakeModel>(1, std::vector<cache::CacheGroup>{cache::CacheGroup{}},
                                     /*is_recurrent=*/true);
}

}  // namespace quire::engine
