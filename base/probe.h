#pragma once

// Metrics: handles that the layers increment, and a registry that owns the values and prints them
// in the Prometheus text format.
//
// prometheus-cpp 1.0 checks names and writes the text. Its registry is not used:
//   - Its histograms take a lock, but the step path must not wait for locks.
//   - Its histograms observe only one value at a time.
//   - It has no callback metrics.
//   - If two metrics change together, a scrape can see only one of the changes (Registry::Update).
//   - It ignores a second, different help text of a name.
//
//   probe::Registry registry;
//   probe::Counter steps = registry.AddCounter("quire_engine_steps_total", "Steps run.",
//                                              {{"kind", "decode"}});
//   steps.Increment();

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::probe {

using Labels = std::vector<std::pair<std::string, std::string>>;

namespace internal {

// A number that threads change and scrapes read. Stores have release order and loads have acquire
// order. A scrape that sees a value stored inside a Registry::Update therefore also sees that this
// update has begun.
class Cell {
 public:
  double Load() const { return value_.load(std::memory_order_acquire); }
  void Store(double value) { value_.store(value, std::memory_order_release); }
  void Add(double by) {
    double old = value_.load(std::memory_order_relaxed);
    while (!value_.compare_exchange_weak(old, old + by, std::memory_order_acq_rel,
                                         std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<double> value_{0};
};

struct HistogramCells {
  std::vector<double> upper_bounds;  // ascending upper bounds of the buckets, without +Inf
  std::unique_ptr<std::atomic<std::uint64_t>[]>
      counts;  // [upper_bounds.size() + 1], not cumulative
  Cell sum;
};

struct Family;

}  // namespace internal

// The three handles are small, copyable, and valid as long as their registry. All methods are
// thread-safe, lock-free and do not allocate. A default-constructed handle must not be used.
class Counter {
 public:
  Counter() = default;
  // REQUIRES: by >= 0.
  void Increment(double by = 1) { cell_->Add(by); }
  double value() const { return cell_->Load(); }

 private:
  friend class Registry;
  explicit Counter(internal::Cell* cell) : cell_(cell) {}
  internal::Cell* cell_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value) { cell_->Store(value); }
  void Add(double by) { cell_->Add(by); }
  double value() const { return cell_->Load(); }

 private:
  friend class Registry;
  explicit Gauge(internal::Cell* cell) : cell_(cell) {}
  internal::Cell* cell_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  // Counts `value` in the first bucket whose upper bound is at least `value`.
  void Observe(double value, std::uint64_t times = 1);

 private:
  friend class Registry;
  explicit Histogram(internal::HistogramCells* cells) : cells_(cells) {}
  internal::HistogramCells* cells_ = nullptr;
};

// Owns the metrics of a process.
//
// Place:      created by the daemon and passed to engine, cache and server.
// Invariants: a name has one family. Adding the same name, type and labels again returns the same
//             handle. A different type or help text fails a QUIRE_CHECK, as does a name or label
//             that promtool would reject.
// Threads:    thread-safe. Add methods lock and must not run on the step path.
// Lifetime:   outlives its handles. The objects that callbacks use must outlive the last call of
//             Expose.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // REQUIRES: `name` ends in _total.
  Counter AddCounter(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Gauge AddGauge(absl::string_view name, absl::string_view help, const Labels& labels = {});
  // `upper_bounds` are those of the buckets. REQUIRES: there is at least one; they are ascending,
  // finite, and the same for every label set of `name`.
  Histogram AddHistogram(absl::string_view name, absl::string_view help,
                         std::span<const double> upper_bounds, const Labels& labels = {});
  // Adds a metric whose value `read` returns at each scrape, on the scraping thread. The callback
  // must not use the registry.
  void AddCallbackCounter(absl::string_view name, absl::string_view help, const Labels& labels,
                          std::function<double()> read);
  void AddCallbackGauge(absl::string_view name, absl::string_view help, const Labels& labels,
                        std::function<double()> read);

  // A scrape sees either all changes made in the scope of an Update or none of them. Scrapes wait
  // for open updates; updates never wait. The scope must only store values.
  class Update {
   public:
    explicit Update(Registry* registry);
    ~Update();
    Update(const Update&) = delete;
    Update& operator=(const Update&) = delete;

   private:
    Registry* const registry_;
  };

  // Returns every family in the Prometheus text format 0.0.4, sorted by name. Returns UNAVAILABLE
  // if, for one second, an update overlapped with every attempt to copy the metrics.
  absl::StatusOr<std::string> Expose() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::atomic<std::uint64_t> updates_open_{0};
  std::atomic<std::uint64_t> updates_done_{0};
};

}  // namespace quire::probe
