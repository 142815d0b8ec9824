#include "engine/constraint/constraint_compiler.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/thread_name.h"
#include "base/thread_priority.h"
#include "text/tools/tool_format.h"

namespace quire::engine {

namespace {

using Result = ConstraintCompiler::Result;
using Done = ConstraintCompiler::Done;
using Ticket = ConstraintCompiler::Ticket;

constexpr double kCompileBounds[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                     0.01, 0.02, 0.05, 0.1,  0.2,  0.5,  1,    2,    5};

bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Removes the white space between JSON tokens: next to a bracket, a comma, a colon or an end of the
// text. If two texts become equal, they are the same document or both are invalid.
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

// Returns the cache key of the spec. Specs that allow different outputs have different keys. Every
// string is preceded by its length.
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

absl::Status ShutdownError() {
  return WithReason(absl::UnavailableError("the server is shutting down"), Reason::kServerShutdown);
}

}  // namespace

ConstraintCompiler::ConstraintCompiler(const ConstraintOptions& options, BuildFunction build,
                                       probe::Registry* metrics)
    : build_(std::move(build)), options_(options) {
  if (metrics == nullptr) {
    own_registry_ = std::make_unique<probe::Registry>();
    metrics = own_registry_.get();
  }
  AddMetrics(*metrics);
  for (std::int32_t i = 0; i < options.compile_threads; ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

ConstraintCompiler::~ConstraintCompiler() {
  std::vector<Done> rejected;
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    for (auto& [key, job] : jobs_) {
      TakeWaiters(*job, &rejected);
      job->stop.request_stop();
    }
    waiting_jobs_.clear();
    job_added_.NotifyAll();
  }
  for (Done& done : rejected) done(ShutdownError());
  for (std::thread& worker : workers_) worker.join();
}

void ConstraintCompiler::AddMetrics(probe::Registry& metrics) {
  constexpr char kCache[] = "quire_constraint_cache_total";
  constexpr char kHelp[] = "Constraint cache lookups, by result.";
  compile_seconds_ = metrics.AddHistogram("quire_constraint_compile_seconds",
                                          "Time to compile a constraint.", kCompileBounds);
  hits_ = metrics.AddCounter(kCache, kHelp, {{"result", "hit"}});
  misses_ = metrics.AddCounter(kCache, kHelp, {{"result", "miss"}});
  errors_ = metrics.AddCounter(kCache, kHelp, {{"result", "error"}});
  cache_bytes_ =
      metrics.AddGauge("quire_constraint_cache_bytes", "Memory of the cached constraints.");
}

std::optional<Result> ConstraintCompiler::Answer(const ConstraintSpec& spec,
                                                 const std::string& key) {
  if (const std::int64_t bytes = spec.InputBytes(); bytes > options_.max_schema_bytes) {
    errors_.Increment();
    return BadConstraint("compile",
                         absl::StrCat("constraint has ", bytes, " bytes, the limit is ",
                                      options_.max_schema_bytes, " (structured.max_schema_bytes)"));
  }
  if (const auto found = cache_index_.find(key); found != cache_index_.end()) {
    cache_.splice(cache_.begin(), cache_, found->second);
    hits_.Increment();
    return found->second->constraint;
  }
  return std::nullopt;
}

Ticket ConstraintCompiler::Compile(ConstraintSpec spec, Done done) {
  std::string key = KeyOf(spec);
  std::optional<Result> answer;
  {
    MutexLock lock(&mutex_);
    answer = Answer(spec, key);
    if (!answer && is_stopping_) answer = ShutdownError();
    auto found = jobs_.find(key);
    if (!answer && found == jobs_.end()) {
      if (waiting_jobs_.size() >= static_cast<std::size_t>(options_.max_waiting_builds)) {
        answer = WithReason(
            absl::ResourceExhaustedError(absl::StrCat("constraint: ", waiting_jobs_.size(),
                                                      " builds are already waiting; retry later")),
            Reason::kQueueFull, {}, absl::Seconds(1));
      } else {
        auto job = std::make_shared<Job>(
            Job{.key = key, .spec = std::move(spec), .stop = {}, .waiters = {}});
        found = jobs_.emplace(std::move(key), job).first;
        waiting_jobs_.push_back(std::move(job));
        job_added_.NotifyOne();
      }
    }
    if (!answer) {
      misses_.Increment();
      tickets_.emplace(++last_ticket_, found->second.get());
      found->second->waiters.emplace_back(last_ticket_, std::move(done));
      return last_ticket_;
    }
  }
  done(*std::move(answer));
  return 0;
}

bool ConstraintCompiler::Cancel(Ticket ticket) {
  Done done;  // destroyed after the lock is released
  MutexLock lock(&mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return false;
  Job& job = *found->second;
  tickets_.erase(found);
  const auto waiter = std::find_if(job.waiters.begin(), job.waiters.end(),
                                   [&](const auto& w) { return w.first == ticket; });
  done = std::move(waiter->second);
  job.waiters.erase(waiter);
  // A running build completes, so that the cache has its constraint when the client retries.
  if (job.waiters.empty() && !job.is_running) {
    std::erase_if(waiting_jobs_, [&](const auto& other) { return other.get() == &job; });
    jobs_.erase(jobs_.find(job.key));
  }
  return true;
}

// Runs builds at low priority, so that they do not delay the threads that compute tokens.
void ConstraintCompiler::Work() {
  SetThreadName("constraint");
  LowerPriority();
  for (;;) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(&mutex_);
      while (waiting_jobs_.empty() && !is_stopping_) job_added_.Wait(&mutex_);
      if (is_stopping_) return;
      job = std::move(waiting_jobs_.front());
      waiting_jobs_.pop_front();
      job->is_running = true;
    }
    RunJob(job);
  }
}

void ConstraintCompiler::RunJob(const std::shared_ptr<Job>& job) {
  const absl::Time start = MonotonicNow();
  Result result = build_(job->spec, job->stop.get_token());
  std::vector<Done> waiters;
  {
    MutexLock lock(&mutex_);
    compile_seconds_.Observe(absl::ToDoubleSeconds(MonotonicNow() - start));
    if (result.ok() && (*result)->MemoryBytes() > options_.max_compiled_bytes) {
      result = BadConstraint("compile",
                             absl::StrCat("compiled constraint has ", (*result)->MemoryBytes(),
                                          " bytes, the limit is ", options_.max_compiled_bytes,
                                          " (structured.max_compiled_bytes)"));
    }
    TakeWaiters(*job, &waiters);
    jobs_.erase(job->key);
    if (result.ok()) {
      AddToCache(job->key, *result);
    } else if (!is_stopping_) {
      errors_.Increment();
    }
  }
  for (Done& done : waiters) done(result);
}

void ConstraintCompiler::TakeWaiters(Job& job, std::vector<Done>* done) {
  for (auto& [ticket, waiter] : job.waiters) {
    tickets_.erase(ticket);
    done->push_back(std::move(waiter));
  }
  job.waiters.clear();
}

void ConstraintCompiler::AddToCache(std::string key,
                                    std::shared_ptr<const CompiledConstraint> constraint) {
  const std::int64_t bytes =
      static_cast<std::int64_t>(2 * key.size() + sizeof(Cached)) + constraint->MemoryBytes();
  cache_.push_front(Cached{.key = key, .constraint = std::move(constraint), .bytes = bytes});
  QUIRE_CHECK(cache_index_.emplace(std::move(key), cache_.begin()).second);
  cached_bytes_ += bytes;
  Evict();
}

void ConstraintCompiler::Evict() {
  while (cached_bytes_ > options_.cache_bytes) {
    cached_bytes_ -= cache_.back().bytes;
    cache_index_.erase(cache_.back().key);
    cache_.pop_back();
  }
  cache_bytes_.Set(static_cast<double>(cached_bytes_));
}

void ConstraintCompiler::SetHotOptions(const HotConstraintOptions& options) {
  MutexLock lock(&mutex_);
  static_cast<HotConstraintOptions&>(options_) = options;
  Evict();
}

ConstraintCounts ConstraintCompiler::GetCounts() const {
  MutexLock lock(&mutex_);
  return {.hits = static_cast<std::int64_t>(hits_.value()),
          .misses = static_cast<std::int64_t>(misses_.value()),
          .errors = static_cast<std::int64_t>(errors_.value()),
          .waiting_builds = static_cast<std::int64_t>(waiting_jobs_.size()),
          .cached_bytes = cached_bytes_,
          .cached_constraints = static_cast<std::int64_t>(cache_.size())};
}

absl::Status ConstraintCompiler::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  std::int64_t bytes = 0;
  for (const Cached& entry : cache_) {
    bytes += entry.bytes;
    const auto found = cache_index_.find(entry.key);
    if (found == cache_index_.end() || &*found->second != &entry) {
      return absl::InternalError("a cached constraint is not indexed under its key");
    }
  }
  if (bytes != cached_bytes_ || cache_.size() != cache_index_.size() ||
      bytes > options_.cache_bytes) {
    return absl::InternalError(absl::StrCat("cached constraints have ", bytes,
                                            " bytes, cached_bytes_ is ", cached_bytes_));
  }
  std::size_t waiters = 0, waiting = 0;
  for (const auto& [key, job] : jobs_) {
    waiting += !job->is_running;
    waiters += job->waiters.size();
    if (key != job->key || cache_index_.contains(key)) {
      return absl::InternalError("a build is indexed under a wrong key or is also cached");
    }
    for (const auto& [ticket, done] : job->waiters) {
      const auto found = tickets_.find(ticket);
      if (found == tickets_.end() || found->second != job.get()) {
        return absl::InternalError("a ticket points to the wrong build");
      }
    }
  }
  if (waiters != tickets_.size() || waiting != waiting_jobs_.size()) {
    return absl::InternalError("the number of tickets or waiting builds is wrong");
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
