// The part of the self-check that stores random K and V in pages. It compares the store, and the
// attention over these pages, with references.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/status.h"
#include "cache_manager/pool/kv_pool.h"
#include "cache_manager/pool/lookup_table.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_store/latent_store.h"
#include "kernels/kv_store/page_copy.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/rope/rope.h"
#include "runtime/self_check_context.h"

namespace quire::runtime {
namespace {

using kernels::ConstFloatPtr;
using kernels::FloatPtr;

// Number of distinct rows of q, k and v. It is prime, so consecutive pages of one store begin with
// different rows. Every store begins with row 0.
constexpr std::uint32_t kTokenPatterns = 67;
// Maximum number of tokens that are stored at a time.
constexpr std::uint32_t kStoredTokens = 512;
// Prompt tokens of a sequence that are computed at once: more than a block of query rows.
constexpr std::uint32_t kPromptRows = 70;

// The heads of a layer as attention sees them.
struct HeadShape {
  bool is_mla = false;
  std::uint32_t num_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size = 0;      // size of a head of q, and of a cached row
  std::uint32_t value_columns = 0;  // 0: all
  std::uint32_t width = 0;      // elements of a row of q, k, v and gate together; MLA: of q alone
  std::uint32_t nope_size = 0;  // MLA
  std::uint32_t rotary = 0;
  std::uint32_t rotary_first = 0;
  bool rotates = true;  // else the rotary columns of MLA stay as they are
  kernels::RopeStyle style = kernels::RopeStyle::kHalf;
  float scale = 0;
  std::uint32_t window = 0;
  std::uint32_t chunk = 0;
  float softcap = 0;
  const float* sinks = nullptr;

  std::uint32_t columns() const { return value_columns == 0 ? head_size : value_columns; }
};

HeadShape ShapeOf(const models::LayerSpec& layer, const models::LayerWeights& weights) {
  HeadShape shape;
  const auto style = [](models::RopeStyle style) {
    return style == models::RopeStyle::kHalf ? kernels::RopeStyle::kHalf
                                             : kernels::RopeStyle::kInterleaved;
  };
  shape.is_mla = layer.attention == models::AttentionKind::kMla;
  if (shape.is_mla) {
    const models::MlaSpec& mla = layer.mla;
    shape.num_heads = mla.num_heads;
    shape.kv_heads = 1;
    shape.head_size = mla.kv_lora_rank + mla.rope_size;
    shape.value_columns = mla.kv_lora_rank;
    shape.width = mla.num_heads * shape.head_size;
    shape.nope_size = mla.nope_size;
    shape.rotary = mla.rope_size;
    shape.rotates = mla.rope >= 0;
    shape.style = style(mla.rope_style);
    shape.scale = mla.scale;
    return shape;
  }
  const models::AttentionSpec& heads = layer.heads;
  shape.num_heads = heads.num_heads;
  shape.kv_heads = heads.num_kv_heads;
  shape.head_size = heads.head_size;
  shape.width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_size;
  if (layer.heads.output_gate) shape.width += heads.num_heads * heads.head_size;
  shape.rotary = heads.rope >= 0 ? heads.rotary_size : 0;
  shape.rotary_first = heads.rope >= 0 ? heads.rotary_first : 0;
  shape.style = style(heads.rope_style);
  shape.scale = heads.scale;
  shape.window = heads.window;
  shape.chunk = heads.chunk;
  shape.softcap = heads.softcap;
  shape.sinks = heads.has_sinks ? weights.sinks : nullptr;
  return shape;
}

bool HasEqualBits(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// One sequence of a launch.
struct Sequence {
  std::uint32_t length = 0;  // number of tokens, including those of the launch
  std::uint32_t rows = 0;    // tokens of the launch, the last ones of the sequence
  std::uint32_t shift = 0;   // page i of the sequence is the pool's page 1 + (i + shift) % pages_
};

// Returns the number of keys up to the position of each row of a launch, summed over the rows.
double KeysOf(std::span<const Sequence> sequences) {
  double keys = 0;
  for (const Sequence& sequence : sequences) {
    const double rows = sequence.rows;
    keys += rows * sequence.length - rows * (rows - 1) / 2;
  }
  return keys;
}

// The pages of one layer in host memory, for the CPU. Page ids are those of the device.
class HostPageSet {
 public:
  HostPageSet(const cache::KvGeometry& device, std::uint32_t pages, std::uint32_t batch_size)
      : stride_((pages + 7) / 8 * 8 + cache::LookupTable::kPaddingColumns),
        batch_size_(batch_size),
        geometry_(device) {
    geometry_.num_blocks = pages + 1;
    geometry_.num_layers = 1;
    geometry_.page_stride = geometry_.scale_page_stride = cache::KvGeometry::kPacked;
  }

  absl::Status Create() {
    QUIRE_ASSIGN_OR_RETURN(pool_, cache::KvPool::Create(geometry_));
    QUIRE_ASSIGN_OR_RETURN(
        arrays_, DeviceBuffer::Allocate(MemoryKind::kHost,
                                        std::int64_t{batch_size_} * (stride_ + 1) *
                                            static_cast<std::int64_t>(sizeof(std::uint32_t))));
    const std::uint32_t tokens = (geometry_.num_blocks - 1) * geometry_.page_size;
    QUIRE_ASSIGN_OR_RETURN(collection_, kernels::MakeKvCollection(geometry_, pool_->blocks(),
                                                                  {.lookup_table = row(0),
                                                                   .cache_lengths = &length(0),
                                                                   .lookup_stride = stride_,
                                                                   .max_rows = batch_size_,
                                                                   .max_seq_length = tokens,
                                                                   .max_cache_length = tokens,
                                                                   .max_history_length = tokens},
                                                                  pool_->scales()));
    return absl::OkStatus();
  }

  // Return row b of the lookup table, and the number of cached tokens of sequence b.
  std::uint32_t* row(std::uint32_t b) {
    return static_cast<std::uint32_t*>(arrays_.data()) + std::size_t{b} * stride_;
  }
  std::uint32_t& length(std::uint32_t b) { return row(batch_size_)[b]; }
  kernels::AnyKvView keys() const { return kernels::KeyView(*collection_, 0); }
  kernels::AnyKvView values() const { return kernels::ValueView(*collection_, 0); }
  const cache::KvPool& pool() const { return *pool_; }

 private:
  const std::uint32_t stride_;
  const std::uint32_t batch_size_;
  DeviceBuffer arrays_;  // the lookup table, aligned as views require, then the lengths
  cache::KvGeometry geometry_;
  std::optional<cache::KvPool> pool_;
  std::optional<kernels::AnyKvCollection> collection_;
};

// A run of bytes of a pool.
struct PoolPiece {
  std::byte* data;
  std::int64_t bytes;
};

// Returns the elements or the scales of K (kv 0) or V (kv 1) of a page and a layer. `g` is the
// geometry of the layer's group.
PoolPiece ElementsOf(const cache::KvPool& pool, const cache::KvGeometry& g, std::uint32_t page,
                     std::uint32_t kv, std::uint32_t layer) {
  const std::int64_t row = g.row_elements() * DTypeSize(g.dtype);
  const std::int64_t rows = (std::int64_t{kv} * g.num_layers + layer) * g.page_size;
  return {static_cast<std::byte*>(pool.blocks()) + page * g.block_stride() * DTypeSize(g.dtype) +
              rows * row,
          g.page_size * row};
}
PoolPiece ScalesOf(const cache::KvPool& pool, const cache::KvGeometry& g, std::uint32_t page,
                   std::uint32_t kv, std::uint32_t layer) {
  if (!g.quantized()) return {nullptr, 0};
  const std::int64_t scale = DTypeSize(g.scale_dtype);
  const std::int64_t row = g.scale_row_elements() * scale;
  const std::int64_t rows = (std::int64_t{kv} * g.num_layers + layer) * g.page_size;
  return {
      static_cast<std::byte*>(pool.scales()) + page * g.scale_block_stride() * scale + rows * row,
      g.page_size * row};
}

// Returns the pieces of a page that belong to a layer: K and V, or MLA rows, with their scales.
std::vector<PoolPiece> PiecesOf(const cache::KvPool& pool, const cache::KvGeometry& g,
                                std::uint32_t page, std::uint32_t slot, bool is_mla) {
  if (is_mla) {
    return {ElementsOf(pool, g, page, slot % 2, slot / 2),
            ScalesOf(pool, g, page, slot % 2, slot / 2)};
  }
  return {ElementsOf(pool, g, page, 0, slot), ScalesOf(pool, g, page, 0, slot),
          ElementsOf(pool, g, page, 1, slot), ScalesOf(pool, g, page, 1, slot)};
}

// Compares the store and the attention of one kind of layer with references.
class AttentionCheck {
 public:
  AttentionCheck(SelfCheckContext* context, const models::LayerSpec& layer,
                 const models::LayerWeights& weights, models::LayerPlace place)
      : context_(context),
        params_(context->params()),
        backend_(*params_.backend),
        geometry_(models::GroupGeometry(params_.pool->geometry(), *params_.layers, place.group)),
        shape_(ShapeOf(layer, weights)),
        place_(place),
        keys_(shape_.is_mla ? kernels::LatentView(params_.kv[place.group], place.slot)
                            : kernels::KeyView(params_.kv[place.group], place.slot)),
        values_(shape_.is_mla ? keys_ : kernels::ValueView(params_.kv[place.group], place.slot)) {}

  // Identifies the kind of the layer: layers with equal keys run the same kernels.
  std::string Key() const;
  absl::Status Run();

 private:
  // The kernel that steps run, and the kernel that they would run without tensor maps.
  enum class Kernel : std::uint8_t { kServed, kPortable };
  // The arrays of one launch, in device memory.
  struct LaunchArrays {
    const std::uint32_t* row_offsets = nullptr;
    FloatPtr q;
    FloatPtr out;
    std::uint32_t num_rows = 0;
    std::uint32_t batch_size = 0;
    double num_keys = 0;  // summed over rows, without the limits of windows and chunks
  };
  // The inputs of a store of tokens [first, first + count), in device memory.
  struct StoreArrays {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::int32_t* positions = nullptr;
    std::int32_t* token_rows = nullptr;
    std::uint32_t* row_offsets = nullptr;
    float* cosines = nullptr;
    float* sines = nullptr;
    FloatPtr rows;     // q, k and v; MLA: the queries
    FloatPtr latents;  // MLA: the rows of the cache
    FloatPtr queries;  // MLA: the latent queries
  };

  std::uint32_t q_stride() const { return shape_.width; }
  std::uint32_t out_stride() const { return shape_.num_heads * shape_.head_size; }
  std::uint32_t row_width() const {
    return shape_.is_mla ? shape_.num_heads * (shape_.nope_size + shape_.rotary) : shape_.width;
  }
  std::int64_t activation_bytes() const { return DTypeSize(context_->activation()); }
  kernels::AttentionPlan* plan() const { return params_.plans[place_.group]; }
  const kernels::cuda::KvTensorMaps* maps() const {
    return params_.maps.empty() ? nullptr : params_.maps[place_.group];
  }
  std::string Describe(absl::string_view what) const;

  absl::Status PoisonPages();
  absl::Status UploadTable(std::span<const Sequence> sequences);
  absl::Status Store();
  // Takes `count` rows of activations. They repeat kTokenPatterns random rows.
  absl::StatusOr<FloatPtr> TakeRows(std::uint32_t count, std::uint32_t width, std::uint64_t seed);
  absl::StatusOr<StoreArrays> PrepareStore(std::uint32_t first, std::uint32_t count);
  absl::Status LaunchStore(const kernels::Backend& backend, const StoreArrays& stored,
                           const kernels::AnyKvView& keys, const kernels::AnyKvView& values);
  // Computes the angles of the stored tokens twice. Compares and reports them if `reports` is true.
  absl::Status ComputeAngles(const StoreArrays& stored, bool reports);
  // Returns a description of a difference from the store of the CPU, or "" if there is none.
  absl::StatusOr<std::string> CompareStore(const StoreArrays& stored, std::uint32_t count);
  absl::StatusOr<std::string> ComparePages(const HostPageSet& host, std::uint32_t count);
  absl::StatusOr<std::string> CompareQueries(ConstFloatPtr device, std::span<const float> want);

  absl::Status Compare(bool is_prompt);
  absl::Status CompareBatch(std::span<const Sequence> sequences, bool is_prompt);
  absl::StatusOr<std::string> CompareWithSingleSequences(std::span<const Sequence> sequences,
                                                         bool is_prompt, const LaunchArrays& arrays,
                                                         std::span<const float> batch);
  absl::StatusOr<LaunchArrays> Prepare(std::span<const Sequence> sequences);
  // Uploads the lengths and the table of the sequences, and plans the step.
  absl::Status Plan(std::span<const Sequence> sequences, bool is_prompt,
                    const LaunchArrays& arrays);
  kernels::AttentionParams ParamsOf(const LaunchArrays& arrays) const;
  std::vector<float> DefinedColumns(std::span<const float> out) const;
  void CountWork(const LaunchArrays& arrays);
  absl::Status Launch(const LaunchArrays& arrays, Kernel kernel);
  // Poisons the output, launches, and returns the output without the columns that attention leaves
  // undefined.
  absl::StatusOr<std::vector<float>> Result(const LaunchArrays& arrays, Kernel kernel);
  absl::StatusOr<std::vector<float>> ScalarReference(const LaunchArrays& arrays);
  absl::StatusOr<std::vector<float>> CpuReference(std::span<const Sequence> sequences,
                                                  const LaunchArrays& arrays);

  SelfCheckContext* const context_;
  const SelfCheckParams& params_;
  const kernels::Backend& backend_;
  const cache::KvGeometry geometry_;  // of the layer's group
  const HeadShape shape_;
  const models::LayerPlace place_;
  const kernels::AnyKvView keys_;
  const kernels::AnyKvView values_;
  std::uint32_t pages_ = 0;
  std::uint32_t tokens_ = 0;  // number of tokens in the pages
};

std::string AttentionCheck::Describe(absl::string_view what) const {
  std::string text = absl::StrCat(DTypeName(geometry_.dtype), " pages, ", shape_.num_heads, "/",
                                  shape_.kv_heads, " heads of ", shape_.head_size);
  if (shape_.window > 0) absl::StrAppend(&text, ", window ", shape_.window);
  if (shape_.chunk > 0) absl::StrAppend(&text, ", chunk ", shape_.chunk);
  if (shape_.softcap > 0) absl::StrAppend(&text, ", softcap ", shape_.softcap);
  if (shape_.sinks != nullptr) absl::StrAppend(&text, ", sinks");
  return absl::StrCat(text, ", ", what);
}

std::string AttentionCheck::Key() const {
  return Describe(absl::StrCat(shape_.width, " ", shape_.rotary, " ", shape_.rotary_first, " ",
                               static_cast<int>(shape_.style), " ", shape_.rotates, " ",
                               shape_.scale));
}

absl::Status AttentionCheck::PoisonPages() {
  for (std::uint32_t page = 1; page <= pages_; ++page) {
    for (const PoolPiece& piece :
         PiecesOf(*params_.pool, geometry_, page, place_.slot, shape_.is_mla)) {
      QUIRE_RETURN_IF_ERROR(context_->Poison(piece.data, piece.bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status AttentionCheck::UploadTable(std::span<const Sequence> sequences) {
  const std::size_t stride = params_.limits.lookup_stride;
  std::vector<std::uint32_t> table(sequences.size() * stride, 0);
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const std::uint32_t pages =
        (sequences[b].length + geometry_.page_size - 1) / geometry_.page_size;
    for (std::uint32_t i = 0; i < pages; ++i) {
      table[b * stride + i] = 1 + (i + sequences[b].shift) % pages_;
    }
  }
  return context_->Copy(
      params_.buffers->lookup_table + place_.group * params_.limits.max_rows * stride, table.data(),
      static_cast<std::int64_t>(table.size() * sizeof(std::uint32_t)));
}

absl::StatusOr<FloatPtr> AttentionCheck::TakeRows(std::uint32_t count, std::uint32_t width,
                                                  std::uint64_t seed) {
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr patterns,
                         context_->TakeFloats(context_->activation(), kTokenPatterns * width));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr rows,
                         context_->TakeFloats(context_->activation(), std::int64_t{count} * width));
  QUIRE_RETURN_IF_ERROR(
      context_->UploadFloats(patterns, RandomValues(std::size_t{kTokenPatterns} * width, seed)));
  QUIRE_RETURN_IF_ERROR(context_->Repeat(rows.data(), patterns.data(), kTokenPatterns,
                                         width * activation_bytes(), 0, count));
  return rows;
}

absl::StatusOr<AttentionCheck::StoreArrays> AttentionCheck::PrepareStore(std::uint32_t first,
                                                                         std::uint32_t count) {
  context_->Free();
  StoreArrays stored{.first = first, .count = count, .rows = {}, .latents = {}, .queries = {}};
  const std::uint32_t pairs = std::max(shape_.rotary / 2, 1u);
  std::vector<std::int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
  const std::vector<float> none(std::size_t{count} * pairs, 0.0f);
  QUIRE_ASSIGN_OR_RETURN(stored.positions, context_->Upload(positions));
  QUIRE_ASSIGN_OR_RETURN(stored.token_rows, context_->Upload(std::vector<std::int32_t>(count)));
  QUIRE_ASSIGN_OR_RETURN(stored.row_offsets,
                         context_->Upload(std::vector<std::uint32_t>{0, count}));
  QUIRE_ASSIGN_OR_RETURN(stored.cosines, context_->Upload(none));
  QUIRE_ASSIGN_OR_RETURN(stored.sines, context_->Upload(none));
  QUIRE_ASSIGN_OR_RETURN(stored.rows, TakeRows(count, row_width(), 3));
  if (shape_.is_mla) {
    QUIRE_ASSIGN_OR_RETURN(stored.latents, TakeRows(count, shape_.head_size, 4));
    QUIRE_ASSIGN_OR_RETURN(stored.queries, TakeRows(count, shape_.width, 5));
  }
  return stored;
}

// Runs the store on the device of `backend`. On the CPU all pointers of `stored` are host memory.
absl::Status AttentionCheck::LaunchStore(const kernels::Backend& backend, const StoreArrays& stored,
                                         const kernels::AnyKvView& keys,
                                         const kernels::AnyKvView& values) {
  if (shape_.is_mla) {
    return kernels::LatentStore(backend, {.rows = &keys,
                                          .heads = stored.rows,
                                          .latents = stored.latents,
                                          .queries = stored.queries,
                                          .cosines = shape_.rotates ? stored.cosines : nullptr,
                                          .sines = shape_.rotates ? stored.sines : nullptr,
                                          .row_offsets = stored.row_offsets,
                                          .token_rows = stored.token_rows,
                                          .positions = stored.positions,
                                          .batch_size = 1,
                                          .num_rows = stored.count,
                                          .num_heads = shape_.num_heads,
                                          .nope_size = shape_.nope_size,
                                          .rope_size = shape_.rotary,
                                          .style = shape_.style});
  }
  return kernels::QkvStore(backend, {.keys = &keys,
                                     .values = &values,
                                     .qkv = stored.rows,
                                     .qkv_stride = shape_.width,
                                     .cosines = stored.cosines,
                                     .sines = stored.sines,
                                     .row_offsets = stored.row_offsets,
                                     .token_rows = stored.token_rows,
                                     .positions = stored.positions,
                                     .batch_size = 1,
                                     .num_rows = stored.count,
                                     .num_heads = shape_.num_heads,
                                     .rotary_size = shape_.rotary,
                                     .rotary_first = shape_.rotary_first,
                                     .style = shape_.style});
}

// The reference is computed by the C library in double precision.
absl::Status AttentionCheck::ComputeAngles(const StoreArrays& stored, bool reports) {
  const std::uint32_t pairs = shape_.rotary / 2;
  const std::int64_t count = std::int64_t{stored.count} * pairs;
  if (pairs == 0 || !shape_.rotates) return absl::OkStatus();
  kernels::KernelCheck check{
      .kernel = "rope angles", .shape = absl::StrCat(stored.count, " x ", pairs), .limit = 1e-6};
  context_->Begin(check.kernel, check.shape);
  std::vector<float> frequencies(pairs);
  for (std::uint32_t i = 0; i < pairs; ++i) {
    frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(pairs));
  }
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr inv_freq, context_->TakeFloats(DType::kF32, pairs));
  QUIRE_RETURN_IF_ERROR(context_->UploadFloats(inv_freq, frequencies));
  std::vector<float> cosines[2], sines[2];
  for (int run = 0; run < 2; ++run) {
    QUIRE_RETURN_IF_ERROR(context_->Poison(stored.cosines, count * 4));
    QUIRE_RETURN_IF_ERROR(context_->Poison(stored.sines, count * 4));
    QUIRE_RETURN_IF_ERROR(kernels::RopeAngles(backend_, {.positions = stored.positions,
                                                         .inv_freq = inv_freq.f32(),
                                                         .cosines = stored.cosines,
                                                         .sines = stored.sines,
                                                         .num_rows = stored.count,
                                                         .num_pairs = pairs}));
    QUIRE_ASSIGN_OR_RETURN(cosines[run], context_->DownloadFloats(stored.cosines, count));
    QUIRE_ASSIGN_OR_RETURN(sines[run], context_->DownloadFloats(stored.sines, count));
  }
  if (!reports) return absl::OkStatus();
  std::vector<float> want_cosines, want_sines;
  for (std::uint32_t row = 0; row < stored.count; ++row) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(row) * frequency;
      want_cosines.push_back(static_cast<float>(std::cos(double{angle})));
      want_sines.push_back(static_cast<float>(std::sin(double{angle})));
    }
  }
  check.error =
      std::max(RelativeError(cosines[0], want_cosines), RelativeError(sines[0], want_sines));
  if (cosines[0] != cosines[1] || sines[0] != sines[1]) check.fault = "two runs differ";
  context_->Add(std::move(check));
  return absl::OkStatus();
}

// Compares the pages and the rotated queries of the first `count` tokens bit for bit.
absl::StatusOr<std::string> AttentionCheck::CompareStore(const StoreArrays& stored,
                                                         std::uint32_t count) {
  const std::uint32_t pages = (count + geometry_.page_size - 1) / geometry_.page_size;
  HostPageSet host(geometry_, pages, /*batch_size=*/1);
  QUIRE_RETURN_IF_ERROR(host.Create());
  for (std::uint32_t i = 0; i < pages; ++i) host.row(0)[i] = 1 + i;
  std::vector<float> rows = RepeatedRows(count, kTokenPatterns, row_width(), 3);
  std::vector<float> latents, queries;
  if (shape_.is_mla) {
    latents = RepeatedRows(count, kTokenPatterns, shape_.head_size, 4);
    queries = RepeatedRows(count, kTokenPatterns, shape_.width, 5);
  }
  const std::int64_t angles = std::int64_t{count} * std::max(shape_.rotary / 2, 1u);
  QUIRE_ASSIGN_OR_RETURN(std::vector<float> cosines,
                         context_->DownloadFloats(stored.cosines, angles));
  QUIRE_ASSIGN_OR_RETURN(std::vector<float> sines, context_->DownloadFloats(stored.sines, angles));
  std::uint32_t offsets[2] = {0, count};
  QUIRE_RETURN_IF_ERROR(LaunchStore(context_->cpu(),
                                    {.count = count,
                                     .row_offsets = offsets,
                                     .cosines = cosines.data(),
                                     .sines = sines.data(),
                                     .rows = rows.data(),
                                     .latents = latents.data(),
                                     .queries = queries.data()},
                                    host.keys(), host.values()));
  QUIRE_ASSIGN_OR_RETURN(std::string fault, ComparePages(host, count));
  if (!fault.empty()) return fault;
  return CompareQueries(shape_.is_mla ? stored.queries : stored.rows,
                        shape_.is_mla ? queries : rows);
}

// Returns a description of the first page of the first `count` tokens that differs from the host's,
// or "" if there is none.
absl::StatusOr<std::string> AttentionCheck::ComparePages(const HostPageSet& host,
                                                         std::uint32_t count) {
  for (std::uint32_t first = 0; first < count; first += geometry_.page_size) {
    const std::uint32_t page = 1 + first / geometry_.page_size;
    const std::int64_t tokens = std::min(geometry_.page_size, count - first);
    const auto device = PiecesOf(*params_.pool, geometry_, page, place_.slot, shape_.is_mla);
    const auto wanted = PiecesOf(host.pool(), host.pool().geometry(), page, 0, shape_.is_mla);
    for (std::size_t i = 0; i < device.size(); ++i) {
      const std::int64_t bytes = device[i].bytes / geometry_.page_size * tokens;
      std::vector<std::byte> got(static_cast<std::size_t>(bytes));
      QUIRE_RETURN_IF_ERROR(context_->Copy(got.data(), device[i].data, bytes));
      if (!got.empty() && std::memcmp(got.data(), wanted[i].data, got.size()) != 0) {
        return absl::StrCat("page ", page, " differs from the page that the CPU stores");
      }
    }
  }
  return "";
}

// Returns a description of the first rotated query that differs from the CPU's, or "".
absl::StatusOr<std::string> AttentionCheck::CompareQueries(ConstFloatPtr device,
                                                           std::span<const float> want) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> got,
                         context_->DownloadFloats(device, static_cast<std::int64_t>(want.size())));
  // For MLA, the store writes only the last columns (those of rope) of every head. Here the other
  // columns keep their pattern. In a model, a matrix product computes them.
  const std::size_t columns = std::size_t{shape_.num_heads} * shape_.head_size;
  const bool is_bf16 = context_->activation() == DType::kBF16;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (i % shape_.width >= columns) continue;
    const float rounded = is_bf16 ? BF16::FromFloat(want[i]).ToFloat() : want[i];
    if (!HasEqualBits({&rounded, 1}, {&got[i], 1})) {
      return absl::StrCat("query row ", i / shape_.width, " differs from that of the CPU");
    }
  }
  return "";
}

absl::Status AttentionCheck::Store() {
  // Fills whole pages, because kernels may multiply keys after the end of a sequence by zero. With
  // poisoned keys the product would be NaN.
  const std::uint32_t tokens = pages_ * geometry_.page_size;
  const Sequence all{.length = tokens, .rows = tokens};
  QUIRE_RETURN_IF_ERROR(UploadTable({&all, 1}));
  // Bytes of one token in PrepareStore. The patterns need memory in addition.
  const std::int64_t width = row_width() + (shape_.is_mla ? shape_.head_size + shape_.width : 0u);
  const std::int64_t per_token = width * activation_bytes() + (shape_.rotary + 4) * 4;
  context_->Free();
  const std::int64_t room = context_->free_bytes() - kTokenPatterns * width * activation_bytes() -
                            shape_.rotary * 2 - 4096;
  const auto count = static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      std::min<std::int64_t>(room / per_token, params_.limits.max_step_tokens), 1, kStoredTokens));
  const std::uint32_t num_compared = std::min(count, 2 * geometry_.page_size + 3);
  kernels::KernelCheck check{.kernel = "KV store",
                             .shape = Describe(absl::StrCat(num_compared, " tokens"))};
  for (const bool is_first_run : {true, false}) {
    QUIRE_RETURN_IF_ERROR(PoisonPages());
    for (std::uint32_t first = 0; first < tokens; first += count) {
      QUIRE_ASSIGN_OR_RETURN(const StoreArrays stored,
                             PrepareStore(first, std::min(count, tokens - first)));
      QUIRE_RETURN_IF_ERROR(ComputeAngles(stored, is_first_run && first == 0));
      context_->Begin(check.kernel, check.shape);
      QUIRE_RETURN_IF_ERROR(LaunchStore(backend_, stored, keys_, values_));
      QUIRE_RETURN_IF_ERROR(context_->Wait());
      if (first > 0 || !check.fault.empty()) continue;
      QUIRE_ASSIGN_OR_RETURN(check.fault,
                             CompareStore(stored, std::min(num_compared, stored.count)));
    }
  }
  context_->Add(std::move(check));
  return absl::OkStatus();
}

absl::StatusOr<AttentionCheck::LaunchArrays> AttentionCheck::Prepare(
    std::span<const Sequence> sequences) {
  context_->Free();
  LaunchArrays arrays;
  std::vector<std::uint32_t> offsets = {0};
  for (const Sequence& sequence : sequences) offsets.push_back(offsets.back() + sequence.rows);
  arrays.num_rows = offsets.back();
  arrays.num_keys = KeysOf(sequences);
  arrays.batch_size = static_cast<std::uint32_t>(sequences.size());
  QUIRE_ASSIGN_OR_RETURN(arrays.row_offsets, context_->Upload(offsets));
  QUIRE_ASSIGN_OR_RETURN(arrays.q, TakeRows(arrays.num_rows, q_stride(), 6));
  QUIRE_ASSIGN_OR_RETURN(
      arrays.out,
      context_->TakeFloats(context_->activation(), std::int64_t{arrays.num_rows} * out_stride()));
  return arrays;
}

absl::Status AttentionCheck::Plan(std::span<const Sequence> sequences, bool is_prompt,
                                  const LaunchArrays& arrays) {
  QUIRE_RETURN_IF_ERROR(UploadTable(sequences));
  std::vector<std::uint32_t> cached, prompt;
  for (const Sequence& sequence : sequences) {
    cached.push_back(sequence.length - sequence.rows);
    prompt.push_back(is_prompt ? sequence.rows : 0);
  }
  const auto bytes = static_cast<std::int64_t>(cached.size() * sizeof(std::uint32_t));
  QUIRE_RETURN_IF_ERROR(context_->Copy(params_.buffers->cache_lengths, cached.data(), bytes));
  QUIRE_RETURN_IF_ERROR(context_->Copy(params_.buffers->prefill_tokens, prompt.data(), bytes));
  std::vector<std::uint32_t> live(1 + sequences.size(), arrays.batch_size);
  std::iota(live.begin() + 1, live.end(), 0u);
  QUIRE_RETURN_IF_ERROR(context_->Copy(params_.buffers->live_rows, live.data(),
                                       static_cast<std::int64_t>(live.size() * sizeof(live[0]))));
  QUIRE_RETURN_IF_ERROR(kernels::PlanAttention(backend_,
                                               {.row_offsets = arrays.row_offsets,
                                                .cache_lengths = params_.buffers->cache_lengths,
                                                .prefill_tokens = params_.buffers->prefill_tokens,
                                                .live_sequences = params_.buffers->live_rows,
                                                .batch_size = arrays.batch_size,
                                                .has_prompt_rows = is_prompt,
                                                .has_generated_rows = !is_prompt},
                                               plan()));
  // Waits here, with a time limit, because the Poison that follows copies pageable memory and may
  // wait for the stream without a limit.
  return context_->Wait();
}

kernels::AttentionParams AttentionCheck::ParamsOf(const LaunchArrays& arrays) const {
  return {.keys = &keys_,
          .values = shape_.is_mla ? &keys_ : &values_,
          .q = arrays.q,
          .out = arrays.out,
          .row_offsets = arrays.row_offsets,
          .q_stride = q_stride(),
          .out_stride = out_stride(),
          .batch_size = arrays.batch_size,
          .num_heads = shape_.num_heads,
          .scale = shape_.scale,
          .layer = place_.slot,
          .window = shape_.window,
          .chunk = shape_.chunk,
          .softcap = shape_.softcap,
          .sinks = shape_.sinks,
          .value_columns = shape_.value_columns};
}

void AttentionCheck::CountWork(const LaunchArrays& arrays) {
  const double columns = shape_.head_size + shape_.columns();  // of K and V
  context_->work().attention_flops += 2 * arrays.num_keys * shape_.num_heads * columns;
  ++context_->work().launches;
}

absl::Status AttentionCheck::Launch(const LaunchArrays& arrays, Kernel kernel) {
  kernels::AttentionParams params = ParamsOf(arrays);
  params.plan = plan();
  params.maps = kernel == Kernel::kServed ? maps() : nullptr;
  CountWork(arrays);
  return kernels::PagedAttention(backend_, params);
}

absl::StatusOr<std::vector<float>> AttentionCheck::Result(const LaunchArrays& arrays,
                                                          Kernel kernel) {
  const std::int64_t count = std::int64_t{arrays.num_rows} * out_stride();
  QUIRE_RETURN_IF_ERROR(context_->Poison(arrays.out.data(), count * activation_bytes()));
  QUIRE_RETURN_IF_ERROR(Launch(arrays, kernel));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> all, context_->DownloadFloats(arrays.out, count));
  return DefinedColumns(all);
}

// Returns `out` without the columns that attention leaves undefined: keeps the first columns() of
// each head.
std::vector<float> AttentionCheck::DefinedColumns(std::span<const float> out) const {
  std::vector<float> defined;
  for (std::size_t i = 0; i < out.size(); i += shape_.head_size) {
    const std::span<const float> head = out.subspan(i, shape_.columns());
    defined.insert(defined.end(), head.begin(), head.end());
  }
  return defined;
}

// Runs the scalar kernel, which serves f32 queries.
absl::StatusOr<std::vector<float>> AttentionCheck::ScalarReference(const LaunchArrays& arrays) {
  const std::int64_t rows = arrays.num_rows;
  const std::int64_t mark = context_->used();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> q,
                         context_->DownloadFloats(arrays.q, rows * q_stride()));
  kernels::AttentionParams params = ParamsOf(arrays);
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr wide, context_->TakeFloats(DType::kF32, rows * q_stride()));
  QUIRE_ASSIGN_OR_RETURN(params.out, context_->TakeFloats(DType::kF32, rows * out_stride()));
  QUIRE_RETURN_IF_ERROR(context_->UploadFloats(wide, q));
  params.q = wide;
  CountWork(arrays);
  QUIRE_RETURN_IF_ERROR(kernels::PagedAttention(backend_, params));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> out,
                         context_->DownloadFloats(params.out, rows * out_stride()));
  context_->Release(mark);
  return DefinedColumns(out);
}

// Copies the pages to the host and attends to them on the CPU.
absl::StatusOr<std::vector<float>> AttentionCheck::CpuReference(std::span<const Sequence> sequences,
                                                                const LaunchArrays& arrays) {
  HostPageSet host(geometry_, pages_, arrays.batch_size);
  QUIRE_RETURN_IF_ERROR(host.Create());
  for (std::uint32_t page = 1; page <= pages_; ++page) {
    const auto device = PiecesOf(*params_.pool, geometry_, page, place_.slot, shape_.is_mla);
    const auto copy = PiecesOf(host.pool(), host.pool().geometry(), page, 0, shape_.is_mla);
    for (std::size_t i = 0; i < device.size(); ++i) {
      QUIRE_RETURN_IF_ERROR(context_->Copy(copy[i].data, device[i].data, device[i].bytes));
    }
  }
  std::vector<std::uint32_t> offsets = {0};
  for (std::uint32_t b = 0; b < arrays.batch_size; ++b) {
    const Sequence& sequence = sequences[b];
    offsets.push_back(offsets.back() + sequence.rows);
    host.length(b) = sequence.length - sequence.rows;
    for (std::uint32_t i = 0; i * geometry_.page_size < sequence.length; ++i) {
      host.row(b)[i] = 1 + (i + sequence.shift) % pages_;
    }
  }
  const std::int64_t rows = arrays.num_rows;
  QUIRE_ASSIGN_OR_RETURN(std::vector<float> q,
                         context_->DownloadFloats(arrays.q, rows * q_stride()));
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<float> sinks,
      context_->DownloadFloats(shape_.sinks, shape_.sinks == nullptr ? 0 : shape_.num_heads));
  std::vector<float> out(static_cast<std::size_t>(rows * out_stride()));
  const kernels::AnyKvView keys = host.keys();
  const kernels::AnyKvView values = host.values();
  kernels::AttentionParams params = ParamsOf(arrays);
  params.keys = &keys;
  params.values = shape_.is_mla ? &keys : &values;
  params.q = FloatPtr(q.data());
  params.out = FloatPtr(out.data());
  params.row_offsets = offsets.data();
  params.sinks = sinks.empty() ? nullptr : sinks.data();
  QUIRE_RETURN_IF_ERROR(kernels::PagedAttention(context_->cpu(), params));
  return DefinedColumns(out);
}

// Computes the shortest, a middle and the longest sequence alone. Returns a description of the
// first result that differs from the result of the batch, or "".
absl::StatusOr<std::string> AttentionCheck::CompareWithSingleSequences(
    std::span<const Sequence> sequences, bool is_prompt, const LaunchArrays& arrays,
    std::span<const float> batch) {
  const std::size_t row = std::size_t{shape_.num_heads} * shape_.columns();
  std::string difference;
  std::uint32_t begin = 0;
  for (std::size_t b = 0; b < sequences.size(); begin += sequences[b].rows, ++b) {
    if (b != 0 && b != sequences.size() / 2 && b + 1 != sequences.size()) continue;
    const std::span<const Sequence> one = sequences.subspan(b, 1);
    LaunchArrays alone = arrays;
    alone.q = arrays.q + std::int64_t{begin} * q_stride();
    alone.num_rows = one[0].rows;
    alone.num_keys = KeysOf(one);
    alone.batch_size = 1;
    const std::int64_t mark = context_->used();
    QUIRE_ASSIGN_OR_RETURN(alone.row_offsets,
                           context_->Upload(std::vector<std::uint32_t>{0, alone.num_rows}));
    QUIRE_RETURN_IF_ERROR(Plan(one, is_prompt, alone));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<float> result, Result(alone, Kernel::kServed));
    context_->Release(mark);
    if (difference.empty() && !HasEqualBits(result, batch.subspan(begin * row, result.size()))) {
      difference = absl::StrCat("the sequence of ", one[0].length,
                                " tokens differs from the same sequence computed alone");
    }
  }
  return difference;
}

absl::Status AttentionCheck::CompareBatch(std::span<const Sequence> sequences, bool is_prompt) {
  const bool is_quantized = geometry_.quantized();
  kernels::KernelCheck check{
      .kernel = is_prompt ? "attention prefill" : "attention decode",
      .shape = Describe(absl::StrCat(sequences.size(), " sequences of ", sequences.front().length,
                                     " to ", sequences.back().length, " tokens")),
      .limit = context_->activation() == DType::kF32 ? 1e-4
               : is_quantized                        ? 1.5e-2
                                                     : 1e-2};
  context_->Begin(check.kernel, check.shape);
  QUIRE_ASSIGN_OR_RETURN(const LaunchArrays arrays, Prepare(sequences));
  QUIRE_RETURN_IF_ERROR(Plan(sequences, is_prompt, arrays));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> first, Result(arrays, Kernel::kServed));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> second, Result(arrays, Kernel::kServed));
  // The scalar kernel is the reference. With f32 activations it is itself the kernel under test, so
  // the CPU computes the reference.
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> reference, context_->activation() == DType::kF32
                                                                 ? CpuReference(sequences, arrays)
                                                                 : ScalarReference(arrays));
  const std::size_t row = std::size_t{shape_.num_heads} * shape_.columns();
  for (std::uint32_t i = 0; i < arrays.num_rows; ++i) {
    const double error = RelativeError(std::span(first).subspan(i * row, row),
                                       std::span(reference).subspan(i * row, row));
    if (!(error <= check.error)) check.error = error;
    if (std::isnan(error)) break;
  }
  if (!HasEqualBits(first, second)) check.fault = "two runs differ";
  const bool must_equal_portable = !is_prompt && !shape_.is_mla && !is_quantized;
  if (maps() != nullptr && context_->cuda().has_sm90a() && must_equal_portable) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<float> portable, Result(arrays, Kernel::kPortable));
    if (!HasEqualBits(first, portable) && check.fault.empty()) {
      check.fault = "the result differs from that of the portable kernel";
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string difference,
                         CompareWithSingleSequences(sequences, is_prompt, arrays, first));
  if (check.fault.empty()) check.fault = difference;
  // If the error is above the limit, SelfCheckContext::Add describes that, which is more useful.
  if (!(check.error <= check.limit)) check.fault.clear();
  context_->Add(std::move(check));
  return absl::OkStatus();
}

absl::Status AttentionCheck::Compare(bool is_prompt) {
  const models::StepLimits& limits = params_.limits;
  context_->Free();
  // Bytes of one row, in the launch and in the f32 reference.
  const std::int64_t per_row = (q_stride() + out_stride()) * (activation_bytes() + 4);
  const std::int64_t fit = (context_->free_bytes() - 8192) / per_row - kTokenPatterns;
  const auto max_rows =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(fit, 1, limits.max_step_tokens));
  std::vector<Sequence> sequences;
  for (const std::uint32_t length : kCheckedLengths) {
    if (length > tokens_) continue;
    sequences.push_back(
        {.length = length, .shift = static_cast<std::uint32_t>(sequences.size()) * 3});
  }
  if (sequences.empty()) sequences.push_back({.length = tokens_});
  const std::size_t at_once = std::min<std::size_t>({sequences.size(), limits.max_rows, max_rows});
  for (Sequence& sequence : sequences) {
    const auto share = static_cast<std::uint32_t>(max_rows / at_once);
    sequence.rows = is_prompt ? std::min({kPromptRows, share, sequence.length}) : 1;
  }
  for (std::size_t first = 0; first < sequences.size(); first += at_once) {
    const std::size_t count = std::min(at_once, sequences.size() - first);
    QUIRE_RETURN_IF_ERROR(CompareBatch(std::span(sequences).subspan(first, count), is_prompt));
  }
  return absl::OkStatus();
}

absl::Status AttentionCheck::Run() {
  const std::uint32_t longest = std::end(kCheckedLengths)[-1];
  const std::uint32_t table_pages =
      params_.limits.lookup_stride - cache::LookupTable::kPaddingColumns;
  pages_ = std::min({(longest + geometry_.page_size - 1) / geometry_.page_size,
                     geometry_.num_blocks - 1, table_pages});
  tokens_ = std::min(pages_ * geometry_.page_size, plan()->limits().max_length);
  pages_ = (tokens_ + geometry_.page_size - 1) / geometry_.page_size;
  QUIRE_RETURN_IF_ERROR(Store());
  QUIRE_RETURN_IF_ERROR(Compare(/*is_prompt=*/true));
  QUIRE_RETURN_IF_ERROR(Compare(/*is_prompt=*/false));
  std::vector<std::uint32_t> pages(pages_);
  std::iota(pages.begin(), pages.end(), 1u);
  return kernels::ZeroPages(backend_, params_.kv[place_.group], pages);
}

}  // namespace

absl::Status CheckAttention(SelfCheckContext* context) {
  const SelfCheckParams& params = context->params();
  std::set<std::string> seen;
  for (std::size_t i = 0; i < params.spec->layers.size(); ++i) {
    const models::LayerSpec& layer = params.spec->layers[i];
    if (!layer.has_kv()) continue;
    AttentionCheck check(context, layer, params.weights->layers()[i], params.layers->places[i]);
    if (seen.insert(check.Key()).second) QUIRE_RETURN_IF_ERROR(check.Run());
  }
  return absl::OkStatus();
}

}  // namespace quire::runtime
