#include "engine/constraint/constraint_compiler.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "base/thread_name.h"
#include "text/tools/tool_format.h"

namespace quire::engine {

namespace {

using Result = ConstraintCompiler::Result;
using Done = ConstraintCompiler::Done;
using Ticket = ConstraintCompiler::Ticket;
using Used = ConstraintCompiler::Used;

// A build that takes longer stands back behind the threads that make the next tokens of others.
// A schema of a few keys takes 25 ms of a processor's time with a vocabulary of 128 256 tokens.
constexpr absl::Duration kUrgentTime = absl::Milliseconds(50);
// Those builds that do not stand back have this share of the time altogether, and so much of it at
// once: of a stream of builds nearly all stand back from their beginning. A hundredth, since those
// that make tokens wait for each other, and the 99th percentile of their gaps shall stay.
constexpr double kUrgentShare = 0.01;
constexpr absl::Duration kMaxUrgentTime = absl::Milliseconds(100);
constexpr absl::Duration kMinUrgentTime = absl::Milliseconds(1);
// By the clock a build may take so many times what it may take of a processor, for those that have
// to share one.
constexpr int kLongestShare = 10;
// Between two looks at a build that is about to be late.
constexpr absl::Duration kWatchPause = absl::Milliseconds(5);
// Before another thread is asked for where the system gave none.
constexpr absl::Duration kThreadRetry = absl::Seconds(1);

constexpr double kCompileBorders[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                      0.01, 0.02, 0.05, 0.1,  0.2,  0.5,  1,    2,    5};

bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// The text without the white space that stands beside a bracket, a comma, a colon or an end: what
// JSON has between two tokens. Texts that become equal are the same document, or none of them is.
std::string WithoutJsonSpace(absl::string_view text) {
  constexpr absl::string_view kStructure = "{}[],:";
  const auto is_structure = [&](char c) { return absl::StrContains(kStructure, c); };
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!in_string && IsJsonSpace(text[i])) {
      std::size_t next = i;
      while (next < text.size() && IsJsonSpace(text[next])) ++next;
      const bool is_between = out.empty() || is_structure(out.back()) || next == text.size() ||
                              is_structure(text[next]);
      if (!is_between) absl::StrAppend(&out, text.substr(i, next - i));
      i = next - 1;
      continue;
    }
    out += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text[++i];
    } else if (text[i] == '"') {
      in_string = !in_string;
    }
  }
  return out;
}

// Distinct for specs that ask for different languages: every string is preceded by its length.
std::string KeyOf(const ConstraintSpec& spec) {
  std::string key =
      absl::StrCat(static_cast<int>(spec.kind), " ", static_cast<int>(spec.whitespace), " ",
                   static_cast<int>(spec.unenforced), " ", spec.at_least_one_tag,
                   spec.stop_after_first_tag, " ");
  const auto add = [&](const std::string& text) { absl::StrAppend(&key, text.size(), ":", text); };
  const auto add_content = [&](ConstraintKind kind, const std::string& text) {
    add(kind == ConstraintKind::kJsonSchema ? WithoutJsonSpace(text) : text);
  };
  add_content(spec.kind, spec.text);
  absl::StrAppend(&key, spec.choices.size(), "c");
  for (const std::string& choice : spec.choices) add(choice);
  absl::StrAppend(&key, spec.tags.size(), "t");
  for (const ConstraintTag& tag : spec.tags) {
    absl::StrAppend(&key, static_cast<int>(tag.kind), " ");
    for (const auto* text : {&tag.begin, &tag.end, &tag.field}) add(*text);
    add_content(tag.kind, tag.text);
  }
  absl::StrAppend(&key, spec.triggers.size(), "g");
  for (const std::string& trigger : spec.triggers) add(trigger);
  if (spec.tool_format != nullptr) {
    absl::StrAppend(&key, spec.tool_format->name, " ", spec.opens_reasoning,
                    spec.calls_are_optional, spec.starts_after_reasoning);
  }
  return key;
}

absl::Status TooManyBuilds(absl::string_view why) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("constraint: ", why)),
                    Reason::kQueueFull, {}, absl::Seconds(1));
}

absl::Status TooLate(absl::Duration limit) {
  return BadConstraint("compile",
                       absl::StrCat("constraint takes longer to compile than ",
                                    absl::FormatDuration(limit), " (structured.compile_timeout)"));
}

absl::Status TooBusy(absl::Duration took, absl::Duration used) {
  return TooManyBuilds(absl::StrCat("within ", absl::FormatDuration(took),
                                    " the processors had no more than ", absl::FormatDuration(used),
                                    " for compiling it"));
}

}  // namespace

class ConstraintCompiler::Impl {
 public:
  Impl(const ConstraintOptions& options, Build build, probe::Registry* metrics, Used used)
      : build_(std::move(build)), used_(std::move(used)), options_(options) {
    if (metrics == nullptr) {
      own_registry_ = std::make_unique<probe::Registry>();
      metrics = own_registry_.get();
    }
    AddMetrics(*metrics);
    MutexLock lock(&mutex_);
    for (; active_workers_ < options.compile_threads; ++active_workers_) StartWorker();
    watcher_ = std::thread([this] { Watch(); });
  }

  ~Impl() {
    std::vector<Done> refused;
    std::map<int, std::thread> workers;
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      for (auto& [key, job] : jobs_) {
        TakeWaiters(*job, &refused);
        job->stop.request_stop();
      }
      waiting_.clear();
      work_.NotifyAll();
      watch_.NotifyAll();
    }
    for (Done& done : refused) {
      done(WithReason(absl::UnavailableError("the server is shutting down"),
                      Reason::kServerShutdown));
    }
    watcher_.join();
    {
      MutexLock lock(&mutex_);
      workers.swap(workers_);  // no thread starts any more
    }
    for (auto& [id, worker] : workers) worker.join();
  }

  Ticket Compile(ConstraintSpec spec, Done done);
  bool Cancel(Ticket ticket);
  void SetHotOptions(const HotConstraintOptions& options);
  ConstraintCounts GetCounts() const;
  absl::Status CheckIntegrity() const;

 private:
  enum class JobState : std::uint8_t { kWaiting, kRunning, kLate };
  // Of a thread, behind a build. One that stands back stays so: without a privilege no thread is
  // given its priority again. So it ends, and the watch, whose own priority the next one inherits,
  // starts that in its place.
  enum class Next : std::uint8_t { kGoOn, kEnd, kEndAndReplace };
  // A build that waits or runs, and those who wait for it. A late one is in jobs_ no more.
  struct Job {
    std::string key;
    ConstraintSpec spec;
    JobState state = JobState::kWaiting;
    std::stop_source stop;
    absl::Time started;
    std::int64_t thread = 0;          // that builds it
    absl::Duration used_before = {};  // by the thread when it started
    absl::Duration urgent_time = {};  // before it stands back
    bool stands_back = false;
    std::vector<std::pair<Ticket, Done>> waiters;
  };
  // A constraint, or why there is none.
  struct Cached {
    std::string key;
    Result result;
    std::int64_t bytes = 0;
  };

  void AddMetrics(probe::Registry& metrics);
  void Work(int id);
  // The calling thread is to build it.
  void Begin(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs the job's build and answers those who wait.
  Next RunJob(const std::shared_ptr<Job>& job);
  Next AfterLate(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch();
  absl::Time GiveUpOnLate(std::vector<std::pair<Done, absl::Status>>* answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why a running build is late. OK: it is not yet, and cannot be before `next`.
  absl::Status LateWhy(const Job& job, absl::Time* next) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time LetLongOnesStandBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes out the threads that have ended, for the caller to join, and starts those that take their
  // places. Infinite, or when to try again where the system gave no thread.
  absl::Time ReplaceEnded(std::vector<std::thread>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeWaiters(Job& job, std::vector<Done>* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(std::string key, const Result& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is known of the spec before anything is built.
  std::optional<Result> Answer(const ConstraintSpec& spec, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Build build_;
  const Used used_;
  std::unique_ptr<probe::Registry> own_registry_;
  probe::Histogram compile_seconds_;
  probe::Counter hits_, misses_, errors_, late_total_;
  probe::Gauge cache_bytes_, late_gauge_;

  mutable Mutex mutex_;
  CondVar work_, watch_;
  ConstraintOptions options_ ABSL_GUARDED_BY(mutex_);
  // What builds may have before they stand back, and since when.
  absl::Duration urgent_time_ ABSL_GUARDED_BY(mutex_) = kMaxUrgentTime;
  absl::Time urgent_time_as_of_ ABSL_GUARDED_BY(mutex_) = MonotonicNow();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Job>> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Job*> tickets_ ABSL_GUARDED_BY(mutex_);
  Ticket last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Cached> cache_ ABSL_GUARDED_BY(mutex_);  // the most recently used first
  absl::flat_hash_map<std::string, std::list<Cached>::iterator> cached_ ABSL_GUARDED_BY(mutex_);
  std::int64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::thread> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> ended_workers_ ABSL_GUARDED_BY(mutex_);
  std::int32_t free_places_ ABSL_GUARDED_BY(mutex_) = 0;  // of workers that ended, for others
  int last_worker_ ABSL_GUARDED_BY(mutex_) = 0;
  // Those whose build is not late, and free places.
  std::int32_t active_workers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int32_t late_builds_ ABSL_GUARDED_BY(mutex_) = 0;  // that still run
  std::thread watcher_;
};

void ConstraintCompiler::Impl::AddMetrics(probe::Registry& metrics) {
  constexpr char kCache[] = "quire_constraint_cache_total";
  constexpr char kHelp[] = "Constraints asked for, by what was found of them.";
  compile_seconds_ = metrics.AddHistogram("quire_constraint_compile_seconds",
                                          "Time to compile a constraint.", kCompileBorders);
  hits_ = metrics.AddCounter(kCache, kHelp, {{"result", "hit"}});
  misses_ = metrics.AddCounter(kCache, kHelp, {{"result", "miss"}});
  errors_ = metrics.AddCounter(kCache, kHelp, {{"result", "error"}});
  late_total_ = metrics.AddCounter("quire_constraint_late_total",
                                   "Constraints given up on after structured.compile_timeout.");
  cache_bytes_ =
      metrics.AddGauge("quire_constraint_cache_bytes", "Memory of the constraints that are kept.");
  late_gauge_ = metrics.AddGauge("quire_constraint_late_builds",
                                 "Constraints that were given up on and still compile.");
}

std::optional<Result> ConstraintCompiler::Impl::Answer(const ConstraintSpec& spec,
                                                       const std::string& key) {
  if (const std::int64_t bytes = spec.InputBytes(); bytes > options_.max_schema_bytes) {
    errors_.Increment();
    return BadConstraint("compile",
                         absl::StrCat("constraint has ", bytes, " bytes, the limit is ",
                                      options_.max_schema_bytes, " (structured.max_schema_bytes)"));
  }
  if (const auto found = cached_.find(key); found != cached_.end()) {
    cache_.splice(cache_.begin(), cache_, found->second);
    hits_.Increment();
    return found->second->result;
  }
  return std::nullopt;
}

Ticket ConstraintCompiler::Impl::Compile(ConstraintSpec spec, Done done) {
  std::string key = KeyOf(spec);
  std::optional<Result> answer;
  {
    MutexLock lock(&mutex_);
    answer = Answer(spec, key);
    if (!answer && stopping_) {
      answer = WithReason(absl::UnavailableError("the server is shutting down"),
                          Reason::kServerShutdown);
    }
    auto found = jobs_.find(key);
    if (!answer && found == jobs_.end()) {
      if (active_workers_ == 0) {
        answer = TooManyBuilds(absl::StrCat(late_builds_, " builds are late, none else can run"));
      } else if (waiting_.size() >= static_cast<std::size_t>(options_.max_waiting)) {
        answer = TooManyBuilds(absl::StrCat(waiting_.size(), " builds wait already"));
      } else {
        auto job = std::make_shared<Job>(
            Job{.key = key, .spec = std::move(spec), .stop = {}, .started = {}, .waiters = {}});
        found = jobs_.emplace(std::move(key), job).first;
        waiting_.push_back(std::move(job));
        work_.NotifyOne();
        watch_.NotifyOne();  // another build may be late now
      }
    }
    if (!answer) {
      misses_.Increment();
      auto& waiters = found->second->waiters;
      if (waiters.size() == waiters.capacity()) waiters.reserve(2 * waiters.size() + 1);
      tickets_.emplace(++last_ticket_, found->second.get());
      waiters.emplace_back(last_ticket_, std::move(done));
      return last_ticket_;
    }
  }
  done(*std::move(answer));
  return 0;
}

bool ConstraintCompiler::Impl::Cancel(Ticket ticket) {
  Done done;  // destroyed after the lock is free
  MutexLock lock(&mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return false;
  Job& job = *found->second;
  tickets_.erase(found);
  const auto waiter = std::find_if(job.waiters.begin(), job.waiters.end(),
                                   [&](const auto& w) { return w.first == ticket; });
  done = std::move(waiter->second);
  job.waiters.erase(waiter);
  if (job.waiters.empty() && job.state == JobState::kWaiting) {
    std::erase_if(waiting_, [&](const auto& other) { return other.get() == &job; });
    jobs_.erase(jobs_.find(job.key));
  }
  return true;
}

void ConstraintCompiler::Impl::StartWorker() {
  const int id = ++last_worker_;
  workers_.emplace(id, [this, id] { Work(id); });
}

void ConstraintCompiler::Impl::Work(int id) {
  SetThreadName("constraint");
  for (;;) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) work_.Wait(&mutex_);
      if (stopping_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      Begin(*job);
      watch_.NotifyOne();
    }
    const Next next = RunJob(job);
    if (next == Next::kGoOn) continue;
    MutexLock lock(&mutex_);
    ended_workers_.push_back(id);
    if (next == Next::kEndAndReplace) ++free_places_;
    watch_.NotifyOne();
    return;
  }
}

void ConstraintCompiler::Impl::Begin(Job& job) {
  job.state = JobState::kRunning;
  job.started = MonotonicNow();
  job.thread = ThisThread();
  job.used_before = used_(job.thread);
  const absl::Duration since = job.started - std::exchange(urgent_time_as_of_, job.started);
  urgent_time_ = std::min(kMaxUrgentTime, urgent_time_ + kUrgentShare * since);
  if (urgent_time_ < kMinUrgentTime) {
    job.stands_back = LowerPriority(job.thread);
    return;
  }
  job.urgent_time = std::min(kUrgentTime, urgent_time_);
  urgent_time_ -= job.urgent_time;
}

ConstraintCompiler::Impl::Next ConstraintCompiler::Impl::RunJob(const std::shared_ptr<Job>& job) {
  Result result = build_(job->spec, job->stop.get_token());
  std::vector<Done> waiters;
  {
    MutexLock lock(&mutex_);
    const absl::Duration took = MonotonicNow() - job->started;
    compile_seconds_.Observe(absl::ToDoubleSeconds(took));
    urgent_time_ += std::max(absl::ZeroDuration(), job->urgent_time - took);
    if (job->state == JobState::kLate) return AfterLate(*job);
    if (result.ok() && (*result)->MemoryBytes() > options_.max_compiled_bytes) {
      result = BadConstraint("compile",
                             absl::StrCat("compiled constraint has ", (*result)->MemoryBytes(),
                                          " bytes, the limit is ", options_.max_compiled_bytes,
                                          " (structured.max_compiled_bytes)"));
    }
    TakeWaiters(*job, &waiters);
    jobs_.erase(job->key);
    if (result.ok()) {
      Keep(job->key, result);
    } else if (!stopping_) {
      errors_.Increment();
    }
  }
  for (Done& done : waiters) done(result);
  return job->stands_back ? Next::kEndAndReplace : Next::kGoOn;
}

ConstraintCompiler::Impl::Next ConstraintCompiler::Impl::AfterLate(const Job& job) {
  late_gauge_.Set(--late_builds_);
  if (stopping_ || active_workers_ >= options_.compile_threads) return Next::kEnd;
  ++active_workers_;
  return job.stands_back ? Next::kEndAndReplace : Next::kGoOn;
}

void ConstraintCompiler::Impl::Watch() {
  SetThreadName("constraint-time");
  for (;;) {
    std::vector<std::pair<Done, absl::Status>> answers;
    std::vector<std::thread> ended;
    {
      MutexLock lock(&mutex_);
      const absl::Time next =
          std::min({GiveUpOnLate(&answers), LetLongOnesStandBack(), ReplaceEnded(&ended)});
      if (answers.empty() && ended.empty()) {
        if (stopping_) return;
        watch_.WaitUntil(&mutex_, next);
      }
    }
    for (std::thread& worker : ended) worker.join();
    for (auto& [done, status] : answers) done(std::move(status));
  }
}

absl::Status ConstraintCompiler::Impl::LateWhy(const Job& job, absl::Time* next) const {
  const absl::Duration limit = options_.compile_timeout;
  const absl::Time now = MonotonicNow();
  const absl::Duration took = now - job.started;
  // The clock of the system and that of a processor may differ by a little.
  const absl::Duration used = std::min(took, used_(job.thread) - job.used_before);
  if (used >= limit) return TooLate(limit);
  // Those that wait for its place wait no longer than if it had a processor for itself.
  const bool is_wanted = jobs_.size() > static_cast<std::size_t>(active_workers_);
  const absl::Duration most = is_wanted ? limit : kLongestShare * limit;
  if (took >= most) return TooBusy(took, used);
  const absl::Duration left = std::min(limit - used, most - took);
  *next = std::min(*next, now + std::max(left, kWatchPause));
  return absl::OkStatus();
}

// The time at which the next running build may be late.
absl::Time ConstraintCompiler::Impl::GiveUpOnLate(
    std::vector<std::pair<Done, absl::Status>>* answers) {
  absl::Time next = absl::InfiniteFuture();
  std::vector<std::pair<std::shared_ptr<Job>, absl::Status>> late;
  for (const auto& [key, job] : jobs_) {
    if (job->state != JobState::kRunning) continue;
    absl::Status why = LateWhy(*job, &next);
    if (!why.ok()) late.emplace_back(job, std::move(why));
  }
  const auto answer = [&](Job& job, const absl::Status& status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::vector<Done> waiters;
    TakeWaiters(job, &waiters);
    for (Done& done : waiters) answers->emplace_back(std::move(done), status);
    errors_.Increment();
    jobs_.erase(jobs_.find(job.key));
  };
  for (const auto& [job, status] : late) {
    job->state = JobState::kLate;
    job->stop.request_stop();
    late_gauge_.Set(++late_builds_);
    --active_workers_;
    late_total_.Increment();
    // TooLate says something of the constraint, TooBusy of the machine.
    if (absl::IsInvalidArgument(status)) Keep(job->key, status);
    answer(*job, status);
    if (!stopping_ && late_builds_ <= options_.max_late_builds) {
      ++active_workers_;
      ++free_places_;
    }
  }
  if (active_workers_ == 0) {
    for (const auto& job : std::exchange(waiting_, {})) {
      answer(*job,
             TooManyBuilds(absl::StrCat(late_builds_, " builds are late, none else can run")));
    }
  }
  return next;
}

// The time at which the next running build will have to.
absl::Time ConstraintCompiler::Impl::LetLongOnesStandBack() {
  absl::Time next = absl::InfiniteFuture();
  const absl::Time now = MonotonicNow();
  for (const auto& [key, job] : jobs_) {
    if (job->state != JobState::kRunning || job->stands_back) continue;
    if (job->started + job->urgent_time <= now) {
      job->stands_back = LowerPriority(job->thread);
    } else {
      next = std::min(next, job->started + job->urgent_time);
    }
  }
  return next;
}

absl::Time ConstraintCompiler::Impl::ReplaceEnded(std::vector<std::thread>* ended) {
  for (const int id : std::exchange(ended_workers_, {})) {
    ended->push_back(std::move(workers_.at(id)));
    workers_.erase(id);
  }
  while (free_places_ > 0 && !stopping_) {
    try {
      StartWorker();
    } catch (const std::exception&) {  // no thread could be started
      return MonotonicNow() + kThreadRetry;
    }
    --free_places_;
  }
  return absl::InfiniteFuture();
}

void ConstraintCompiler::Impl::TakeWaiters(Job& job, std::vector<Done>* done) {
  for (auto& [ticket, waiter] : job.waiters) {
    tickets_.erase(ticket);
    done->push_back(std::move(waiter));
  }
  job.waiters.clear();
}

void ConstraintCompiler::Impl::Keep(std::string key, const Result& result) {
  const std::int64_t bytes = static_cast<std::int64_t>(2 * key.size() + sizeof(Cached)) +
                             (result.ok() ? (*result)->MemoryBytes() : 0);
  cache_.push_front(Cached{.key = key, .result = result, .bytes = bytes});
  QUIRE_CHECK(cached_.emplace(std::move(key), cache_.begin()).second);
  cached_bytes_ += bytes;
  Evict();
}

void ConstraintCompiler::Impl::Evict() {
  while (cached_bytes_ > options_.cache_bytes) {
    cached_bytes_ -= cache_.back().bytes;
    cached_.erase(cache_.back().key);
    cache_.pop_back();
  }
  cache_bytes_.Set(static_cast<double>(cached_bytes_));
}

void ConstraintCompiler::Impl::SetHotOptions(const HotConstraintOptions& options) {
  MutexLock lock(&mutex_);
  static_cast<HotConstraintOptions&>(options_) = options;
  // What took too long may have the time now.
  for (auto entry = cache_.begin(); entry != cache_.end();) {
    if (entry->result.ok()) {
      ++entry;
      continue;
    }
    cached_bytes_ -= entry->bytes;
    cached_.erase(entry->key);
    entry = cache_.erase(entry);
  }
  Evict();
  watch_.NotifyOne();
}

ConstraintCounts ConstraintCompiler::Impl::GetCounts() const {
  MutexLock lock(&mutex_);
  return {.hits = static_cast<std::int64_t>(hits_.value()),
          .misses = static_cast<std::int64_t>(misses_.value()),
          .errors = static_cast<std::int64_t>(errors_.value()),
          .late = static_cast<std::int64_t>(late_total_.value()),
          .running_late = late_builds_,
          .waiting = static_cast<std::int64_t>(waiting_.size()),
          .cached_bytes = cached_bytes_,
          .cached = static_cast<std::int64_t>(cache_.size())};
}

absl::Status ConstraintCompiler::Impl::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  std::int64_t bytes = 0;
  for (const Cached& entry : cache_) {
    bytes += entry.bytes;
    const auto found = cached_.find(entry.key);
    if (found == cached_.end() || &*found->second != &entry) {
      return absl::InternalError("a kept constraint is not found by its key");
    }
  }
  if (bytes != cached_bytes_ || cache_.size() != cached_.size() || bytes > options_.cache_bytes) {
    return absl::InternalError(
        absl::StrCat("kept constraints have ", bytes, " bytes, counted are ", cached_bytes_));
  }
  std::size_t waiters = 0, waiting = 0;
  for (const auto& [key, job] : jobs_) {
    waiting += job->state == JobState::kWaiting;
    waiters += job->waiters.size();
    if (key != job->key || job->state == JobState::kLate || cached_.contains(key)) {
      return absl::InternalError("a build is not where its state says");
    }
    for (const auto& [ticket, done] : job->waiters) {
      const auto found = tickets_.find(ticket);
      if (found == tickets_.end() || found->second != job.get()) {
        return absl::InternalError("a ticket is not that of its build");
      }
    }
  }
  if (waiters != tickets_.size() || waiting != waiting_.size()) {
    return absl::InternalError("tickets or waiting builds do not add up");
  }
  if (free_places_ < 0 || active_workers_ < free_places_ ||
      active_workers_ > options_.compile_threads) {
    return absl::InternalError(absl::StrCat(active_workers_, " threads compile, of ",
                                            options_.compile_threads, ", and ", free_places_,
                                            " are to be started"));
  }
  return absl::OkStatus();
}

ConstraintCompiler::ConstraintCompiler(const ConstraintOptions& options, Build build,
                                       probe::Registry* metrics, Used used)
    : impl_(std::make_unique<Impl>(options, std::move(build), metrics, std::move(used))) {}

ConstraintCompiler::~ConstraintCompiler() = default;

Ticket ConstraintCompiler::Compile(ConstraintSpec spec, Done done) {
  return impl_->Compile(std::move(spec), std::move(done));
}

bool ConstraintCompiler::Cancel(Ticket ticket) {
  return impl_->Cancel(ticket);
}

void ConstraintCompiler::SetHotOptions(const HotConstraintOptions& options) {
  impl_->SetHotOptions(options);
}

ConstraintCounts ConstraintCompiler::GetCounts() const {
  return impl_->GetCounts();
}

absl::Status ConstraintCompiler::CheckIntegrity() const {
  return impl_->CheckIntegrity();
}

}  // namespace quire::engine
