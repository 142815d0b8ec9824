#include "engine/request/cache_probe.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/request/probe_labels.h"

namespace quire::engine {

CacheProbe::CacheProbe(probe::Registry* registry, const probe::Labels& model,
                       std::uint32_t page_size, std::uint32_t num_pages,
                       const std::string& kv_dtype)
    : registry_(registry) {
  cached_prompt_tokens_ = registry_->AddCounter(kPromptTokensFamily, kPromptTokensHelp,
                                                With(model, "source", "device"));
  queries_ = registry_->AddCounter("quire_prefix_cache_queries_tokens_total",
                                   "Prompt tokens looked up in the prefix cache.", model);
  hits_ = registry_->AddCounter("quire_prefix_cache_hits_tokens_total",
                                "Prompt tokens found in the prefix cache.", model);
  usage_ =
      registry_->AddGauge("quire_kv_cache_usage_ratio", "Used pages divided by all pages.", model);
  constexpr absl::string_view kPages = "quire_kv_cache_pages";
  constexpr absl::string_view kPagesHelp = "Pages by state, the null page not counted.";
  pages_used_ = registry_->AddGauge(kPages, kPagesHelp, With(model, "state", "used"));
  pages_cached_ = registry_->AddGauge(kPages, kPagesHelp, With(model, "state", "cached"));
  pages_free_ = registry_->AddGauge(kPages, kPagesHelp, With(model, "state", "free"));
  pages_free_.Set(num_pages);
  constexpr absl::string_view kCauses[] = {"allocation", "flush", "invalidate"};
  for (std::size_t i = 0; i < evicted_.size(); ++i) {
    evicted_[i] = registry_->AddCounter("quire_kv_cache_evicted_pages_total",
                                        "Cached pages that were evicted, flushed or invalidated.",
                                        With(model, "cause", kCauses[i]));
  }
  tokens_without_state_ = registry_->AddCounter(
      "quire_prefix_cache_stateless_tokens_total",
      "Prompt tokens found in the prefix cache but computed again for lack of a recurrent state.",
      model);
  constexpr absl::string_view kSlots = "quire_kv_state_slots";
  constexpr absl::string_view kSlotsHelp =
      "State slots of recurrent layers by use; the null slot is not counted.";
  slots_live_ = registry_->AddGauge(kSlots, kSlotsHelp, With(model, "state", "live"));
  slots_snapshot_ = registry_->AddGauge(kSlots, kSlotsHelp, With(model, "state", "snapshot"));
  slots_free_ = registry_->AddGauge(kSlots, kSlotsHelp, With(model, "state", "free"));
  probe::Labels info = With(model, "block_size", absl::StrCat(page_size));
  info = With(info, "num_gpu_blocks", absl::StrCat(num_pages));
  registry_
      ->AddGauge("quire_kv_cache_info", "Page size in tokens and number of pages.",
                 With(info, "dtype", kv_dtype))
      .Set(1);
}

void CacheProbe::CountPrefixLookup(std::int32_t prompt_tokens, std::int32_t cached_tokens) {
  const probe::Registry::Update update(registry_);
  queries_.Increment(prompt_tokens);
  hits_.Increment(cached_tokens);
  cached_prompt_tokens_.Increment(cached_tokens);
}

void CacheProbe::Update(const cache::CacheStats& stats, EvictionCause eviction_cause) {
  const probe::Registry::Update update(registry_);
  pages_used_.Set(stats.used_pages);
  pages_cached_.Set(stats.cached_pages);
  pages_free_.Set(stats.free_pages);
  usage_.Set(stats.usable_pages == 0 ? 0
                                     : static_cast<double>(stats.used_pages) / stats.usable_pages);
  evicted_[static_cast<std::size_t>(eviction_cause)].Increment(
      static_cast<double>(stats.evicted_pages - evicted_pages_));
  evicted_pages_ = stats.evicted_pages;
  slots_live_.Set(stats.live_state_slots);
  slots_snapshot_.Set(stats.snapshot_state_slots);
  slots_free_.Set(stats.free_state_slots);
  tokens_without_state_.Increment(
      static_cast<double>(stats.tokens_without_state - counted_without_state_));
  counted_without_state_ = stats.tokens_without_state;
}

}  // namespace quire::engine
