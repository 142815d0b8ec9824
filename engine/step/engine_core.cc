#include "engine/step/engine_core.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/output/token_stream.h"

namespace quire::engine {

EngineCore::EngineCore(const EngineOptions& options, cache::CacheManager* cache,
                       runtime::StepRunner* runner, const Clock* clock, AdmissionLimiter* limiter,
                       EngineProbe* probe)
    : cache_(cache),
      clock_(clock),
      limiter_(limiter),
      probe_(probe),
      scheduler_(options, cache),
      masks_(options.mask_threads, cache->has_states(), clock, probe),
      meter_({.cache = cache,
              .scheduler = &scheduler_,
              .clock = clock,
              .limiter = limiter,
              .probe = probe}),
      lifecycle_(options, {.scheduler = &scheduler_,
                           .masks = &masks_,
                           .meter = &meter_,
                           .output = &output_,
                           .limiter = limiter,
                           .probe = probe,
                           .clock = clock}),
      collector_(options.eos_token_ids, {.cache = cache,
                                         .scheduler = &scheduler_,
                                         .masks = &masks_,
                                         .lifecycle = &lifecycle_,
                                         .output = &output_,
                                         .probe = probe}),
      pipeline_(options.max_steps_in_flight, {.cache = cache,
                                              .runner = runner,
                                              .scheduler = &scheduler_,
                                              .lifecycle = &lifecycle_,
                                              .collector = &collector_,
                                              .masks = &masks_,
                                              .meter = &meter_,
                                              .clock = clock}) {}

void EngineCore::SetHotOptions(const std::shared_ptr<const HotOptions>& options) {
  cache_->SetPartialPageReuse(options->partial_page_reuse);
  lifecycle_.SetSlowClientTimeout(options->slow_client_timeout);
  scheduler_.SetOptions(options);
}

void EngineCore::Handle(Signal& signal, absl::Time now) {
  switch (signal.kind) {
    case Signal::Kind::kArrived:
      lifecycle_.Arrive(signal.request);
      return;
    case Signal::Kind::kPrepared:
      lifecycle_.Prepare(signal, now);
      return;
    case Signal::Kind::kCancel:
      lifecycle_.Cancel(signal, now);
      return;
    case Signal::Kind::kStopMatched:
      lifecycle_.EndStoppedChoice(signal, now);
      return;
    case Signal::Kind::kCall:
      signal.call();
      return;
  }
}

cache::FlushCounts EngineCore::FlushCache() {
  meter_.PublishCacheStats(EvictionCause::kAllocation);
  const cache::FlushCounts counts = cache_->Flush();
  meter_.PublishCacheStats(EvictionCause::kFlush);
  return counts;
}

EngineStats EngineCore::Stats(absl::Time now) const {
  EngineStats stats = meter_.Stats(now);
  stats.steps = collector_.steps();
  stats.chunked_prefills = collector_.chunked_prefills();
  stats.overlap_steps = pipeline_.overlap_steps();
  return stats;
}

PageSnapshot EngineCore::DescribePages() const {
  PageSnapshot snapshot;
  std::map<std::uint32_t, std::int32_t> owner_of_row;
  for (const auto& [arrival, live] : lifecycle_.live()) {
    for (const auto& sequence : live->sequences) {
      if (!sequence->row) continue;
      owner_of_row[sequence->row->value()] =
          PageSnapshot::kFirstOwner + static_cast<std::int32_t>(snapshot.owners.size());
      snapshot.owners.push_back(live->request.id);
    }
  }
  for (const cache::PageUse& use : cache_->DescribePages()) {
    std::int32_t page = PageSnapshot::kFree;
    if (use.kind == cache::PageUse::Kind::kCached) page = PageSnapshot::kCached;
    if (use.kind == cache::PageUse::Kind::kUsed) {
      const auto owner = owner_of_row.find(use.row.value());
      page = use.num_rows > 1                                   ? PageSnapshot::kShared
             : use.num_rows == 1 && owner != owner_of_row.end() ? owner->second
                                                                : PageSnapshot::kWork;
    }
    snapshot.pages.push_back(page);
  }
  return snapshot;
}

IntegrityReport EngineCore::CheckIntegrity() const {
  const absl::Time start = clock_->Now();
  IntegrityReport report;
  const auto note = [&report](absl::string_view name, const absl::Status& status) {
    ++report.num_checks;
    if (!status.ok()) report.failures.push_back(absl::StrCat(name, ": ", status.message()));
  };
  std::vector<const ScheduledRequest*> live;
  for (const auto& [arrival, request] : lifecycle_.live()) live.push_back(request.get());
  note("Scheduler", scheduler_.CheckIntegrity());
  note("CacheManager", cache_->CheckIntegrity());
  note("AdmissionLimiter", limiter_->CheckIntegrity());
  note("RequestLifecycle", lifecycle_.CheckIntegrity());
  note("StepPipeline", pipeline_.CheckIntegrity());
  note("MaskGate", masks_.CheckIntegrity(live));
  note("EngineMeter", meter_.CheckIntegrity(live));
  for (const ScheduledRequest* request : live) {
    note("TokenStream", request->accepted->stream->CheckIntegrity());
  }
  if (!report.failures.empty()) probe_->steps.InvariantViolated();
  report.pause = clock_->Now() - start;
  return report;
}

}  // namespace quire::engine
