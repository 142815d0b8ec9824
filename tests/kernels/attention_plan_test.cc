// Tests of the attention work lists: their invariants, and the lists built on the device against
// the host's. Compares the reduction of states with one pass, and masks with their definitions.

#include "kernels/attention/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_state.h"
#include "kernels/attention/attention_work.h"
#include "tests/kernels/attention_cuda_fixture.h"

namespace quire::kernels {
namespace {

// Returns seeded random numbers below a bound.
class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t operator()(std::uint32_t bound) {
    return static_cast<std::uint32_t>(engine_()) % bound;
  }

 private:
  std::mt19937 engine_;
};

struct Batch {
  std::vector<std::uint32_t> cached;
  std::vector<std::uint32_t> prompt;
  std::vector<std::uint32_t> generated;
  std::vector<std::uint32_t> offsets{0};

  void Add(std::uint32_t c, std::uint32_t p, std::uint32_t g) {
    cached.push_back(c);
    prompt.push_back(p);
    generated.push_back(g);
    offsets.push_back(offsets.back() + p + g);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(cached.size()); }
  // AttentionPlanParams::live_sequences
  std::vector<std::uint32_t> LiveSequences() const {
    std::vector<std::uint32_t> live = {0};
    for (std::uint32_t b = 0; b < size(); ++b) {
      if (prompt[b] + generated[b] > 0) live.push_back(b);
    }
    live[0] = static_cast<std::uint32_t>(live.size() - 1);
    return live;
  }
};

Batch RandomBatch(std::uint32_t size, std::uint32_t longest, Random& random) {
  Batch batch;
  for (std::uint32_t i = 0; i < size; ++i) {
    const std::uint32_t kind = random(8);
    const std::uint32_t cached = kind == 0 ? 0 : random(longest);
    if (kind == 1) {
      batch.Add(cached, 0, 0);
    } else if (kind == 2) {
      batch.Add(cached, random(300), random(20));
    } else {
      batch.Add(cached, 0, kind == 3 ? random(9) : 1);
    }
  }
  return batch;
}

// Lists in host memory, each followed by guard entries.
struct HostLists {
  HostLists(const Batch& batch, const AttentionWorkShape& shape) : shape(shape) {
    const AttentionPlanLimits limits{std::max(batch.size(), 1u),
                                     std::max(batch.offsets.back(), 1u),
                                     1,
                                     shape.num_kv_heads * shape.group,
                                     shape.num_kv_heads,
                                     64,
                                     shape.window};
    bounds = internal::WorkBounds(limits, shape.num_sms);
    prefill.resize(bounds.prefill);
    decode.resize(bounds.decode);
    merge.resize(bounds.merge);
    const std::vector<std::uint32_t> live = batch.LiveSequences();
    AttentionPlanParams params{};
    params.live_sequences = live.data();
    params.row_offsets = batch.offsets.data();
    params.cache_lengths = batch.cached.data();
    params.prefill_tokens = batch.prompt.data();
    params.batch_size = batch.size();
    internal::PlanWorkHost(params, shape,
                           {&counts, prefill.data(), decode.data(), merge.data(), nullptr, 0, 0});
    EXPECT_LE(counts.prefill, bounds.prefill);
    EXPECT_LE(counts.decode, bounds.decode);
    EXPECT_LE(counts.merge, bounds.merge);
    EXPECT_LE(counts.partials, bounds.partials);
    prefill.resize(counts.prefill);
    decode.resize(counts.decode);
    merge.resize(counts.merge);
  }

  AttentionWorkShape shape;
  AttentionWorkCounts bounds{};
  AttentionWorkCounts counts{};
  std::vector<AttentionWork> prefill;
  std::vector<AttentionWork> decode;
  std::vector<AttentionMerge> merge;
};

// Maps (sequence, KV head, packed row of the class) to the spans that items assign to it, in list
// order.
using Spans = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>,
                       std::vector<std::pair<std::uint32_t, std::uint32_t>>>;

Spans SpansOf(const std::vector<AttentionWork>& items) {
  Spans spans;
  for (const AttentionWork& item : items) {
    for (std::uint32_t r = 0; r < item.num_rows; ++r) {
      spans[{item.sequence, item.kv_head, item.first_row + r}].push_back(
          {item.first_span, item.first_span + item.num_spans});
    }
  }
  return spans;
}

// Returns the first key that the first decode token of a sequence sees.
std::uint32_t FirstSeen(const Batch& batch, std::uint32_t sequence, std::uint32_t window) {
  const std::uint32_t position = batch.cached[sequence] + batch.prompt[sequence];
  return window == 0 || window > position ? 0 : position - window + 1;
}

void ExpectEveryTileOnce(const Batch& batch, const HostLists& lists) {
  const Spans decode = SpansOf(lists.decode);
  const Spans prefill = SpansOf(lists.prefill);
  std::size_t decode_rows = 0;
  std::size_t prefill_rows = 0;
  for (std::uint32_t b = 0; b < batch.size(); ++b) {
    const std::uint32_t keys = batch.cached[b] + batch.prompt[b] + batch.generated[b];
    for (std::uint32_t h = 0; h < lists.shape.num_kv_heads; ++h) {
      for (std::uint32_t r = 0; r < batch.generated[b] * lists.shape.group; ++r) {
        ++decode_rows;
        const auto found = decode.find({b, h, r});
        ASSERT_NE(found, decode.end()) << b << " " << h << " " << r;
        auto runs = found->second;
        std::sort(runs.begin(), runs.end());
        // Only the first run may contain keys that no row sees.
        const std::uint32_t seen = FirstSeen(batch, b, lists.shape.window) / kKvSpan;
        ASSERT_LE(runs[0].first, seen);
        ASSERT_GT(runs[0].second, seen);
        std::uint32_t next = runs[0].first;
        for (const auto& [first, end] : runs) {
          ASSERT_EQ(first, next);
          ASSERT_LT(first, end);
          next = end;
        }
        ASSERT_EQ(next, (keys + kKvSpan - 1) / kKvSpan);
      }
      for (std::uint32_t r = 0; r < batch.prompt[b] * lists.shape.group; ++r) {
        ++prefill_rows;
        const auto found = prefill.find({b, h, r});
        ASSERT_NE(found, prefill.end());
        ASSERT_EQ(found->second.size(), 1u);
      }
    }
  }
  EXPECT_EQ(decode.size(), decode_rows);
  EXPECT_EQ(prefill.size(), prefill_rows);
}

void ExpectItemsInPlace(const Batch& batch, const HostLists& lists) {
  std::uint32_t keys_before = 0xffffffffu;
  for (const AttentionWork& item : lists.decode) {
    ASSERT_EQ(item.base_row, batch.offsets[item.sequence] + batch.prompt[item.sequence]);
    ASSERT_LE(item.num_rows, kDecodeRows);
    const std::uint32_t keys =
        batch.cached[item.sequence] + batch.prompt[item.sequence] + batch.generated[item.sequence];
    ASSERT_LE(keys, keys_before) << "longest first";
    keys_before = keys;
    // A run starts at a group, is one span, or is the whole row.
    ASSERT_TRUE(item.num_spans == 1 || item.first_span % kSpansPerGroup == 0);
    ASSERT_TRUE(item.num_spans <= kSpansPerGroup || item.partial == AttentionWork::kNoPartial);
  }
  for (const AttentionWork& item : lists.prefill) {
    ASSERT_EQ(item.base_row, batch.offsets[item.sequence]);
    ASSERT_LE(item.num_rows, kPrefillRows);
    ASSERT_EQ(item.partial, AttentionWork::kNoPartial);
  }
}

// Partials are numbered without gaps. Each is written once and merged with its neighbours in the
// order of their keys.
void ExpectPartialsDense(const HostLists& lists) {
  std::vector<const AttentionWork*> writers(lists.counts.partials, nullptr);
  for (const AttentionWork& item : lists.decode) {
    if (item.partial == AttentionWork::kNoPartial) {
      ASSERT_TRUE(item.first_span == 0 || lists.shape.window > 0);
      continue;
    }
    ASSERT_LT(item.partial, lists.counts.partials);
    ASSERT_EQ(writers[item.partial], nullptr);
    writers[item.partial] = &item;
  }
  std::uint32_t merged = 0;
  for (std::uint32_t m = 0; m < lists.counts.merge; ++m) {
    const AttentionMerge& merge = lists.merge[m];
    merged += merge.num_partials;
    ASSERT_GT(merge.num_partials, 1u);
    ASSERT_EQ(merge.arrived, 0u);
    for (std::uint32_t i = 0; i < merge.num_partials; ++i) {
      const AttentionWork* const item = writers[merge.first_partial + i];
      ASSERT_NE(item, nullptr);
      ASSERT_EQ(item->merge, m);
      const AttentionWork* const first = writers[merge.first_partial];
      ASSERT_EQ(
          std::tie(item->sequence, item->kv_head, item->base_row, item->first_row, item->num_rows),
          std::tie(first->sequence, first->kv_head, first->base_row, first->first_row,
                   first->num_rows));
      ASSERT_EQ(item->first_span, merge.first_span + i * merge.spans_per_partial);
    }
  }
  EXPECT_EQ(merged, lists.counts.partials);
}

TEST(AttentionPlanTest, ListsSatisfyTheirInvariants) {
  Random random(5);
  const std::uint32_t sizes[] = {1, 2, 7, 64, 300, 4096};
  std::set<bool> cut;
  for (const std::uint32_t size : sizes) {
    for (const std::uint32_t longest : {100u, 700u, 9000u}) {
      if (size == 4096 && longest == 9000) continue;  // the maps of this test would take seconds
      const std::uint32_t window = random(2) == 0 ? 0 : 1 + random(longest);
      const AttentionWorkShape shape{1 + random(3), 1 + random(9), 1 + random(132), window};
      SCOPED_TRACE(absl::StrCat(size, " sequences up to ", longest, ", window ", window));
      const Batch batch = RandomBatch(size, longest, random);
      const HostLists lists(batch, shape);
      cut.insert(lists.counts.partials > 0);
      ExpectEveryTileOnce(batch, lists);
      ExpectItemsInPlace(batch, lists);
      ExpectPartialsDense(lists);
    }
  }
  EXPECT_EQ(cut.size(), 2u) << "both kinds of plan were seen";
}

TEST(AttentionPlanTest, SplitDependsOnTheWork) {
  EXPECT_EQ(ChooseSplit(1, 132), AttentionSplit::kSpan);
  EXPECT_EQ(ChooseSplit(2 * 132 - 1, 132), AttentionSplit::kSpan);
  EXPECT_EQ(ChooseSplit(2 * 132, 132), AttentionSplit::kGroup);
  EXPECT_EQ(ChooseSplit(MaxPartials(132), 132), AttentionSplit::kGroup);
  EXPECT_EQ(ChooseSplit(MaxPartials(132) + 1, 132), AttentionSplit::kWholeRow);
}

// The row determines where it may be cut, and the load alone whether it is cut there. So the
// borders of any two plans with the row are multiples of a span, and multiples of a group if an
// item has more than one span.
TEST(AttentionPlanTest, BordersOfARowDoNotDependOnOtherRows) {
  Random random(6);
  for (int round = 0; round < 20; ++round) {
    Batch batch = RandomBatch(1 + random(40), 6000, random);
    batch.Add(5000, 0, 2);
    const HostLists lists(batch, {2, 3, 1 + random(64)});
    for (const auto& [row, runs] : SpansOf(lists.decode)) {
      if (std::get<0>(row) + 1 != batch.size()) continue;
      EXPECT_TRUE(runs.size() == 10 || runs.size() == 3 || runs.size() == 1) << runs.size();
    }
  }
}

// The cost of a row with a window does not grow with its context.
TEST(AttentionPlanTest, SpansBeforeAWindowAreSkipped) {
  for (const std::uint32_t window : {1u, 512u, 1024u, 4096u}) {
    for (const std::uint32_t cached : {32767u, 130000u}) {
      Batch batch;
      batch.Add(cached, 0, 1);
      const HostLists spans(batch, {8, 4, 132, window});
      EXPECT_LE(spans.counts.decode, 8 * (window / kKvSpan + 2));
      // If items are groups, there is at most one more group.
      const HostLists groups(batch, {8, 4, 1, window});
      EXPECT_LE(groups.counts.decode, 8 * (window / kKvGroup + 2));
    }
  }
}

// Sums of the lengths of 256 devices do not wrap around.
TEST(AttentionPlanTest, CountsOfHugeStepsDoNotWrap) {
  Batch batch;
  for (int i = 0; i < 4096; ++i) batch.Add(0x7ffffff0u, 0, 1);
  const HostLists lists(batch, {8, 4, 132});
  EXPECT_EQ(lists.counts.partials, 0u);
  EXPECT_EQ(lists.counts.decode, 4096u * 8);
}

void ExpectDeviceListsEqual(const AttentionBackend& cuda, const Batch& batch, std::uint32_t heads,
                            std::uint32_t kv_heads, std::uint32_t window = 0) {
  const HostLists host(batch, {kv_heads, heads / kv_heads, cuda.num_sms(), window});
  const AttentionArray<std::uint32_t> offsets(cuda, batch.offsets);
  // The planner must not read the lengths of sequences without tokens.
  std::vector<std::uint32_t> lengths = batch.cached;
  for (std::uint32_t b = 0; b < batch.size(); ++b) {
    if (batch.offsets[b] == batch.offsets[b + 1]) lengths[b] = 0xffffffffu;
  }
  const AttentionArray<std::uint32_t> cached(cuda, lengths);
  const AttentionArray<std::uint32_t> prompt(cuda, batch.prompt);
  const AttentionArray<std::uint32_t> live(cuda, batch.LiveSequences());
  auto plan = AttentionPlan::Create(
      *cuda, {batch.size(), std::max(batch.offsets.back(), 1u), 1, heads, kv_heads, 64, window});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status planned = PlanAttention(
      *cuda, {offsets.data(), cached.data(), prompt.data(), live.data(), batch.size(), true, true},
      plan->get());
  ASSERT_TRUE(planned.ok()) << planned;
  const AttentionWorkLists lists = AttentionPlanAccess::Lists(**plan);
  const auto read = [&](auto* from, std::size_t count) {
    std::vector<std::decay_t<decltype(*from)>> values(count);
    EXPECT_TRUE(cuda.stream()
                    .Copy(values.data(), from, static_cast<std::int64_t>(count * sizeof(values[0])))
                    .ok());
    const absl::Status status = cuda.stream().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  };
  ASSERT_TRUE(read(lists.counts, 1)[0] == host.counts);
  EXPECT_TRUE(read(lists.prefill, host.counts.prefill) == host.prefill);
  EXPECT_TRUE(read(lists.decode, host.counts.decode) == host.decode);
  EXPECT_TRUE(read(lists.merge, host.counts.merge) == host.merge);
}

TEST(AttentionPlanTest, DeviceListsEqualHostLists) {
  Random random(7);
  for (const int num_sms : {1, 16, 132}) {
    const AttentionBackend cuda(num_sms);
    for (const std::uint32_t size : {1u, 2u, 3u, 31u, 64u, 65u, 257u, 600u}) {
      SCOPED_TRACE(absl::StrCat(size, " sequences, ", num_sms, " SMs"));
      ExpectDeviceListsEqual(cuda, RandomBatch(size, size < 40 ? 9000 : 1500, random), 12, 3);
      ExpectDeviceListsEqual(cuda, RandomBatch(size, 400, random), 16, 1);
      for (const std::uint32_t window : {1u, 700u, 3000u}) {
        ExpectDeviceListsEqual(cuda, RandomBatch(size, size < 40 ? 9000 : 1500, random), 12, 3,
                               window);
      }
    }
  }
}

TEST(AttentionPlanTest, RejectsInvalidLimits) {
  const AttentionBackend cuda;
  const AttentionPlanLimits good{4, 16, 100, 8, 2, 64};
  AttentionPlanLimits bad = good;
  bad.num_kv_heads = 3;
  EXPECT_EQ(AttentionPlan::Create(*cuda, bad).status().message(),
            "attention plan: 8 query heads, they must be a multiple of 3 kv heads");
  bad = good;
  bad.max_length = 0;
  EXPECT_EQ(AttentionPlan::Create(*cuda, bad).status().message(),
            "attention plan: max_length is 0, it must be at least 1");
  bad = good;
  bad.max_sequences = 4097;
  EXPECT_EQ(AttentionPlan::Create(*cuda, bad).status().message(),
            "attention plan: max_sequences is 4097, the limit is 4096");
  auto plan = AttentionPlan::Create(*cuda, good);
  ASSERT_TRUE(plan.ok());
  AttentionPlanParams params{};
  params.batch_size = 5;
  EXPECT_EQ(PlanAttention(*cuda, params, plan->get()).message(),
            "attention plan: batch_size is 5, it must be 1 to 4");
}

struct DoubleMath {
  using Real = double;
  static double Exp2(double x) { return std::exp2(x); }
  static double Mul(double a, double b) { return a * b; }
  static double Fma(double a, double b, double c) { return std::fma(a, b, c); }
  static double Max(double a, double b) { return std::max(a, b); }
};
struct FloatMath {
  using Real = float;
  static float Exp2(float x) { return std::exp2(x); }
  static float Mul(float a, float b) { return a * b; }
  static float Fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float Max(float a, float b) { return std::max(a, b); }
};

template <typename Math>
struct Piece {
  AttentionState<Math> state;
  typename Math::Real value = 0;
  void Add(const Piece& right) {
    const AttentionReduction<Math> reduce = ReduceState(&state, right.state);
    value = ReduceValue(reduce, value, right.value);
  }
};

struct Sample {
  double score;
  double value;
};
std::vector<Sample> Samples(std::uint32_t seed, std::size_t count, double spread) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < count; ++i)
    samples.push_back({spread * normal(random), normal(random)});
  return samples;
}

template <typename Math>
Piece<Math> OnePass(const std::vector<Sample>& samples, std::size_t begin, std::size_t end) {
  using Real = typename Math::Real;
  Piece<Math> piece;
  for (std::size_t i = begin; i < end; ++i) {
    piece.state.max = std::max(piece.state.max, static_cast<Real>(samples[i].score));
  }
  for (std::size_t i = begin; i < end; ++i) {
    const Real p = Math::Exp2(static_cast<Real>(samples[i].score) - piece.state.max);
    piece.state.sum += p;
    piece.value += p * static_cast<Real>(samples[i].value);
  }
  return piece;
}

TEST(AttentionStateTest, ReductionOfPiecesEqualsOnePass) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const std::vector<Sample> samples = Samples(seed, 500, seed % 2 == 0 ? 1 : 40);
    const Piece<DoubleMath> all = OnePass<DoubleMath>(samples, 0, samples.size());
    Piece<DoubleMath> reduced;
    Random random(seed);
    for (std::size_t at = 0; at < samples.size();) {
      const std::size_t end = std::min(samples.size(), at + random(90));
      reduced.Add(OnePass<DoubleMath>(samples, at, end));  // empty now and then
      at = end;
    }
    const double exact = FinishValue(all.state, all.value);
    EXPECT_NEAR(FinishValue(reduced.state, reduced.value), exact, 1e-12);
    EXPECT_EQ(reduced.state.max, all.state.max);
  }
}

// Cuts a row of spans into single spans or whole groups, with empty states in between.
TEST(AttentionStateTest, CutsAtGroupsGiveBitwiseEqualResults) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const std::vector<Sample> samples = Samples(seed, 13 * 50, 3);
    std::vector<Piece<FloatMath>> spans;
    for (std::size_t i = 0; i < 13; ++i) {
      spans.push_back(OnePass<FloatMath>(samples, 50 * i, 50 * i + 50));
    }
    Piece<FloatMath> row;
    Piece<FloatMath> group;
    std::vector<Piece<FloatMath>> groups;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      group.Add(spans[i]);
      if (i % kSpansPerGroup == kSpansPerGroup - 1 || i + 1 == spans.size()) {
        groups.push_back(group);
        row.Add(group);
        group = {};
      }
    }
    Piece<FloatMath> from_groups;
    for (const Piece<FloatMath>& g : groups) {
      Piece<FloatMath> copy;  // what a kernel writes is reduced with the empty state again
      copy.Add(g);
      from_groups.Add(copy);
      from_groups.Add({});
    }
    EXPECT_EQ(row.value, from_groups.value);
    EXPECT_EQ(row.state.sum, from_groups.state.sum);
    EXPECT_EQ(row.state.max, from_groups.state.max);
  }
}

TEST(AttentionStateTest, NoKeysGiveZeroAndNotNan) {
  Piece<FloatMath> empty;
  empty.Add({});
  empty.Add({});
  EXPECT_EQ(FinishValue(empty.state, empty.value), 0.0f);
  EXPECT_EQ(empty.state.sum, 0.0f);
  EXPECT_TRUE(std::isinf(empty.state.max));
}

TEST(AttentionMaskTest, PredicatesMatchTheirDefinitions) {
  for (int i = 0; i < 40; ++i) {
    for (int j = 0; j < 40; ++j) {
      const auto at = static_cast<std::uint32_t>(i);
      const auto key = static_cast<std::uint32_t>(j);
      EXPECT_EQ(CausalVisible(at, key), j <= i);
      for (int window = 1; window < 45; ++window) {
        const auto w = static_cast<std::uint32_t>(window);
        EXPECT_EQ(VisibleFrom(FirstVisible(at, w, 0), at).Has(key), 0 <= i - j && i - j < window);
        EXPECT_EQ(VisibleFrom(FirstVisible(at, 0, w), at).Has(key),
                  j <= i && j / window == i / window);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels
