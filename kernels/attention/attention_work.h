#pragma once

// The work lists of attention on a GPU, which the planner writes and the kernels read. Rows are
// split only at fixed boundaries (README.md, "The planner").
//
// The rows of a sequence are numbered per KV head as packed rows. There are `group` query heads per
// KV head. Packed row p of a class (prefill or decode) is row p / group of that class, for query
// head kv_head * group + p % group. All packed rows of a block therefore share a KV head, for any
// group size.

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_plan.h"

namespace quire::kernels {

constexpr std::uint32_t CeilDiv(std::uint32_t a, std::uint32_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

inline constexpr std::uint32_t kKvTile = 64;        // keys, at multiples of 64
inline constexpr std::uint32_t kTilesPerSpan = 8;   // 512 keys
inline constexpr std::uint32_t kSpansPerGroup = 4;  // 2048 keys
inline constexpr std::uint32_t kKvSpan = kKvTile * kTilesPerSpan;
inline constexpr std::uint32_t kKvGroup = kKvSpan * kSpansPerGroup;

// Number of packed rows of a decode item. They are the columns of its MMA.
inline constexpr std::uint32_t kDecodeRows = 8;
inline constexpr std::uint32_t kPrefillRows = 128;        // packed rows of a prefill item
inline constexpr std::uint32_t kMaxPlanSequences = 4096;  // sequences of a step

// Returns the maximum number of partial results of a step. Each item of a split row writes one, so
// this also limits the number of such items. A step with more items has enough parallelism without
// splitting.
constexpr std::uint32_t MaxPartials(std::uint32_t num_sms) {
  return 32 * num_sms;
}

// A work item of the prefill or the decode list. Prefill items cover all keys that their rows see.
struct AttentionWork {
  static constexpr std::uint32_t kNoPartial = 0xffffffffu;

  std::uint32_t sequence;
  std::uint32_t kv_head;
  std::uint32_t base_row;   // row of the step that contains packed rows 0 .. group - 1 of the class
  std::uint32_t first_row;  // index of the first packed row
  std::uint32_t num_rows;   // packed rows
  // Decode: keys [first_span * 512, (first_span + num_spans) * 512), up to the end of the sequence.
  std::uint32_t first_span;
  std::uint32_t num_spans;
  // Decode: index of the partial result that the item writes. If kNoPartial, the item covers all
  // keys of its rows and writes the output.
  std::uint32_t partial;
  std::uint32_t merge;  // index of the merge that the partial result belongs to; 0 if there is none
  friend bool operator==(const AttentionWork&, const AttentionWork&) = default;
};

// A merge of the partial results of all decode items that share packed rows. The results have
// `num_partials` consecutive indices from `first_partial` on, in key order. Each result covers
// `spans_per_partial` spans (1 or kSpansPerGroup). The first result starts at span `first_span`.
// The thread block that writes the last result merges all results.
struct AttentionMerge {
  std::uint32_t first_partial;
  std::uint32_t num_partials;
  std::uint32_t spans_per_partial;
  std::uint32_t first_span;
  std::uint32_t arrived;  // number of partial results written; 0 between launches
  friend bool operator==(const AttentionMerge&, const AttentionMerge&) = default;
};

// Lengths of the three lists, and the number of partial results.
struct AttentionWorkCounts {
  std::uint32_t prefill;
  std::uint32_t decode;
  std::uint32_t merge;
  std::uint32_t partials;
  friend bool operator==(const AttentionWorkCounts&, const AttentionWorkCounts&) = default;
};

// The part of a row that one decode item covers.
enum class AttentionSplit : std::uint32_t { kSpan, kGroup, kWholeRow };

// Splits rows into spans if there are few items, into groups if the partial results fit, and
// otherwise not at all. `groups` is the number of items if every item covered one group.
QUIRE_HOST_DEVICE constexpr AttentionSplit ChooseSplit(std::uint32_t groups,
                                                       std::uint32_t num_sms) {
  if (groups < 2 * num_sms) return AttentionSplit::kSpan;
  return groups <= MaxPartials(num_sms) ? AttentionSplit::kGroup : AttentionSplit::kWholeRow;
}

// Shapes that determine a plan together with the lengths of the step.
struct AttentionWorkShape {
  std::uint32_t num_kv_heads;
  std::uint32_t group;  // query heads per KV head
  std::uint32_t num_sms;
  std::uint32_t window = 0;  // AttentionPlanLimits::window
};

// Returns the first key that any decode token of a sequence sees. The sequence has `keys` keys, the
// last `decode_tokens` of which belong to its decode rows.
QUIRE_HOST_DEVICE constexpr std::uint32_t FirstKey(std::uint32_t keys, std::uint32_t decode_tokens,
                                                   std::uint32_t window) {
  return window == 0 ? 0 : WindowBegin(keys - decode_tokens, window);
}

// Pointers into the memory of a plan. Partial result i is at partials + i * partial_floats: values
// [partial_columns][kDecodeRows], then maxima [kDecodeRows], then sums [kDecodeRows].
struct AttentionWorkLists {
  AttentionWorkCounts* counts;
  AttentionWork* prefill;
  AttentionWork* decode;
  AttentionMerge* merge;
  float* partials;
  std::uint32_t partial_columns;  // head size rounded up to a multiple of 16
  std::uint32_t partial_floats;
};

struct AttentionPlanAccess {
  static AttentionWorkLists Lists(const AttentionPlan& plan);
  static AttentionWorkShape Shape(const AttentionPlan& plan);
};

namespace internal {

// Maximum number of entries of each list.
AttentionWorkCounts WorkBounds(const AttentionPlanLimits& limits, std::uint32_t num_sms);

// Makes the lists in host memory from lengths in host memory. This function defines the lists.
// Tests compare the device planner with it. REQUIRES: the lists have WorkBounds entries.
void PlanWorkHost(const AttentionPlanParams& params, const AttentionWorkShape& shape,
                  const AttentionWorkLists& lists);

// Enqueues the device planner, which makes the same lists.
absl::Status PlanWorkCuda(const CudaContext& context, const AttentionPlanParams& params,
                          const AttentionWorkShape& shape, const AttentionWorkLists& lists);

}  // namespace internal
}  // namespace quire::kernels
