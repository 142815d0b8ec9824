#include "kernels/attention/attention_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/attention/attention_work.h"

namespace quire::kernels {
namespace {

constexpr std::int64_t kPartAlignment = 256;

std::uint32_t PartialColumns(std::uint32_t head_size) {
  return CeilDiv(head_size, 16) * 16;
}
std::uint32_t PartialFloats(std::uint32_t head_size) {
  return kDecodeRows * (PartialColumns(head_size) + 2);
}

// Byte offsets of the lists and the partial results in a plan's memory.
struct Layout {
  std::int64_t prefill = 0;
  std::int64_t decode = 0;
  std::int64_t merge = 0;
  std::int64_t partials = 0;
  std::int64_t bytes = 0;
};

Layout LayoutOf(const AttentionPlanLimits& limits, std::uint32_t num_sms) {
  const AttentionWorkCounts bounds = internal::WorkBounds(limits, num_sms);
  Layout layout;
  const auto append = [&layout](std::uint64_t count, std::uint64_t size) {
    const std::int64_t at = layout.bytes;
    layout.bytes += (static_cast<std::int64_t>(count * size) + kPartAlignment - 1) /
                    kPartAlignment * kPartAlignment;
    return at;
  };
  append(1, sizeof(AttentionWorkCounts));
  layout.prefill = append(bounds.prefill, sizeof(AttentionWork));
  layout.decode = append(bounds.decode, sizeof(AttentionWork));
  layout.merge = append(bounds.merge, sizeof(AttentionMerge));
  layout.partials =
      append(bounds.partials, std::uint64_t{PartialFloats(limits.head_size)} * sizeof(float));
  return layout;
}

absl::Status CheckLimits(const AttentionPlanLimits& limits) {
  const struct {
    const char* name;
    std::uint32_t value;
  } fields[] = {
      {"max_sequences", limits.max_sequences}, {"max_step_tokens", limits.max_step_tokens},
      {"max_length", limits.max_length},       {"num_heads", limits.num_heads},
      {"num_kv_heads", limits.num_kv_heads},   {"head_size", limits.head_size}};
  for (const auto& field : fields) {
    if (field.value == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("attention plan: ", field.name, " is 0, it must be at least 1"));
    }
  }
  if (limits.num_heads % limits.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention plan: ", limits.num_heads,
                                                   " query heads, they must be a multiple of ",
                                                   limits.num_kv_heads, " kv heads"));
  }
  if (limits.max_sequences > kMaxPlanSequences) {
    return absl::InvalidArgumentError(absl::StrCat("attention plan: max_sequences is ",
                                                   limits.max_sequences, ", the limit is ",
                                                   kMaxPlanSequences));
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

AttentionWorkCounts WorkBounds(const AttentionPlanLimits& limits, std::uint32_t num_sms) {
  const std::uint32_t group = limits.num_heads / limits.num_kv_heads;
  const std::uint32_t packed = limits.max_step_tokens * group;
  AttentionWorkCounts bounds{};
  bounds.partials = MaxPartials(num_sms);
  // A split row has at least two partial results.
  bounds.merge = bounds.partials / 2;
  bounds.prefill = (CeilDiv(packed, kPrefillRows) + limits.max_sequences) * limits.num_kv_heads;
  bounds.decode = std::max(
      bounds.partials, (CeilDiv(packed, kDecodeRows) + limits.max_sequences) * limits.num_kv_heads);
  return bounds;
}

namespace {

// The rows of one sequence, divided into prefill and decode rows.
struct Sequence {
  std::uint32_t index;
  std::uint32_t first_row;
  std::uint32_t prefill_tokens;
  std::uint32_t decode_tokens;
  std::uint32_t keys;  // keys of the last row

  std::uint32_t DecodeBlocks(std::uint32_t group) const {
    return CeilDiv(decode_tokens * group, kDecodeRows);
  }
  // A run is `per_run` consecutive keys, which are whole spans. FirstRun returns the first run that
  // decode tokens see, Runs the number of runs from there on.
  std::uint32_t FirstRun(std::uint32_t window, std::uint32_t per_run) const {
    return FirstKey(keys, decode_tokens, window) / per_run;
  }
  std::uint32_t Runs(std::uint32_t window, std::uint32_t per_run) const {
    return CeilDiv(keys, per_run) - FirstRun(window, per_run);
  }
};

std::vector<Sequence> LongestFirst(const AttentionPlanParams& params) {
  std::vector<Sequence> sequences;
  for (std::uint32_t i = 0; i < params.live_sequences[0]; ++i) {
    const std::uint32_t b = params.live_sequences[1 + i];
    const std::uint32_t rows = params.row_offsets[b + 1] - params.row_offsets[b];
    const std::uint32_t prompt = std::min(params.prefill_tokens[b], rows);
    sequences.push_back(
        {b, params.row_offsets[b], prompt, rows - prompt, params.cache_lengths[b] + rows});
  }
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Sequence& a, const Sequence& b) { return a.keys > b.keys; });
  return sequences;
}

// Plans the decode items of one sequence.
void PlanDecode(const Sequence& s, const AttentionWorkShape& shape, std::uint32_t spans_per_item,
                const AttentionWorkLists& lists) {
  const std::uint32_t spans = CeilDiv(s.keys, kKvSpan);
  const std::uint32_t first_run = s.FirstRun(shape.window, spans_per_item * kKvSpan);
  const std::uint32_t runs = s.Runs(shape.window, spans_per_item * kKvSpan);
  const std::uint32_t packed = s.decode_tokens * shape.group;
  const std::uint32_t blocks = s.DecodeBlocks(shape.group);
  AttentionWorkCounts& counts = *lists.counts;
  const std::uint32_t first_partial = counts.partials;
  const std::uint32_t first_merge = counts.merge;
  for (std::uint32_t run = 0; run < runs; ++run) {
    for (std::uint32_t block = 0; block < blocks; ++block) {
      for (std::uint32_t head = 0; head < shape.num_kv_heads; ++head) {
        AttentionWork item{};
        item.sequence = s.index;
        item.kv_head = head;
        item.base_row = s.first_row + s.prefill_tokens;
        item.first_row = block * kDecodeRows;
        item.num_rows = std::min(kDecodeRows, packed - item.first_row);
        item.first_span = (first_run + run) * spans_per_item;
        item.num_spans = std::min(spans_per_item, spans - item.first_span);
        item.partial = AttentionWork::kNoPartial;
        if (runs > 1) {
          const std::uint32_t first = first_partial + (block * shape.num_kv_heads + head) * runs;
          item.partial = first + run;
          item.merge = first_merge + block * shape.num_kv_heads + head;
          ++counts.partials;
          if (run == 0) {
            lists.merge[counts.merge++] = {first, runs, spans_per_item, item.first_span,
                                           /*arrived=*/0};
          }
        }
        lists.decode[counts.decode++] = item;
      }
    }
  }
}

// Plans the prefill items of one sequence, last rows first, because the last rows see the most
// keys.
void PlanPrefill(const Sequence& s, const AttentionWorkShape& shape,
                 const AttentionWorkLists& lists) {
  const std::uint32_t packed = s.prefill_tokens * shape.group;
  for (std::uint32_t block = CeilDiv(packed, kPrefillRows); block-- > 0;) {
    for (std::uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      AttentionWork item{};
      item.sequence = s.index;
      item.kv_head = head;
      item.base_row = s.first_row;
      item.first_row = block * kPrefillRows;
      item.num_rows = std::min(kPrefillRows, packed - item.first_row);
      item.partial = AttentionWork::kNoPartial;
      lists.prefill[lists.counts->prefill++] = item;
    }
  }
}

}  // namespace

void PlanWorkHost(const AttentionPlanParams& params, const AttentionWorkShape& shape,
                  const AttentionWorkLists& lists) {
  const std::vector<Sequence> sequences = LongestFirst(params);
  std::uint64_t groups = 0;
  for (const Sequence& s : sequences) {
    groups += std::uint64_t{s.DecodeBlocks(shape.group)} * shape.num_kv_heads *
              s.Runs(shape.window, kKvGroup);
  }
  const std::uint64_t limit = std::uint64_t{MaxPartials(shape.num_sms)} + 1;
  const AttentionSplit split =
      ChooseSplit(static_cast<std::uint32_t>(std::min(groups, limit)), shape.num_sms);
  *lists.counts = {};
  for (const Sequence& s : sequences) {
    const std::uint32_t spans_per_item = split == AttentionSplit::kSpan ? 1
                                         : split == AttentionSplit::kGroup
                                             ? kSpansPerGroup
                                             : CeilDiv(s.keys, kKvSpan);
    PlanPrefill(s, shape, lists);
    if (s.decode_tokens > 0) PlanDecode(s, shape, spans_per_item, lists);
  }
}

}  // namespace internal

std::int64_t AttentionPlan::BytesFor(const AttentionPlanLimits& limits, std::uint32_t num_sms) {
  QUIRE_CHECK(CheckLimits(limits).ok());
  return LayoutOf(limits, num_sms).bytes;
}

absl::StatusOr<std::unique_ptr<AttentionPlan>> AttentionPlan::Create(
    const Backend& backend, const AttentionPlanLimits& limits) {
  QUIRE_CHECK(backend.cuda() != nullptr);
  QUIRE_RETURN_IF_ERROR(CheckLimits(limits));
  std::unique_ptr<AttentionPlan> plan(new AttentionPlan());
  plan->limits_ = limits;
  plan->num_sms_ = backend.cuda()->num_sms;
  QUIRE_ASSIGN_OR_RETURN(
      plan->memory_,
      DeviceBuffer::Allocate(MemoryKind::kDevice, LayoutOf(limits, plan->num_sms_).bytes));
  return plan;
}

AttentionWorkLists AttentionPlanAccess::Lists(const AttentionPlan& plan) {
  const Layout layout = LayoutOf(plan.limits_, plan.num_sms_);
  auto* const memory = static_cast<std::byte*>(plan.memory_.data());
  AttentionWorkLists lists{};
  lists.counts = reinterpret_cast<AttentionWorkCounts*>(memory);
  lists.prefill = reinterpret_cast<AttentionWork*>(memory + layout.prefill);
  lists.decode = reinterpret_cast<AttentionWork*>(memory + layout.decode);
  lists.merge = reinterpret_cast<AttentionMerge*>(memory + layout.merge);
  lists.partials = reinterpret_cast<float*>(memory + layout.partials);
  lists.partial_columns = PartialColumns(plan.limits_.head_size);
  lists.partial_floats = PartialFloats(plan.limits_.head_size);
  return lists;
}

AttentionWorkShape AttentionPlanAccess::Shape(const AttentionPlan& plan) {
  return {plan.limits_.num_kv_heads, plan.limits_.num_heads / plan.limits_.num_kv_heads,
          plan.num_sms_, plan.limits_.window};
}

absl::Status PlanAttention(const Backend& backend, const AttentionPlanParams& params,
                           AttentionPlan* plan) {
  if (backend.cuda() == nullptr) {
    return absl::InvalidArgumentError(
        "attention plan requires a GPU: the CPU plans inside PagedAttention");
  }
  if (params.batch_size == 0 || params.batch_size > plan->limits_.max_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("attention plan: batch_size is ",
                                                   params.batch_size, ", it must be 1 to ",
                                                   plan->limits_.max_sequences));
  }
  plan->params_ = params;
  if constexpr (kHasCuda) {
    return internal::PlanWorkCuda(*backend.cuda(), params, AttentionPlanAccess::Shape(*plan),
                                  AttentionPlanAccess::Lists(*plan));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
