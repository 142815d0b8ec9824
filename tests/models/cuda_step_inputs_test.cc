// Runs random steps through CudaStepInputs and compares the device's arrays with the host's.

#include "runtime/cuda_step_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "models/config/layer_spec.h"
#include "tests/cuda_emulator/emulator.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kPageSize = 16;
constexpr std::uint32_t kMaxPages = 12;
constexpr std::uint32_t kStride = 32;
constexpr std::uint32_t kGroups = 3;  // the first without a window

class CudaStepInputsTest : public testing::Test {
 protected:
  CudaStepInputsTest()
      : pool_(1),
        stream_(*Stream::Create(*OpenCudaDevice(0))),
        backend_(
            *kernels::Backend::CreateCuda(stream_, kernels::Determinism::kBatchInvariant, &pool_)),
        inputs_(*runtime::CudaStepInputs::Create(backend_, kLimits, kPageSize)),
        order_(kLimits) {
    spec_.hidden = 8;
    spec_.vocab_size = 16;
    spec_.layers.resize(1);
    buffers_ = *StepBuffers::Allocate(spec_, kLimits);
    table_.assign(kGroups * kLimits.max_rows * kStride, 0);
    lengths_.assign(kLimits.max_rows, 0);
    used_.assign(kLimits.max_rows, 0);
    for (std::vector<std::uint32_t>& array : states_) array.assign(kLimits.max_rows, 0);
    for (std::uint32_t group = 0; group < kGroups; ++group) {
      kv_.push_back({.lookup_table = RowOf(group, 0),
                     .cache_lengths = lengths_.data(),
                     .lookup_stride = kStride,
                     .max_rows = kLimits.max_rows});
    }
  }

  std::uint32_t* RowOf(std::uint32_t group, std::uint32_t row) {
    return table_.data() + (group * kLimits.max_rows + row) * kStride;
  }

  template <typename T>
  std::vector<T> Read(const T* device, std::size_t count) {
    std::vector<T> host(count);
    EXPECT_TRUE(
        stream_.Copy(host.data(), device, static_cast<std::int64_t>(count * sizeof(T))).ok());
    EXPECT_TRUE(stream_.Synchronize().ok());
    return host;
  }

  // Returns a step of random rows, each with random pages and lengths. Rows outside the step may
  // change, too.
  runtime::StepBatch RandomStep(std::mt19937* random) {
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>((*random)() % n); };
    runtime::StepBatch batch;
    batch.kv = kv_;
    std::vector<std::uint32_t> rows(kLimits.max_rows);
    std::iota(rows.begin(), rows.end(), 0u);
    std::shuffle(rows.begin(), rows.end(), *random);
    rows.resize(1 + below(kLimits.max_rows));
    for (const std::uint32_t row : rows) {
      // Usually a row grows or keeps its pages. Sometimes it belongs to a new, shorter sequence.
      // Window groups release pages before the step's tokens.
      std::uint32_t& used = used_[row];
      const bool is_new = used == 0 || below(4) == 0;
      const bool grows = !is_new && used < kMaxPages && below(2) == 0;
      if (is_new) used = 1 + below(kMaxPages);
      if (grows) ++used;
      if (is_new) lengths_[row] = 0;
      const std::uint32_t room = used * kPageSize - lengths_[row];
      const std::uint32_t count = 1 + below(std::min(room, 3u));
      lengths_[row] += below(room - count + 1);
      for (std::uint32_t group = 0; group < kGroups; ++group) {
        std::uint32_t* const pages = RowOf(group, row);
        const std::uint32_t first =
            group == 0 || below(3) > 0 ? 0 : below(lengths_[row] / kPageSize + 1);
        for (std::uint32_t c = 0; c < kStride; ++c) {
          const bool is_fresh = c < used && (is_new || (grows && c + 1 == used));
          if (is_fresh) pages[c] = 1 + below(1000);
          if (c < first || c >= used) pages[c] = 0;
        }
      }
      batch.rows.push_back({.batch_row = BatchRow{row},
                            .cache_length = lengths_[row],
                            .first_token = static_cast<std::uint32_t>(batch.token_ids.size()),
                            .num_tokens = count,
                            .prompt_tokens = below(count + 1)});
      for (std::uint32_t i = 0; i < count; ++i) {
        batch.token_ids.push_back(static_cast<std::int32_t>(below(6)) - 2);
      }
    }
    for (std::uint32_t i = 0; i < batch.token_ids.size(); ++i) {
      if (below(2) == 0) batch.logits_tokens.push_back(i);
    }
    for (std::vector<std::uint32_t>& array : states_) {
      for (std::uint32_t& value : array) value = below(1000);
    }
    batch.states = {.state_in = states_[0].data(),
                    .state_out = states_[1].data(),
                    .snapshot_at = states_[2].data(),
                    .snapshot_slot = states_[3].data(),
                    .max_rows = kLimits.max_rows};
    return batch;
  }

  void Check(const runtime::StepBatch& batch, const runtime::PackedStep& step,
             const runtime::StepPadding& padding, const std::vector<std::int32_t>& previous) {
    const auto tokens = Read(buffers_.tokens, padding.tokens);
    const auto positions = Read(buffers_.positions, padding.tokens);
    const auto token_rows = Read(buffers_.token_rows, padding.tokens);
    const auto offsets = Read(buffers_.row_offsets, padding.rows + 1);
    const auto lengths = Read(buffers_.cache_lengths, padding.rows);
    const auto prompts = Read(buffers_.prefill_tokens, padding.rows);
    const auto live = Read(buffers_.live_rows, 1 + batch.rows.size());
    const auto heads = Read(buffers_.head_tokens, padding.head_tokens);
    const auto table = Read(buffers_.lookup_table, table_.size());
    const auto states = Read(buffers_.states, std::size_t{4} * kLimits.max_rows);
    for (std::uint32_t row = 0; row < padding.rows; ++row) {
      for (std::size_t a = 0; a < states_.size(); ++a) {
        ASSERT_EQ(states[a * kLimits.max_rows + row], row < step.batch_size ? states_[a][row] : 0)
            << a << " " << row;
      }
    }
    std::vector<std::uint32_t> place(batch.token_ids.size());
    std::uint32_t seen = 0;
    std::uint32_t num_live = 0;
    for (std::uint32_t row = 0; row < padding.rows; ++row) {
      const auto it =
          std::find_if(batch.rows.begin(), batch.rows.end(),
                       [&](const runtime::StepRow& r) { return r.batch_row.value() == row; });
      ASSERT_EQ(offsets[row], seen);
      ASSERT_EQ(lengths[row], it == batch.rows.end() ? 0 : it->cache_length);
      ASSERT_EQ(prompts[row], it == batch.rows.end() ? 0 : it->prompt_tokens);
      if (it == batch.rows.end()) continue;
      ASSERT_EQ(live[++num_live], row);
      for (std::uint32_t c = 0; c < kStride; ++c) {
        for (std::uint32_t group = 0; group < kGroups; ++group) {
          const std::size_t at = (group * kLimits.max_rows + row) * kStride + c;
          ASSERT_EQ(table[at], table_[at]) << group << " " << row << " " << c;
        }
      }
      for (std::uint32_t i = 0; i < it->num_tokens; ++i, ++seen) {
        std::int32_t token = batch.token_ids[it->first_token + i];
        if (token < 0) token = std::max(previous[static_cast<std::size_t>(-(token + 1))], 0);
        ASSERT_EQ(tokens[seen], token);
        ASSERT_EQ(positions[seen], static_cast<std::int32_t>(it->cache_length + i));
        ASSERT_EQ(token_rows[seen], static_cast<std::int32_t>(row));
        place[it->first_token + i] = seen;
      }
    }
    ASSERT_EQ(offsets[padding.rows], step.num_tokens);
    ASSERT_EQ(live[0], num_live);
    for (std::uint32_t i = step.num_tokens; i < padding.tokens; ++i) {
      ASSERT_EQ(tokens[i], 0);
      ASSERT_EQ(positions[i], 0);
      ASSERT_EQ(token_rows[i], -1);
    }
    for (std::uint32_t i = 0; i < padding.head_tokens; ++i) {
      ASSERT_EQ(heads[i], i < batch.logits_tokens.size() ? place[batch.logits_tokens[i]] : 0u);
    }
  }

  static constexpr StepLimits kLimits{.max_rows = 9,
                                      .max_step_tokens = 40,
                                      .max_step_samples = 4,
                                      .memory = MemoryKind::kDevice,
                                      .lookup_stride = kStride,
                                      .num_groups = kGroups,
                                      .num_state_slots = 2};
  ThreadPool pool_;
  Stream stream_;
  kernels::Backend backend_;
  runtime::CudaStepInputs inputs_;
  runtime::StepOrder order_;
  ModelSpec spec_;
  StepBuffers buffers_;
  std::vector<std::uint32_t> table_;
  std::vector<std::uint32_t> lengths_;
  std::vector<std::uint32_t> used_;                   // columns of each row
  std::array<std::vector<std::uint32_t>, 4> states_;  // of cache::StateStepInputs, in its order
  std::vector<cache::KvStepInputs> kv_;
};

TEST_F(CudaStepInputsTest, DeviceArraysEqualHostArrays) {
  std::mt19937 random(11);
  // Sample 1 returned no token.
  const std::vector<std::int32_t> previous = {5, -1};
  auto sampled = DeviceBuffer::Allocate(MemoryKind::kDevice, 8);
  ASSERT_TRUE(sampled.ok());
  ASSERT_TRUE(stream_.Copy(sampled->data(), previous.data(), 8).ok());
  std::int64_t words = 0;
  for (int i = 0; i < 200; ++i) {
    const runtime::StepBatch batch = RandomStep(&random);
    const int slot = i % 2;
    const runtime::PackedStep step = inputs_.Pack(batch, slot, &order_);
    words += step.words;
    const auto num_heads = static_cast<std::uint32_t>(batch.logits_tokens.size());
    const runtime::StepPadding padding{.tokens = 40, .head_tokens = 40, .rows = 9};
    ASSERT_TRUE(inputs_
                    .Upload(step, slot, num_heads, padding,
                            static_cast<const std::int32_t*>(sampled->data()), 2, &buffers_)
                    .ok());
    Check(batch, step, padding, previous);
    if (i == 100) inputs_.Forget();
  }
  // Only changed parts are copied. Whole tables would add 3 * 5 * 32 words per step to about 110.
  EXPECT_LT(words / 200, 300);
}

TEST_F(CudaStepInputsTest, UnchangedTableIsNotCopied) {
  std::mt19937 random(12);
  const runtime::StepBatch batch = RandomStep(&random);
  EXPECT_GT(inputs_.Pack(batch, 0, &order_).num_ranges, 0u);
  EXPECT_EQ(inputs_.Pack(batch, 0, &order_).num_ranges, 0u);
  inputs_.Forget();
  EXPECT_EQ(inputs_.Pack(batch, 0, &order_).num_ranges, kGroups * batch.rows.size());
}

}  // namespace
}  // namespace quire::models
