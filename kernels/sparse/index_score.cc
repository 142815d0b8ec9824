#include "kernels/sparse/index_score.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/attention/attention.h"

namespace quire::kernels {
namespace {

const std::uint32_t* CacheLengths(const AnyKvView& keys) {
  return std::visit([](const auto& view) { return view.cache_lengths; }, keys);
}

// Calls fn(item) for all items of the step.
template <typename Fn>
void ForEachItem(const IndexScoreParams& params, Fn&& fn) {
  const std::uint32_t* const lengths = CacheLengths(*params.keys);
  for (std::uint32_t b = 0; b < params.batch_size; ++b) {
    const std::uint32_t first = params.row_offsets[b];
    const std::uint32_t end = std::min(params.row_offsets[b + 1], params.row_end);
    for (std::uint32_t m = std::max(first, params.row_begin); m < end;
         m += internal::kIndexBlockRows) {
      const std::uint32_t count = std::min(internal::kIndexBlockRows, end - m);
      const std::uint32_t num_keys = lengths[b] + (m - first) + count;
      for (std::uint32_t key = 0; key < num_keys; key += internal::kIndexSpan) {
        fn(internal::IndexItem{b, m, count, key});
      }
    }
  }
}

absl::Status CheckPages(const KvShape& shape) {
  if (shape.num_heads == 1 && (shape.dtype == DType::kF32 || shape.dtype == DType::kBF16)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("index rows are ", DTypeName(shape.dtype), " of ",
                                                 shape.num_heads,
                                                 " heads, they must be f32 or bf16 of 1 head"));
}

// Checks the arguments that only the CPU can read.
absl::Status CheckStep(const IndexScoreParams& params) {
  QUIRE_RETURN_IF_ERROR(
      CheckKvStep(*params.keys, *params.keys, params.row_offsets, params.batch_size));
  if (params.row_begin > params.row_end || params.row_end > params.row_offsets[params.batch_size]) {
    return absl::InvalidArgumentError(
        absl::StrCat("row_begin is ", params.row_begin, " and row_end is ", params.row_end,
                     ", row_begin must be at most row_end, and row_end at most ",
                     params.row_offsets[params.batch_size], ", the rows of the step"));
  }
  const std::uint32_t* const lengths = CacheLengths(*params.keys);
  std::uint32_t longest = 0;
  for (std::uint32_t b = 0; b < params.batch_size; ++b) {
    const std::uint32_t rows = params.row_offsets[b + 1] - params.row_offsets[b];
    if (rows > 0) longest = std::max(longest, lengths[b] + rows);
  }
  if (params.score_stride >= ScoreStride(longest)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("score_stride is ", params.score_stride,
                                                 ", a sequence of ", longest,
                                                 " tokens needs at least ", ScoreStride(longest)));
}

}  // namespace

absl::Status IndexScore(const Backend& backend, const IndexScoreParams& params) {
  QUIRE_RETURN_IF_ERROR(CheckPages(KvShapeOf(*params.keys)));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::IndexScoreCuda(*backend.cuda(), params);
  }
  QUIRE_RETURN_IF_ERROR(CheckStep(params));
  std::int64_t num_items = 0;
  ForEachItem(params, [&](const internal::IndexItem&) { ++num_items; });
  auto* const items = reinterpret_cast<internal::IndexItem*>(backend.op_workspace().Reserve(
      static_cast<std::size_t>(num_items) * sizeof(internal::IndexItem)));
  auto* next = items;
  ForEachItem(params, [&](const internal::IndexItem& item) { *next++ = item; });

  const std::uint32_t size = KvShapeOf(*params.keys).head_size;
  const auto scratch = static_cast<std::size_t>(IndexScoreThreadBytes(params.num_heads, size));
  backend.ReserveWorkspaces(scratch);
  const double nanoseconds = 0.03 * internal::kIndexSpan * params.num_heads * size;
  backend.ParallelItems(num_items, nanoseconds, [&](std::int64_t i, int part) {
    internal::IndexScoreSimd(params, items[i], backend.workspace(part).Reserve(scratch));
  });
  return absl::OkStatus();
}

std::int64_t IndexScoreThreadBytes(std::uint32_t num_heads, std::uint32_t size) {
  const std::int64_t columns = internal::PaddedColumns(size);
  // The arrays of IndexScratch: transposed and staging, then products and scores, then queries.
  return (std::int64_t{internal::kAttentionTile + internal::kAttentionStrip} * columns +
          std::int64_t{internal::kAttentionBlockRows + 1} * internal::kAttentionTile +
          internal::kIndexBlockRows * num_heads * columns) *
         std::int64_t{sizeof(float)};
}

}  // namespace quire::kernels
