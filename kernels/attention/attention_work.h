#pragma once

// The work lists of attention on a GPU: what the planner writes and the kernels read, and the fixed
// tree along which rows may be cut (README.md, "The planner").
//
// A sequence's rows are numbered per KV head as packed rows: packed row p of a class is row p /
// group of that class and query head kv_head * group + p % group, with group query heads to a KV
// head. So a block of packed rows shares its KV head whatever the group is.

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_plan.h"

namespace quire::kernels {

inline constexpr std::uint32_t kKvTile = 64;        // keys, at multiples of 64
inline constexpr std::uint32_t kTilesPerSpan = 8;   // 512 keys
inline constexpr std::uint32_t kSpansPerGroup = 4;  // 2048 keys
inline constexpr std::uint32_t kKvSpan = kKvTile * kTilesPerSpan;
inline constexpr std::uint32_t kKvGroup = kKvSpan * kSpansPerGroup;

inline constexpr std::uint32_t kDecodeRows = 8;  // packed rows of a decode item: columns of its MMA
inline constexpr std::uint32_t kPrefillRows = 128;   // packed rows of a prefill item
inline constexpr std::uint32_t kMaxPlanRows = 4096;  // sequences of a step

// Most partial results, and with it most items of a step whose rows are cut: beyond, there is
// enough work without.
constexpr std::uint32_t MaxPartials(std::uint32_t num_sms) {
  return 32 * num_sms;
}

// One item of either list. Prefill items go over all keys that their rows see.
struct AttentionWork {
  static constexpr std::uint32_t kNoPartial = 0xffffffffu;

  std::uint32_t sequence;
  std::uint32_t kv_head;
  std::uint32_t base_row;   // row of the step that holds packed rows 0 .. group - 1 of the class
  std::uint32_t first_row;  // packed
  std::uint32_t num_rows;   // packed
  // Decode: keys [first_span * 512, (first_span + num_spans) * 512), those that exist.
  std::uint32_t first_span;
  std::uint32_t num_spans;
  // Decode: where the state goes; kNoPartial: the item has all keys that its rows see and writes
  // the output.
  std::uint32_t partial;
  std::uint32_t merge;  // which of the merges the partial result is part of; 0 without one
  friend bool operator==(const AttentionWork&, const AttentionWork&) = default;
};

// The partial results of the decode items that share packed rows, `num_partials` from
// `first_partial` on, in the order of their keys, each of `spans_per_partial` spans (1, or 4: a
// group), the first one from span `first_span` on. The block that writes the last of them merges.
struct AttentionMerge {
  std::uint32_t first_partial;
  std::uint32_t num_partials;
  std::uint32_t spans_per_partial;
  std::uint32_t first_span;
  std::uint32_t arrived;  // partial results that are written; 0 between launches
  friend bool operator==(const AttentionMerge&, const AttentionMerge&) = default;
};

// Lengths of the three lists.
struct AttentionWorkCounts {
  std::uint32_t prefill;
  std::uint32_t decode;
  std::uint32_t merge;
  std::uint32_t partials;
  friend bool operator==(const AttentionWorkCounts&, const AttentionWorkCounts&) = default;
};

// How much of a row one decode item takes.
enum class AttentionCut : std::uint32_t { kSpan, kGroup, kWholeRow };

// Few items to share out: single spans. So many groups that their partials would not fit: whole
// rows. `groups` is the number of items that groups would make.
QUIRE_HOST_DEVICE constexpr AttentionCut ChooseCut(std::uint32_t groups, std::uint32_t num_sms) {
  if (groups < 2 * num_sms) return AttentionCut::kSpan;
  return groups <= MaxPartials(num_sms) ? AttentionCut::kGroup : AttentionCut::kWholeRow;
}

// The part of a plan that depends on shapes alone.
struct AttentionWorkShape {
  std::uint32_t num_kv_heads;
  std::uint32_t group;  // query heads of a KV head
  std::uint32_t num_sms;
  std::uint32_t window = 0;  // AttentionPlanLimits::window
};

// The first key that a decode token of a sequence sees, which has `keys` keys, those of its
// `decode_tokens` rows the last.
QUIRE_HOST_DEVICE constexpr std::uint32_t FirstKey(std::uint32_t keys, std::uint32_t decode_tokens,
                                                   std::uint32_t window) {
  return window == 0 ? 0 : WindowBegin(keys - decode_tokens, window);
}

// Pointers into the memory of a plan. Partial i lies at partials + i * partial_floats: values
// [partial_columns][kDecodeRows], then maxima [kDecodeRows], then sums [kDecodeRows].
struct AttentionWorkLists {
  AttentionWorkCounts* counts;
  AttentionWork* prefill;
  AttentionWork* decode;
  AttentionMerge* merge;
  float* partials;
  std::uint32_t partial_columns;  // of a head, rounded up to 16
  std::uint32_t partial_floats;
};

struct AttentionPlanAccess {
  static AttentionWorkLists Lists(const AttentionPlan& plan);
  static AttentionWorkShape Shape(const AttentionPlan& plan);
};

namespace internal {

// Most entries of each list.
AttentionWorkCounts WorkBounds(const AttentionPlanLimits& limits, std::uint32_t num_sms);

// The lists in host memory from lengths in host memory: the definition that the device's form is
// tested against.
// REQUIRES: the lists have WorkBounds entries.
void PlanWorkHost(const AttentionPlanParams& params, const AttentionWorkShape& shape,
                  const AttentionWorkLists& lists);

// Enqueues the device's form.
absl::Status PlanWorkCuda(const CudaContext& context, const AttentionPlanParams& params,
                          const AttentionWorkShape& shape, const AttentionWorkLists& lists);

}  // namespace internal
}  // namespace quire::kernels
