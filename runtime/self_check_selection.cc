// The part of the self-check that compares an indexer's ops (IndexSpec), and attention over the
// keys that the indexer selects, with the CPU. The pages of this part are in the memory of the
// check. Their ids descend along the sequence.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/status.h"
#include "cache_manager/pool/kv_pool.h"
#include "cache_manager/pool/lookup_table.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/sparse/index_score.h"
#include "kernels/sparse/index_store.h"
#include "kernels/sparse/select_topk.h"
#include "kernels/sparse/sparse_attention.h"
#include "runtime/self_check_context.h"

namespace quire::runtime {
namespace {

using kernels::FloatPtr;

constexpr std::uint32_t kMaxTopK = 64;  // maximum number of keys that the check selects
constexpr std::uint32_t kNewRows = 3;   // new tokens of the sequence
constexpr std::uint32_t kStepRows = 4;  // the new tokens, and a row of padding
constexpr std::uint32_t kPageSize = 16;

// One layer of pages, in host memory and on the device.
class PageSet {
 public:
  // Creates pages for `tokens` tokens in host memory.
  static absl::StatusOr<PageSet> Create(DType dtype, std::uint32_t columns, std::uint32_t tokens) {
    PageSet pages;
    cache::KvGeometry geometry;
    const std::uint32_t used = (tokens + kPageSize - 1) / kPageSize;
    geometry.num_blocks = used + 1;
    geometry.num_layers = 1;
    geometry.page_size = kPageSize;
    geometry.num_heads = 1;
    geometry.head_size = columns;
    geometry.dtype = dtype;
    if (DTypeSize(dtype) == 1) {
      geometry.scale_dtype = DType::kF32;
      geometry.granularity = columns;
    }
    QUIRE_ASSIGN_OR_RETURN(cache::KvPool pool, cache::KvPool::Create(geometry));
    pages.pool_ = std::make_unique<cache::KvPool>(std::move(pool));
    const std::uint32_t stride = (used + 7) / 8 * 8 + cache::LookupTable::kPaddingColumns;
    QUIRE_ASSIGN_OR_RETURN(pages.table_,
                           DeviceBuffer::Allocate(MemoryKind::kHost, (stride + 1) * 4));
    auto* const table = static_cast<std::uint32_t*>(pages.table_.data());
    std::fill(table, table + stride, 0u);
    for (std::uint32_t i = 0; i < used; ++i) table[i] = used - i;
    table[stride] = tokens - kNewRows;  // the cache length
    pages.inputs_ = {.lookup_table = table,
                     .cache_lengths = table + stride,
                     .lookup_stride = stride,
                     .max_rows = 1,
                     .max_seq_length = tokens,
                     .max_cache_length = tokens,
                     .max_history_length = tokens};
    return pages;
  }

  // Copies table and pages to the device, and returns a view of the copies.
  absl::StatusOr<kernels::AnyKvView> Upload(SelfCheckContext* context) {
    cache::KvStepInputs inputs = inputs_;
    const std::int64_t table_bytes = (inputs_.lookup_stride + 1) * 4;
    QUIRE_ASSIGN_OR_RETURN(std::byte* const table, context->Take(table_bytes));
    QUIRE_RETURN_IF_ERROR(context->Copy(table, table_.data(), table_bytes));
    inputs.lookup_table = reinterpret_cast<const std::uint32_t*>(table);
    inputs.cache_lengths = inputs.lookup_table + inputs_.lookup_stride;
    QUIRE_ASSIGN_OR_RETURN(device_, context->Take(block_bytes()));
    QUIRE_RETURN_IF_ERROR(context->Copy(device_, pool_->blocks(), block_bytes()));
    std::byte* scales = nullptr;
    if (scale_bytes() > 0) {
      QUIRE_ASSIGN_OR_RETURN(scales, context->Take(scale_bytes()));
      QUIRE_RETURN_IF_ERROR(context->Copy(scales, pool_->scales(), scale_bytes()));
    }
    return ViewOf(device_, scales, inputs);
  }
  absl::Status Download(SelfCheckContext* context) {
    return context->Copy(pool_->blocks(), device_, block_bytes());
  }
  absl::StatusOr<kernels::AnyKvView> View() const {
    return ViewOf(pool_->blocks(), pool_->scales(), inputs_);
  }

 private:
  absl::StatusOr<kernels::AnyKvView> ViewOf(void* blocks, void* scales,
                                            const cache::KvStepInputs& inputs) const {
    QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvCollection collection,
                           kernels::MakeKvCollection(pool_->geometry(), blocks, inputs, scales));
    return kernels::KeyView(collection, 0);
  }
  std::int64_t block_bytes() const {
    const cache::KvGeometry& g = pool_->geometry();
    return g.num_blocks * g.block_stride() * DTypeSize(g.dtype);
  }
  std::int64_t scale_bytes() const {
    const cache::KvGeometry& g = pool_->geometry();
    return g.quantized() ? g.num_blocks * g.scale_block_stride() * DTypeSize(g.scale_dtype) : 0;
  }

  std::unique_ptr<cache::KvPool> pool_;
  DeviceBuffer table_;  // lookup table, then the cache length
  cache::KvStepInputs inputs_{};
  std::byte* device_ = nullptr;
};

class SelectionCheck {
 public:
  SelectionCheck(SelfCheckContext* context, const models::MlaSpec& mla,
                 kernels::AttentionPlan* plan)
      : context_(context),
        mla_(mla),
        index_(*mla.index),
        plan_(plan),
        topk_(std::min(index_.topk, kMaxTopK)),
        tokens_(3 * topk_ + kNewRows) {}

  absl::Status Run();

 private:
  // Runs an op twice over poisoned memory and returns the `count` values at `from`. `check` gets a
  // fault if the runs differ.
  template <typename T, typename Fn>
  absl::StatusOr<std::vector<T>> RunTwice(T* from, std::size_t count, kernels::KernelCheck* check,
                                          Fn run) {
    const auto bytes = static_cast<std::int64_t>(count * sizeof(T));
    std::vector<T> results[2];
    for (std::vector<T>& result : results) {
      QUIRE_RETURN_IF_ERROR(context_->Poison(from, bytes));
      QUIRE_RETURN_IF_ERROR(run());
      result.resize(count);
      QUIRE_RETURN_IF_ERROR(context_->Copy(result.data(), from, bytes));
    }
    if (std::memcmp(results[0].data(), results[1].data(), count * sizeof(T)) != 0) {
      check->fault = "two runs differ";
    }
    return std::move(results[0]);
  }
  // Begins the comparison of a kernel and returns its check, without a result.
  kernels::KernelCheck Begin(const char* kernel, std::uint32_t heads, std::uint32_t columns,
                             double limit) const {
    kernels::KernelCheck check{
        .kernel = kernel,
        .shape = absl::StrCat(heads, " heads of ", columns, ", ", topk_, " of ", tokens_, " keys"),
        .limit = limit};
    context_->Begin(check.kernel, check.shape);
    return check;
  }

  // Inputs of IndexStore, [kStepRows] rows.
  struct StoreInputs {
    std::vector<float> queries, keys, weight, bias, angles;
  };

  absl::Status UploadPositions();
  // Stores the first `count` tokens in pages of the host.
  absl::Status Fill(const PageSet& pages, std::uint32_t count, std::uint32_t columns,
                    std::uint64_t seed);
  kernels::IndexStoreParams StoreParams(const kernels::AnyKvView& rows) const;
  absl::Status StoreOnDevice(const StoreInputs& inputs);
  // Leaves the rotated queries in `inputs`.
  absl::Status StoreOnCpu(const kernels::AnyKvView& rows, StoreInputs* inputs);
  std::vector<float> StoredRows(const kernels::AnyKvView& rows) const;
  absl::Status Store();
  absl::Status Score();
  absl::Status Select();
  absl::Status MapKeys(const kernels::AnyKvView& rows);
  kernels::SparseAttentionParams AttentionParams(const kernels::AnyKvView& rows) const;
  absl::StatusOr<std::vector<float>> AttendOnCpu(const PageSet& pages, const std::vector<float>& q);
  // Returns the columns that attention writes.
  std::vector<float> ValueColumns(const std::vector<float>& out) const;
  absl::Status Attend();

  SelfCheckContext* const context_;
  const models::MlaSpec& mla_;
  const models::IndexSpec& index_;
  kernels::AttentionPlan* const plan_;
  const std::uint32_t topk_;
  const std::uint32_t tokens_;

  // Device arrays of the step.
  std::int32_t* token_rows_ = nullptr;
  std::int32_t* positions_ = nullptr;
  std::uint32_t* row_offsets_ = nullptr;
  std::optional<PageSet> rows_;  // index rows
  std::optional<kernels::AnyKvView> device_rows_;
  float* queries_ = nullptr;
  float* scores_ = nullptr;
  std::int32_t* selected_ = nullptr;
  std::uint32_t* last_selected_ = nullptr;
  std::uint32_t* offsets_ = nullptr;
  std::uint32_t* live_rows_ = nullptr;
  std::vector<std::int32_t> keys_;  // selected by the CPU
};

absl::Status SelectionCheck::UploadPositions() {
  std::vector<std::int32_t> token_rows(kStepRows, -1), positions(kStepRows, 0);
  for (std::uint32_t i = 0; i < kNewRows; ++i) {
    token_rows[i] = 0;
    positions[i] = static_cast<std::int32_t>(tokens_ - kNewRows + i);
  }
  QUIRE_ASSIGN_OR_RETURN(token_rows_, context_->Upload(token_rows));
  QUIRE_ASSIGN_OR_RETURN(positions_, context_->Upload(positions));
  QUIRE_ASSIGN_OR_RETURN(row_offsets_, context_->Upload(std::vector<std::uint32_t>{0, kNewRows}));
  return absl::OkStatus();
}

absl::Status SelectionCheck::Fill(const PageSet& pages, std::uint32_t count, std::uint32_t columns,
                                  std::uint64_t seed) {
  QUIRE_ASSIGN_OR_RETURN(kernels::AnyKvView view, pages.View());
  const std::uint32_t none = 0;
  std::visit([&](auto& v) { v.cache_lengths = &none; }, view);
  const std::uint32_t offsets[] = {0, count};
  const std::vector<float> values = RandomValues(std::size_t{count} * columns, seed);
  return kernels::KvStore(context_->cpu(), {.keys = &view,
                                            .values = &view,
                                            .k = values.data(),
                                            .v = values.data(),
                                            .row_offsets = offsets,
                                            .k_stride = columns,
                                            .v_stride = columns,
                                            .batch_size = 1});
}

// Returns the parameters that both devices share.
kernels::IndexStoreParams SelectionCheck::StoreParams(const kernels::AnyKvView& rows) const {
  const bool is_half = index_.rope_style == models::RopeStyle::kHalf;
  kernels::IndexStoreParams params{};
  params.rows = &rows;
  params.batch_size = 1;
  params.num_heads = index_.heads;
  params.rope_size = mla_.rope_size;
  params.style = is_half ? kernels::RopeStyle::kHalf : kernels::RopeStyle::kInterleaved;
  params.epsilon = index_.norm_eps;
  return params;
}

absl::Status SelectionCheck::StoreOnDevice(const StoreInputs& inputs) {
  kernels::IndexStoreParams params = StoreParams(*device_rows_);
  QUIRE_ASSIGN_OR_RETURN(queries_, context_->Upload(inputs.queries));
  QUIRE_ASSIGN_OR_RETURN(params.keys, context_->Upload(inputs.keys));
  QUIRE_ASSIGN_OR_RETURN(params.norm_weight, context_->Upload(inputs.weight));
  QUIRE_ASSIGN_OR_RETURN(params.norm_bias, context_->Upload(inputs.bias));
  QUIRE_ASSIGN_OR_RETURN(params.cosines, context_->Upload(inputs.angles));
  params.queries = queries_;
  params.sines = params.cosines + inputs.angles.size() / 2;
  params.row_offsets = row_offsets_;
  params.token_rows = token_rows_;
  params.positions = positions_;
  params.num_rows = kStepRows;
  return kernels::IndexStore(*context_->params().backend, params);
}

absl::Status SelectionCheck::StoreOnCpu(const kernels::AnyKvView& rows, StoreInputs* inputs) {
  const std::uint32_t offsets[] = {0, kNewRows};
  kernels::IndexStoreParams params = StoreParams(rows);
  params.queries = inputs->queries.data();
  params.keys = inputs->keys.data();
  params.norm_weight = inputs->weight.data();
  params.norm_bias = inputs->bias.data();
  params.cosines = inputs->angles.data();
  params.sines = params.cosines + inputs->angles.size() / 2;
  params.row_offsets = offsets;
  params.num_rows = kNewRows;
  return kernels::IndexStore(context_->cpu(), params);
}

std::vector<float> SelectionCheck::StoredRows(const kernels::AnyKvView& rows) const {
  std::vector<float> values;
  std::visit(
      [&](const auto& view) {
        for (std::uint32_t t = 0; t < tokens_; ++t) {
          for (std::uint32_t c = 0; c < index_.size; ++c) {
            values.push_back(view.template load<1, float>(0, 0, t, c)[0]);
          }
        }
      },
      rows);
  return values;
}

// Compares the stored rows by relative error and the rotated queries bit for bit. The CPU has
// stored the cached tokens that both devices start with.
absl::Status SelectionCheck::Store() {
  const std::uint32_t size = index_.size;
  const DType dtype = context_->activation() == DType::kF32 ? DType::kF32 : DType::kBF16;
  kernels::KernelCheck check =
      Begin("index store", index_.heads, size, dtype == DType::kF32 ? 1e-6 : 1e-3);
  QUIRE_ASSIGN_OR_RETURN(rows_, PageSet::Create(dtype, size, tokens_));
  QUIRE_RETURN_IF_ERROR(Fill(*rows_, tokens_ - kNewRows, size, 21));
  QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvView host, rows_->View());
  QUIRE_ASSIGN_OR_RETURN(device_rows_, rows_->Upload(context_));
  StoreInputs inputs{.queries = RandomValues(std::size_t{kStepRows} * index_.heads * size, 22),
                     .keys = RandomValues(std::size_t{kStepRows} * size, 23),
                     .weight = RandomValues(size, 24),
                     .bias = RandomValues(size, 25),
                     .angles = RandomValues(std::size_t{kStepRows} * mla_.rope_size, 26)};
  QUIRE_RETURN_IF_ERROR(StoreOnDevice(inputs));
  QUIRE_RETURN_IF_ERROR(StoreOnCpu(host, &inputs));
  const std::vector<float> want = StoredRows(host);
  QUIRE_RETURN_IF_ERROR(rows_->Download(context_));
  check.error = RelativeError(StoredRows(host), want);
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<float> queries,
      context_->DownloadFloats(queries_, static_cast<std::int64_t>(inputs.queries.size())));
  if (queries != inputs.queries) check.fault = "a query differs from that of the CPU";
  context_->Add(std::move(check));
  return absl::OkStatus();
}

// The CPU reads the rows and queries that the GPU stored, so the scores must be bitwise equal.
absl::Status SelectionCheck::Score() {
  kernels::KernelCheck check = Begin("index score", index_.heads, index_.size, 0);
  const std::int64_t stride = kernels::ScoreStride(tokens_);
  const auto count = static_cast<std::size_t>(kNewRows * stride);
  const std::vector<float> weights = RandomValues(std::size_t{kStepRows} * index_.heads, 27);
  QUIRE_ASSIGN_OR_RETURN(FloatPtr scores, context_->TakeFloats(DType::kF32, kStepRows * stride));
  scores_ = scores.f32();
  kernels::IndexScoreParams params{.keys = &*device_rows_,
                                   .q = queries_,
                                   .weights = nullptr,
                                   .scores = scores_,
                                   .row_offsets = row_offsets_,
                                   .score_stride = stride,
                                   .batch_size = 1,
                                   .row_begin = 0,
                                   .row_end = kStepRows,
                                   .num_heads = index_.heads,
                                   .scale = 0.125f,
                                   .token_rows = token_rows_,
                                   .positions = positions_};
  QUIRE_ASSIGN_OR_RETURN(params.weights, context_->Upload(weights));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> got, RunTwice(scores_, count, &check, [&] {
                           return kernels::IndexScore(*context_->params().backend, params);
                         }));
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<float> queries,
      context_->DownloadFloats(FloatPtr(queries_),
                               std::int64_t{kNewRows} * index_.heads * index_.size));
  QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvView host, rows_->View());
  const std::uint32_t offsets[] = {0, kNewRows};
  std::vector<float> want(count);
  params.keys = &host;
  params.q = queries.data();
  params.weights = weights.data();
  params.scores = want.data();
  params.row_offsets = offsets;
  params.row_end = kNewRows;
  kernels::internal::IndexScoreCpu(params);
  for (std::uint32_t row = 0; row < kNewRows && check.fault.empty(); ++row) {
    const std::size_t at = row * static_cast<std::size_t>(stride);
    if (std::memcmp(&got[at], &want[at], (tokens_ - kNewRows + row + 1) * sizeof(float)) == 0)
      continue;
    check.fault = absl::StrCat("the scores of row ", row, " differ from those of the CPU");
  }
  context_->Add(std::move(check));
  return absl::OkStatus();
}

absl::Status SelectionCheck::Select() {
  kernels::KernelCheck check = Begin("key selection", index_.heads, index_.size, 0);
  const std::int64_t stride = kernels::ScoreStride(tokens_);
  const std::size_t count = std::size_t{kNewRows} * topk_;
  QUIRE_ASSIGN_OR_RETURN(selected_, context_->Upload(std::vector<std::int32_t>(kStepRows * topk_)));
  kernels::SelectTopKParams params{.scores = scores_,
                                   .positions = positions_,
                                   .selected = selected_,
                                   .score_stride = stride,
                                   .num_rows = kStepRows,
                                   .topk = topk_,
                                   .max_selected = topk_,
                                   .token_rows = token_rows_};
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> got,
                         RunTwice(selected_, count, &check, [&] {
                           return kernels::SelectTopK(*context_->params().backend, params);
                         }));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> scores,
                         context_->DownloadFloats(scores_, kNewRows * stride));
  std::vector<std::int32_t> positions(kNewRows);
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(tokens_ - kNewRows));
  keys_.resize(count);
  params.scores = scores.data();
  params.positions = positions.data();
  params.selected = keys_.data();
  kernels::internal::SelectTopKCpu(params, 0, kNewRows);
  if (got != keys_ && check.fault.empty()) check.fault = "the keys differ from those of the CPU";
  context_->Add(std::move(check));
  return absl::OkStatus();
}

absl::Status SelectionCheck::MapKeys(const kernels::AnyKvView& rows) {
  const std::vector<std::uint32_t> poison(kStepRows + 1, ~0u);
  QUIRE_ASSIGN_OR_RETURN(last_selected_, context_->Upload(poison));
  QUIRE_ASSIGN_OR_RETURN(offsets_, context_->Upload(poison));
  QUIRE_ASSIGN_OR_RETURN(live_rows_, context_->Upload(poison));
  return kernels::MapSelectedRows(*context_->params().backend, {.rows = &rows,
                                                                .selected = selected_,
                                                                .last_selected = last_selected_,
                                                                .offsets = offsets_,
                                                                .row_offsets = row_offsets_,
                                                                .batch_size = 1,
                                                                .num_rows = kStepRows,
                                                                .max_selected = topk_,
                                                                .token_rows = token_rows_,
                                                                .live_rows = live_rows_});
}

// Returns the parameters that both devices share.
kernels::SparseAttentionParams SelectionCheck::AttentionParams(
    const kernels::AnyKvView& rows) const {
  const std::int64_t stride = std::int64_t{mla_.num_heads} * (mla_.kv_lora_rank + mla_.rope_size);
  kernels::SparseAttentionParams params{};
  params.rows = &rows;
  params.q_stride = stride;
  params.out_stride = stride;
  params.max_selected = topk_;
  params.num_heads = mla_.num_heads;
  params.scale = mla_.scale;
  params.value_columns = mla_.kv_lora_rank;
  return params;
}

absl::StatusOr<std::vector<float>> SelectionCheck::AttendOnCpu(const PageSet& pages,
                                                               const std::vector<float>& q) {
  QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvView view, pages.View());
  const std::uint32_t row_offsets[] = {0, kNewRows};
  std::vector<std::uint32_t> last_selected(kNewRows), offsets(kNewRows + 1);
  QUIRE_RETURN_IF_ERROR(
      kernels::MapSelectedRows(context_->cpu(), {.rows = &view,
                                                 .selected = keys_.data(),
                                                 .last_selected = last_selected.data(),
                                                 .offsets = offsets.data(),
                                                 .row_offsets = row_offsets,
                                                 .batch_size = 1,
                                                 .num_rows = kNewRows,
                                                 .max_selected = topk_}));
  std::vector<float> out(q.size());
  kernels::SparseAttentionParams params = AttentionParams(view);
  params.q = q.data();
  params.out = out.data();
  params.selected = keys_.data();
  params.last_selected = last_selected.data();
  params.offsets = offsets.data();
  params.num_rows = kNewRows;
  QUIRE_RETURN_IF_ERROR(kernels::SparseAttention(context_->cpu(), params));
  return ValueColumns(out);
}

std::vector<float> SelectionCheck::ValueColumns(const std::vector<float>& out) const {
  const std::uint32_t columns = mla_.kv_lora_rank + mla_.rope_size;
  std::vector<float> values;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i % columns < mla_.kv_lora_rank) values.push_back(out[i]);
  }
  return values;
}

absl::Status SelectionCheck::Attend() {
  const std::uint32_t columns = mla_.kv_lora_rank + mla_.rope_size;
  const DType dtype = context_->params().pool->geometry().dtype;
  const DType activation = context_->activation();
  kernels::KernelCheck check =
      Begin("sparse attention", mla_.num_heads, columns, activation == DType::kF32 ? 1e-5 : 1e-2);
  QUIRE_ASSIGN_OR_RETURN(PageSet pages, PageSet::Create(dtype, columns, tokens_));
  QUIRE_RETURN_IF_ERROR(Fill(pages, tokens_, columns, 28));
  QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvView view, pages.Upload(context_));
  QUIRE_RETURN_IF_ERROR(MapKeys(view));
  const std::vector<float> q = RandomValues(std::size_t{kNewRows} * mla_.num_heads * columns, 29);
  const auto count = static_cast<std::int64_t>(q.size());
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr device_q, context_->TakeFloats(activation, count));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr out, context_->TakeFloats(activation, count));
  QUIRE_RETURN_IF_ERROR(context_->UploadFloats(device_q, q));
  kernels::SparseAttentionParams params = AttentionParams(view);
  params.q = device_q;
  params.out = out;
  params.selected = selected_;
  params.last_selected = last_selected_;
  params.offsets = offsets_;
  params.num_rows = kStepRows;
  params.live_rows = live_rows_;
  params.plan = plan_;
  const auto bytes = static_cast<std::size_t>(count * DTypeSize(activation));
  QUIRE_RETURN_IF_ERROR(RunTwice(static_cast<std::byte*>(out.data()), bytes, &check, [&] {
                          return kernels::SparseAttention(*context_->params().backend, params);
                        }).status());
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> got, context_->DownloadFloats(out, count));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> want, AttendOnCpu(pages, q));
  check.error = RelativeError(ValueColumns(got), want);
  if (!(check.error <= check.limit)) check.fault.clear();
  context_->Add(std::move(check));
  return absl::OkStatus();
}

absl::Status SelectionCheck::Run() {
  context_->Free();
  context_->Begin("sparse attention", absl::StrCat(index_.heads, " heads"));
  QUIRE_RETURN_IF_ERROR(UploadPositions());
  QUIRE_RETURN_IF_ERROR(Store());
  QUIRE_RETURN_IF_ERROR(Score());
  QUIRE_RETURN_IF_ERROR(Select());
  return Attend();
}

}  // namespace

absl::Status CheckSelection(SelfCheckContext* context) {
  const models::ModelSpec& spec = *context->params().spec;
  const auto layer = std::find_if(spec.layers.begin(), spec.layers.end(),
                                  [](const auto& l) { return l.mla.has_indexer(); });
  if (layer == spec.layers.end()) return absl::OkStatus();
  return SelectionCheck(context, layer->mla, context->params().plans.front()).Run();
}

}  // namespace quire::runtime
