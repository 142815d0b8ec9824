#include "kernels/sampling/device_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device_buffer.h"
#include "base/status.h"
#include "kernels/sampling/sampling_device.h"

namespace quire::kernels {
namespace {

using internal::DeviceRow;
using internal::DeviceSampled;
using internal::SamplerState;

// Memory layout as offsets in bytes. Both device and pinned memory start with the slots. All other
// arrays exist only on the device.
struct Layout {
  std::int64_t results;  // in a slot
  std::int64_t tops;     // in a slot
  std::int64_t slot_bytes;
  std::int64_t buckets;
  std::int64_t x;
  std::int64_t keys;
  std::int64_t part_sums;
  std::int64_t has_text;
  std::int64_t total;
};

// Numbers of list entries of a call or a slot.
struct ListSizes {
  std::uint32_t history = 0;
  std::uint32_t bias = 0;
  std::uint32_t banned = 0;
  std::uint32_t masks = 0;
  std::uint32_t tops = 0;
};

ListSizes Sum(const ListSizes& a, const ListSizes& b) {
  return {.history = a.history + b.history,
          .bias = a.bias + b.bias,
          .banned = a.banned + b.banned,
          .masks = a.masks + b.masks,
          .tops = a.tops + b.tops};
}

// The input of a call in pinned memory.
struct StagedInput {
  std::byte* begin;
  DeviceRow* rows;
  SamplerState* states;  // zero, so that copying the input also clears them on the device
  TokenCount* history;
  LogitBias* bias;
  std::int32_t* banned;
  std::uint32_t* masks;
  std::int64_t bytes;
};

std::int64_t XStride(std::uint32_t vocab) {
  return (std::int64_t{vocab} + 3) / 4 * 4;
}

std::uint32_t NumParts(std::uint32_t vocab) {
  return vocab / internal::kSamplerSumPart + (vocab % internal::kSamplerSumPart != 0);
}

std::int64_t MaskBytes(std::uint32_t vocab) {
  return MaskWords(vocab) * std::int64_t{sizeof(std::uint32_t)};
}

std::int64_t ListBytes(std::int64_t rows, const ListSizes& sizes, std::uint32_t vocab) {
  const std::int64_t bytes = rows * std::int64_t{sizeof(DeviceRow) + sizeof(SamplerState)} +
                             sizes.history * std::int64_t{sizeof(TokenCount)} +
                             sizes.bias * std::int64_t{sizeof(LogitBias)} +
                             sizes.banned * std::int64_t{sizeof(std::int32_t)} +
                             sizes.masks * MaskBytes(vocab);
  return (bytes + 7) / 8 * 8;
}

Layout LayoutFor(const DeviceSamplerLimits& limits) {
  constexpr std::int64_t kAlign = 256;
  const std::int64_t rows = std::int64_t{limits.max_samples} + limits.max_prompt_logprobs;
  const std::int64_t group = internal::kSamplerRows;
  std::int64_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    return std::exchange(at, (at + bytes + kAlign - 1) / kAlign * kAlign);
  };
  Layout layout{};
  // Each call rounds the size of its lists up once, by less than 8 bytes.
  const ListSizes lists{.history = limits.max_history,
                        .bias = limits.max_bias,
                        .banned = limits.max_banned,
                        .masks = limits.max_masks};
  take(ListBytes(rows, lists, limits.vocab) + 8 * rows);
  layout.results = take(rows * std::int64_t{sizeof(DeviceSampled)});
  layout.tops = take(rows * limits.max_logprobs * std::int64_t{sizeof(TopLogprob)});
  layout.slot_bytes = at;
  at *= DeviceSampler::kSlots;
  layout.buckets = take(group * internal::kSamplerBuckets * std::int64_t{sizeof(std::uint64_t)});
  layout.x = take(group * XStride(limits.vocab) * std::int64_t{sizeof(float)});
  layout.keys = take(group * limits.vocab * std::int64_t{sizeof(std::uint64_t)});
  layout.part_sums = take(group * NumParts(limits.vocab) * std::int64_t{sizeof(float)});
  layout.has_text = take(XStride(limits.vocab));
  layout.total = at;
  return layout;
}

absl::Status CheckLimit(absl::string_view what, std::uint64_t value, std::uint64_t limit) {
  if (value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("device sampler: there are ", value, " ", what, ", the limit is ", limit));
}

bool HasPenalties(const SamplingRow& row) {
  return row.repetition_penalty != 1.0f || row.frequency_penalty != 0.0f ||
         row.presence_penalty != 0.0f;
}

// Returns the number of leading rows that form the next group. At most kSamplerRows rows of a group
// need scratch memory.
std::uint32_t GroupSize(std::span<const DeviceRow> rows) {
  std::uint32_t size = 0;
  std::uint32_t with_scratch = 0;
  for (const DeviceRow& row :
       rows.first(std::min<std::size_t>(rows.size(), internal::kMaxGroupRows))) {
    with_scratch += internal::NeedsScratch(row) ? 1 : 0;
    if (with_scratch > internal::kSamplerRows) break;
    ++size;
  }
  return size;
}

// Returns the number of list entries that a row needs. Disabled penalties need no history.
ListSizes ListsOf(const SamplingRow& row) {
  return {.history = HasPenalties(row) ? row.history_size : 0,
          .bias = row.bias_size,
          .banned = row.banned_size,
          .masks = row.allowed != nullptr ? 1u : 0u,
          .tops = static_cast<std::uint32_t>(std::max(row.num_logprobs, 0))};
}

// Copies the biases, sorted by token. Biases of the same token stay in the caller's order. On the
// device, one thread adds all biases of a token.
void StageBias(const SamplingRow& row, LogitBias* to) {
  std::copy_n(row.bias, row.bias_size, to);
  const auto below = [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; };
  // Insertion sort, because a stable sort may allocate and the lists are short and mostly sorted.
  for (LogitBias* at = to; at != to + row.bias_size; ++at) {
    std::rotate(std::upper_bound(to, at, *at, below), at, at + 1);
  }
}

}  // namespace

struct DeviceSampler::State {
  struct LogprobRequest {
    std::uint32_t first_top;
    std::int32_t num_logprobs;
    bool processed;
  };
  struct Slot {
    std::int64_t input_used = 0;
    ListSizes used;
    std::vector<SampledRow> samples;  // samples() fills in the results
    std::vector<TokenLogprob> logprobs;
    // Indexed by result. Samples start at 0, logprobs at max_samples.
    std::vector<LogprobRequest> requests;
    std::vector<TopLogprob> tops;
  };

  const Backend& backend;
  const DeviceSamplerLimits limits;
  const Layout layout;
  const std::span<const std::uint8_t> has_text;
  const std::uint32_t text_vocab;
  DeviceBuffer device;
  DeviceBuffer pinned;
  std::array<Slot, kSlots> slots{};

  std::byte* host(int slot) const { return pinned.bytes().data() + slot * layout.slot_bytes; }
  std::byte* gpu(std::int64_t offset) const {
    return static_cast<std::byte*>(device.data()) + offset;
  }
  const std::uint8_t* text_table() const { return has_text.empty() ? nullptr : has_text.data(); }

  StagedInput Reserve(std::size_t num_rows, const ListSizes& sizes, int slot);
  void StageSample(const SamplingRow& row, DeviceRow& to, ListSizes& at,
                   const StagedInput& staged) const;
  absl::Status Enqueue(const StagedInput& staged, std::span<DeviceRow> rows, const ListSizes& sizes,
                       int slot);
  absl::Status EnqueueGroup(std::span<const DeviceRow> rows,
                            const internal::SamplerArgs& args) const;
  absl::Status CheckRows(std::span<const SamplingRow> rows, const Slot& slot) const;
  std::size_t CountFitting(std::span<const SamplingRow> rows, const Slot& slot,
                           ListSizes* sizes) const;
  absl::Status FreeLists(Slot* slot) const;
  absl::Status SampleFitting(std::span<const SamplingRow> rows, const ListSizes& sizes,
                             std::int32_t* tokens, int slot, std::span<const std::uint32_t> places);
  const DeviceSampled& Sampled(int slot, std::size_t index) const {
    return reinterpret_cast<const DeviceSampled*>(host(slot) + layout.results)[index];
  }
  // Fills in the fields that SampledRow and TokenLogprob have in common, from the device's result
  // number `index` and its top tokens.
  template <typename Result>
  void Finish(int slot, std::size_t index, Result& result);
};

absl::Status DeviceSampler::State::CheckRows(std::span<const SamplingRow> rows,
                                             const Slot& slot) const {
  for (const SamplingRow& row : rows) {
    QUIRE_RETURN_IF_ERROR(internal::CheckSamplingRow(row, limits.vocab));
    if (row.text_vocab != text_vocab || row.has_text != text_table()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "text_vocab or the has_text table of a sampling row differs from the sampler's: "
          "text_vocab is ",
          row.text_vocab, ", the sampler's is ", text_vocab));
    }
    const ListSizes lists = ListsOf(row);
    QUIRE_RETURN_IF_ERROR(
        CheckLimit("log-probabilities of a row", lists.tops, limits.max_logprobs));
    QUIRE_RETURN_IF_ERROR(
        CheckLimit("history entries of a row", lists.history, limits.max_history));
    QUIRE_RETURN_IF_ERROR(CheckLimit("logit biases of a row", lists.bias, limits.max_bias));
    QUIRE_RETURN_IF_ERROR(CheckLimit("banned ids of a row", lists.banned, limits.max_banned));
    QUIRE_RETURN_IF_ERROR(CheckLimit("masks of a row", lists.masks, limits.max_masks));
  }
  return CheckLimit("samples of a slot", slot.samples.size() + rows.size(), limits.max_samples);
}

// Returns the number of leading rows whose lists fit into the slot together. Stores the total size
// of these lists in `sizes`.
std::size_t DeviceSampler::State::CountFitting(std::span<const SamplingRow> rows, const Slot& slot,
                                               ListSizes* sizes) const {
  *sizes = {};
  std::size_t count = 0;
  for (const SamplingRow& row : rows) {
    const ListSizes lists = ListsOf(row);
    if (std::uint64_t{slot.used.history} + sizes->history + lists.history > limits.max_history ||
        std::uint64_t{slot.used.bias} + sizes->bias + lists.bias > limits.max_bias ||
        std::uint64_t{slot.used.banned} + sizes->banned + lists.banned > limits.max_banned ||
        std::uint64_t{slot.used.masks} + sizes->masks + lists.masks > limits.max_masks) {
      break;
    }
    *sizes = Sum(*sizes, lists);
    ++count;
  }
  return count;
}

// Waits until the device has read the lists of earlier calls, so that their memory can be reused.
absl::Status DeviceSampler::State::FreeLists(Slot* slot) const {
  QUIRE_RETURN_IF_ERROR(backend.cuda()->stream->Synchronize());
  slot->input_used = 0;
  slot->used = {.tops = slot->used.tops};
  return absl::OkStatus();
}

StagedInput DeviceSampler::State::Reserve(std::size_t num_rows, const ListSizes& sizes, int slot) {
  Slot& slot_data = slots[static_cast<std::size_t>(slot)];
  StagedInput staged{};
  staged.begin = host(slot) + slot_data.input_used;
  staged.bytes = ListBytes(static_cast<std::int64_t>(num_rows), sizes, limits.vocab);
  staged.rows = reinterpret_cast<DeviceRow*>(staged.begin);
  staged.states = reinterpret_cast<SamplerState*>(staged.rows + num_rows);
  std::fill_n(staged.states, num_rows, SamplerState{});
  staged.history = reinterpret_cast<TokenCount*>(staged.states + num_rows);
  staged.bias = reinterpret_cast<LogitBias*>(staged.history + sizes.history);
  staged.banned = reinterpret_cast<std::int32_t*>(staged.bias + sizes.bias);
  staged.masks = reinterpret_cast<std::uint32_t*>(staged.banned + sizes.banned);
  slot_data.input_used += staged.bytes;
  QUIRE_CHECK(slot_data.input_used <= layout.results);
  return staged;
}

// Stages a sample, but does not set the destination of its results. `at` counts the list entries of
// the call.
void DeviceSampler::State::StageSample(const SamplingRow& row, DeviceRow& to, ListSizes& at,
                                       const StagedInput& staged) const {
  to = {};
  to.logits = row.logits;
  to.seed = row.seed;
  to.choice = row.choice;
  to.position = row.position;
  to.greedy = row.temperature < 0.001f;
  to.factor = to.greedy ? 1.0f : 1.0f / row.temperature;
  to.top_k = static_cast<std::uint32_t>(row.top_k) < limits.vocab
                 ? static_cast<std::uint32_t>(row.top_k)
                 : 0;
  to.top_p = static_cast<double>(row.top_p);
  to.log_min_p = row.min_p > 0.0f ? std::log(row.min_p) : -std::numeric_limits<float>::infinity();
  to.top_n_sigma = to.greedy ? 0.0f : row.top_n_sigma;
  to.xtc_threshold = row.xtc_threshold;
  to.xtc = !to.greedy && internal::HasXtc(row);
  to.filtered = !to.greedy && (to.top_k > 0 || to.top_p < 1.0 || to.xtc);
  to.processed = !to.greedy && row.wants_processed_logprob;
  to.repetition_penalty = row.repetition_penalty;
  to.presence_penalty = row.presence_penalty;
  to.frequency_penalty = row.frequency_penalty;
  to.history_begin = at.history;
  to.history_size = HasPenalties(row) ? row.history_size : 0;
  to.bias_begin = at.bias;
  to.bias_size = row.bias_size;
  to.banned_begin = at.banned;
  to.banned_size = row.banned_size;
  to.sample_in_flight = HasPenalties(row) ? row.sample_in_flight : nullptr;
  to.edited = to.history_size + to.bias_size + to.banned_size > 0 ||
              to.sample_in_flight != nullptr || to.top_n_sigma > 0.0f;
  to.mask = row.allowed != nullptr ? static_cast<std::int32_t>(at.masks) : -1;
  to.token_logprob = -1;
  to.num_logprobs = std::max(row.num_logprobs, -1);
  std::copy_n(row.history, to.history_size, staged.history + at.history);
  StageBias(row, staged.bias + at.bias);
  // Keeps each id once, so that no two threads write the same logit.
  std::int32_t* const banned = staged.banned + at.banned;
  std::int32_t* banned_end = banned;
  for (const std::int32_t id : std::span(row.banned, row.banned_size)) {
    if (std::find(banned, banned_end, id) == banned_end) *banned_end++ = id;
  }
  to.banned_size = static_cast<std::uint32_t>(banned_end - banned);
  if (row.allowed != nullptr) {
    const std::size_t words = MaskWords(limits.vocab);
    std::copy_n(row.allowed, words, staged.masks + at.masks * words);
  }
  at = Sum(at, ListsOf(row));
}

absl::Status DeviceSampler::State::EnqueueGroup(std::span<const DeviceRow> rows,
                                                const internal::SamplerArgs& args) const {
  internal::SamplerNeeds needs;
  for (const DeviceRow& row : rows) {
    needs.edits = needs.edits || row.edited;
    needs.moments = needs.moments || row.top_n_sigma > 0.0f;
    needs.samples = needs.samples || !row.greedy;
    needs.filters = needs.filters || row.filtered;
    needs.logprobs = needs.logprobs || row.num_logprobs >= 0;
    needs.tops = needs.tops || row.num_logprobs > 0;
  }
  if constexpr (kHasCuda) {
    QUIRE_RETURN_IF_ERROR(internal::LaunchSamples(*backend.cuda(), args, needs));
    if (!needs.logprobs) return absl::OkStatus();
    return internal::LaunchLogprobs(*backend.cuda(), args, needs);
  }
  return absl::OkStatus();
}

// Copies the input of a call to the device, runs it group by group, and copies the results back.
absl::Status DeviceSampler::State::Enqueue(const StagedInput& staged, std::span<DeviceRow> rows,
                                           const ListSizes& sizes, int slot) {
  const Stream& stream = *backend.cuda()->stream;
  std::byte* const from = host(slot);
  std::byte* const to = gpu(slot * layout.slot_bytes);
  const auto on_device = [&]<typename T>(const T* p) {
    return reinterpret_cast<const T*>(to + (reinterpret_cast<const std::byte*>(p) - from));
  };
  // Scratch indices are consecutive modulo kSamplerRows, so the rows of a group have distinct
  // indices.
  std::uint32_t scratch = 0;
  for (DeviceRow& row : rows) {
    if (internal::NeedsScratch(row)) row.scratch = scratch++ % internal::kSamplerRows;
  }
  QUIRE_RETURN_IF_ERROR(stream.Copy(to + (staged.begin - from), staged.begin, staged.bytes));
  internal::SamplerArgs args{};
  args.history = on_device(staged.history);
  args.bias = on_device(staged.bias);
  args.banned = on_device(staged.banned);
  args.masks = on_device(staged.masks);
  args.has_text =
      has_text.empty() ? nullptr : reinterpret_cast<const std::uint8_t*>(gpu(layout.has_text));
  args.buckets = reinterpret_cast<std::uint64_t*>(gpu(layout.buckets));
  args.x = reinterpret_cast<float*>(gpu(layout.x));
  args.keys = reinterpret_cast<std::uint64_t*>(gpu(layout.keys));
  args.part_sums = reinterpret_cast<float*>(gpu(layout.part_sums));
  args.results = reinterpret_cast<DeviceSampled*>(to + layout.results);
  args.tops = reinterpret_cast<TopLogprob*>(to + layout.tops);
  args.x_stride = XStride(limits.vocab);
  args.vocab = limits.vocab;
  args.text_vocab = text_vocab;
  args.mask_words = MaskWords(limits.vocab);
  args.num_parts = NumParts(limits.vocab);
  for (std::size_t at = 0; at < rows.size(); at += args.num_rows) {
    args.num_rows = GroupSize(rows.subspan(at));
    args.rows = on_device(rows.data() + at);
    args.states = const_cast<SamplerState*>(on_device(staged.states + at));
    QUIRE_RETURN_IF_ERROR(EnqueueGroup(rows.subspan(at, args.num_rows), args));
  }
  const auto back = [&](std::int64_t offset, std::int64_t bytes) {
    return bytes == 0 ? absl::OkStatus() : stream.Copy(from + offset, to + offset, bytes);
  };
  QUIRE_RETURN_IF_ERROR(back(layout.results + rows[0].result * std::int64_t{sizeof(DeviceSampled)},
                             static_cast<std::int64_t>(rows.size() * sizeof(DeviceSampled))));
  return back(layout.tops + rows[0].top * std::int64_t{sizeof(TopLogprob)},
              sizes.tops * std::int64_t{sizeof(TopLogprob)});
}

template <typename Result>
void DeviceSampler::State::Finish(int slot, std::size_t index, Result& result) {
  Slot& slot_data = slots[static_cast<std::size_t>(slot)];
  const LogprobRequest& request = slot_data.requests[index];
  const DeviceSampled& sampled = Sampled(slot, index);
  result.logprob = 0;
  result.rank = 0;
  result.num_top = 0;
  result.non_finite = sampled.non_finite != 0;
  result.top = slot_data.tops.data() + request.first_top;
  if (sampled.token < 0 || request.num_logprobs < 0) return;
  const double log_sum = std::log(sampled.sum);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(sampled.max) -
                              log_sum);
  };
  result.logprob = logprob(sampled.logit);
  result.rank = sampled.rank;
  result.num_top = sampled.num_top;
  const auto* const logits =
      reinterpret_cast<const TopLogprob*>(host(slot) + layout.tops) + request.first_top;
  for (std::uint32_t i = 0; i < sampled.num_top; ++i) {
    result.top[i] = {logits[i].token, logprob(logits[i].logprob)};
  }
}

DeviceSampler::DeviceSampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceSampler::~DeviceSampler() = default;

std::int64_t DeviceSampler::BytesFor(const DeviceSamplerLimits& limits) {
  return LayoutFor(limits).total;
}

std::int64_t DeviceSampler::PinnedBytesFor(const DeviceSamplerLimits& limits) {
  return LayoutFor(limits).slot_bytes * kSlots;
}

absl::StatusOr<std::unique_ptr<DeviceSampler>> DeviceSampler::Create(
    const Backend& backend, const DeviceSamplerLimits& limits,
    std::span<const std::uint8_t> has_text, std::uint32_t text_vocab) {
  if (backend.cuda() == nullptr) {
    return absl::InvalidArgumentError("a device sampler requires a GPU");
  }
  if (limits.vocab == 0 || limits.vocab > (1u << 30) ||
      limits.max_logprobs > internal::kMaxDeviceLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary of a device sampler is ", limits.vocab,
                     " (must be 1 to 2^30) and max_logprobs is ", limits.max_logprobs, " (at most ",
                     internal::kMaxDeviceLogprobs, ")"));
  }
  if (!has_text.empty() && has_text.size() != limits.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("has_text has ", has_text.size(),
                                                   " entries, the vocabulary has ", limits.vocab));
  }
  const Layout layout = LayoutFor(limits);
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer device,
                         DeviceBuffer::Allocate(MemoryKind::kDevice, layout.total));
  QUIRE_ASSIGN_OR_RETURN(
      DeviceBuffer pinned,
      DeviceBuffer::Allocate(MemoryKind::kPinned, layout.slot_bytes * DeviceSampler::kSlots));
  std::unique_ptr<State> state(new State{backend, limits, layout, has_text, text_vocab,
                                         std::move(device), std::move(pinned)});
  for (State::Slot& slot : state->slots) {
    const std::size_t rows = std::size_t{limits.max_samples} + limits.max_prompt_logprobs;
    slot.samples.reserve(limits.max_samples);
    slot.logprobs.reserve(limits.max_prompt_logprobs);
    slot.requests.resize(rows);
    slot.tops.resize(rows * limits.max_logprobs);
  }
  if (!has_text.empty()) {
    const Stream& stream = *backend.cuda()->stream;
    QUIRE_RETURN_IF_ERROR(stream.Zero(state->gpu(layout.has_text), XStride(limits.vocab)));
    QUIRE_RETURN_IF_ERROR(stream.Copy(state->gpu(layout.has_text), has_text.data(),
                                      static_cast<std::int64_t>(has_text.size())));
    QUIRE_RETURN_IF_ERROR(stream.Synchronize());
  }
  return std::unique_ptr<DeviceSampler>(new DeviceSampler(std::move(state)));
}

// Samples rows whose lists fit into the slot together.
absl::Status DeviceSampler::State::SampleFitting(std::span<const SamplingRow> rows,
                                                 const ListSizes& sizes, std::int32_t* tokens,
                                                 int slot, std::span<const std::uint32_t> places) {
  Slot& slot_data = slots[static_cast<std::size_t>(slot)];
  const StagedInput staged = Reserve(rows.size(), sizes, slot);
  ListSizes at;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    DeviceRow& to = staged.rows[i];
    const std::uint32_t top = slot_data.used.tops + at.tops;
    StageSample(rows[i], to, at, staged);
    to.token = tokens + (places.empty() ? i : places[i]);
    to.result = static_cast<std::uint32_t>(slot_data.samples.size());
    to.top = top;
    slot_data.requests[to.result] = {to.top, to.num_logprobs, to.processed};
    slot_data.samples.emplace_back();
  }
  slot_data.used = Sum(slot_data.used, sizes);
  return Enqueue(staged, {staged.rows, rows.size()}, sizes, slot);
}

absl::Status DeviceSampler::Sample(std::span<const SamplingRow> rows, std::int32_t* tokens,
                                   int slot, std::span<const std::uint32_t> places) {
  QUIRE_CHECK(slot >= 0 && slot < kSlots);
  QUIRE_CHECK(places.empty() || places.size() == rows.size());
  State::Slot& slot_data = state_->slots[static_cast<std::size_t>(slot)];
  QUIRE_RETURN_IF_ERROR(state_->CheckRows(rows, slot_data));
  while (!rows.empty()) {
    ListSizes sizes;
    const std::size_t count = state_->CountFitting(rows, slot_data, &sizes);
    if (count == 0) {
      QUIRE_RETURN_IF_ERROR(state_->FreeLists(&slot_data));
      continue;
    }
    const std::span<const std::uint32_t> call_places = places.first(places.empty() ? 0 : count);
    QUIRE_RETURN_IF_ERROR(
        state_->SampleFitting(rows.first(count), sizes, tokens, slot, call_places));
    rows = rows.subspan(count);
    places = places.subspan(call_places.size());
    if (call_places.empty()) tokens += count;
  }
  return absl::OkStatus();
}

absl::Status DeviceSampler::ComputeLogprobs(std::span<const TokenLogprob> tokens, int slot) {
  QUIRE_CHECK(slot >= 0 && slot < kSlots);
  State::Slot& slot_data = state_->slots[static_cast<std::size_t>(slot)];
  const DeviceSamplerLimits& limits = state_->limits;
  ListSizes sizes;
  for (const TokenLogprob& token : tokens) {
    QUIRE_RETURN_IF_ERROR(internal::CheckTokenLogprob(token, limits.vocab));
    const auto best = static_cast<std::uint32_t>(token.num_logprobs);
    QUIRE_RETURN_IF_ERROR(CheckLimit("log-probabilities of a row", best, limits.max_logprobs));
    sizes.tops += best;
  }
  QUIRE_RETURN_IF_ERROR(CheckLimit("prompt log-probabilities of a slot",
                                   slot_data.logprobs.size() + tokens.size(),
                                   limits.max_prompt_logprobs));
  if (tokens.empty()) return absl::OkStatus();
  const StagedInput staged = state_->Reserve(tokens.size(), sizes, slot);
  std::uint32_t top = slot_data.used.tops;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    DeviceRow& to = staged.rows[i];
    to = {};
    to.logits = tokens[i].logits;
    to.greedy = true;
    to.mask = -1;
    to.token_logprob = tokens[i].token;
    to.num_logprobs = tokens[i].num_logprobs;
    to.result = limits.max_samples + static_cast<std::uint32_t>(slot_data.logprobs.size());
    to.top = top;
    slot_data.requests[to.result] = {top, to.num_logprobs, false};
    top += static_cast<std::uint32_t>(to.num_logprobs);
    slot_data.logprobs.push_back(tokens[i]);
  }
  slot_data.used.tops = top;
  return state_->Enqueue(staged, {staged.rows, tokens.size()}, sizes, slot);
}

void DeviceSampler::Reset(int slot) {
  QUIRE_CHECK(slot >= 0 && slot < kSlots);
  State::Slot& slot_data = state_->slots[static_cast<std::size_t>(slot)];
  slot_data.input_used = 0;
  slot_data.used = {};
  slot_data.samples.clear();
  slot_data.logprobs.clear();
}

std::span<const SampledRow> DeviceSampler::samples(int slot) {
  QUIRE_CHECK(slot >= 0 && slot < kSlots);
  std::vector<SampledRow>& samples = state_->slots[static_cast<std::size_t>(slot)].samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const DeviceSampled& sampled = state_->Sampled(slot, i);
    samples[i].token = sampled.token;
    samples[i].no_survivor = sampled.no_survivor != 0;
    samples[i].processed_logprob =
        sampled.token >= 0 && state_->slots[static_cast<std::size_t>(slot)].requests[i].processed
            ? internal::ProcessedLogprob(sampled.x, sampled.x_max, sampled.mass)
            : 0.0f;
    state_->Finish(slot, i, samples[i]);
  }
  return samples;
}

std::span<const TokenLogprob> DeviceSampler::logprobs(int slot) {
  QUIRE_CHECK(slot >= 0 && slot < kSlots);
  std::vector<TokenLogprob>& logprobs = state_->slots[static_cast<std::size_t>(slot)].logprobs;
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    state_->Finish(slot, state_->limits.max_samples + i, logprobs[i]);
  }
  return logprobs;
}

}  // namespace quire::kernels
