#include "base/probe.h"

#include <prometheus/check_names.h>
#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace quire::probe {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

namespace internal {

// One label set of a family. Exactly one of cell, histogram and read provides its value.
struct Series {
  Labels labels;
  Cell cell;
  HistogramCells histogram;
  std::function<double()> read;
};

struct Family {
  MetricType type;
  std::string help;
  std::map<Labels, std::unique_ptr<Series>> series;  // keys sorted by label name
};

}  // namespace internal

using internal::Family;
using internal::HistogramCells;
using internal::Series;

struct Registry::State {
  mutable Mutex mutex;
  std::map<std::string, Family> families ABSL_GUARDED_BY(mutex);

  Series* Find(absl::string_view name, absl::string_view help, const Labels& labels,
               MetricType type);
  std::vector<MetricFamily> Copy() const;
};

namespace {

// True if the name has no upper-case letters, which promtool would report.
bool IsLowerCase(absl::string_view name) {
  return std::none_of(name.begin(), name.end(), absl::ascii_isupper);
}

Labels SortedByName(const Labels& labels) {
  Labels sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    QUIRE_CHECK(prometheus::CheckLabelName(sorted[i].first) && IsLowerCase(sorted[i].first));
    QUIRE_CHECK(sorted[i].first != "le");  // reserved for histograms
    QUIRE_CHECK(i == 0 || sorted[i].first != sorted[i - 1].first);
  }
  return sorted;
}

ClientMetric::Histogram CopyHistogram(const HistogramCells& cells) {
  ClientMetric::Histogram out;
  for (std::size_t i = 0; i <= cells.upper_bounds.size(); ++i) {
    out.sample_count += cells.counts[i].load(std::memory_order_acquire);
    const double border = i < cells.upper_bounds.size() ? cells.upper_bounds[i]
                                                        : std::numeric_limits<double>::infinity();
    out.bucket.push_back({out.sample_count, border});
  }
  out.sample_sum = cells.sum.Load();
  return out;
}

ClientMetric CopySeries(const Series& series, MetricType type) {
  ClientMetric metric;
  for (const auto& [name, value] : series.labels) metric.label.push_back({name, value});
  if (type == MetricType::Histogram) {
    metric.histogram = CopyHistogram(series.histogram);
    return metric;
  }
  const double value = series.read ? series.read() : series.cell.Load();
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

}  // namespace

Series* Registry::State::Find(absl::string_view name, absl::string_view help, const Labels& labels,
                              MetricType type) {
  QUIRE_CHECK(prometheus::CheckMetricName(std::string(name)) && IsLowerCase(name));
  QUIRE_CHECK(!help.empty());
  QUIRE_CHECK((type == MetricType::Counter) == absl::EndsWith(name, "_total"));
  Labels sorted = SortedByName(labels);
  MutexLock lock(&mutex);
  const auto [found, is_new] = families.try_emplace(std::string(name));
  Family& family = found->second;
  if (is_new) {
    family.type = type;
    family.help = std::string(help);
  }
  QUIRE_CHECK(family.type == type && family.help == help);
  std::unique_ptr<Series>& series = family.series[sorted];
  if (series == nullptr) {
    series = std::make_unique<Series>();
    series->labels = std::move(sorted);
  }
  return series.get();
}

void Histogram::Observe(double value, std::uint64_t times) {
  const auto& upper_bounds = cells_->upper_bounds;
  const auto bucket =
      std::lower_bound(upper_bounds.begin(), upper_bounds.end(), value) - upper_bounds.begin();
  cells_->counts[static_cast<std::size_t>(bucket)].fetch_add(times, std::memory_order_acq_rel);
  cells_->sum.Add(value * static_cast<double>(times));
}

Registry::Registry() : state_(std::make_unique<State>()) {}
Registry::~Registry() = default;

Counter Registry::AddCounter(absl::string_view name, absl::string_view help, const Labels& labels) {
  return Counter(&state_->Find(name, help, labels, MetricType::Counter)->cell);
}

Gauge Registry::AddGauge(absl::string_view name, absl::string_view help, const Labels& labels) {
  return Gauge(&state_->Find(name, help, labels, MetricType::Gauge)->cell);
}

Histogram Registry::AddHistogram(absl::string_view name, absl::string_view help,
                                 std::span<const double> upper_bounds, const Labels& labels) {
  QUIRE_CHECK(!upper_bounds.empty() && std::is_sorted(upper_bounds.begin(), upper_bounds.end()));
  QUIRE_CHECK(std::adjacent_find(upper_bounds.begin(), upper_bounds.end()) == upper_bounds.end());
  QUIRE_CHECK(std::isfinite(upper_bounds.front()) && std::isfinite(upper_bounds.back()));
  HistogramCells& cells = state_->Find(name, help, labels, MetricType::Histogram)->histogram;
  MutexLock lock(&state_->mutex);
  if (cells.counts == nullptr) {
    cells.upper_bounds.assign(upper_bounds.begin(), upper_bounds.end());
    cells.counts = std::make_unique<std::atomic<std::uint64_t>[]>(upper_bounds.size() + 1);
  }
  QUIRE_CHECK(std::equal(upper_bounds.begin(), upper_bounds.end(), cells.upper_bounds.begin(),
                         cells.upper_bounds.end()));
  return Histogram(&cells);
}

void Registry::AddCallbackCounter(absl::string_view name, absl::string_view help,
                                  const Labels& labels, std::function<double()> read) {
  Series* const series = state_->Find(name, help, labels, MetricType::Counter);
  MutexLock lock(&state_->mutex);
  series->read = std::move(read);
}

void Registry::AddCallbackGauge(absl::string_view name, absl::string_view help,
                                const Labels& labels, std::function<double()> read) {
  Series* const series = state_->Find(name, help, labels, MetricType::Gauge);
  MutexLock lock(&state_->mutex);
  series->read = std::move(read);
}

Registry::Update::Update(Registry* registry) : registry_(registry) {
  registry_->updates_open_.fetch_add(1);
}

Registry::Update::~Update() {
  registry_->updates_done_.fetch_add(1);
  registry_->updates_open_.fetch_sub(1);
}

std::vector<MetricFamily> Registry::State::Copy() const {
  std::vector<MetricFamily> copy;
  MutexLock lock(&mutex);
  for (const auto& [name, family] : families) {
    MetricFamily out{name, family.help, family.type, {}};
    for (const auto& [labels, series] : family.series) {
      // Skips a histogram that another thread is adding, which has no buckets yet.
      if (family.type == MetricType::Histogram && !series->histogram.counts) continue;
      out.metric.push_back(CopySeries(*series, family.type));
    }
    copy.push_back(std::move(out));
  }
  return copy;
}

absl::StatusOr<std::string> Registry::Expose() const {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(1);
  do {
    // A copy is consistent if no update was open before or after copying, and none ended while
    // copying.
    const std::uint64_t done_before = updates_done_.load();
    if (updates_open_.load() != 0) {
      std::this_thread::yield();
      continue;
    }
    const std::vector<MetricFamily> copy = state_->Copy();
    if (updates_open_.load() != 0 || updates_done_.load() != done_before) continue;
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, copy);
    return std::move(text).str();
  } while (MonotonicNow() < deadline);
  return absl::UnavailableError(
      "every copy of the metrics for 1 s overlapped with an update; scrape again");
}

}  // namespace quire::probe
