#include "base/logging.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/mutex.h"
#include "base/small_file.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "base/utf8.h"

namespace quire::log {
namespace {

using Sink = std::shared_ptr<spdlog::sinks::sink>;

constexpr std::array<absl::string_view, 6> kLevelNames = {"trace", "debug", "info",
                                                          "warn",  "error", "off"};
// Maximum number of call sites in the table of the rate limit. A full table is cleared.
constexpr std::size_t kMaxSites = 4096;
// Size limit of LineQueue: some seconds of a busy log, so that a short stall of the disk loses no
// lines.
constexpr std::size_t kMaxQueuedBytes = std::size_t{4} << 20;
// Time that exit() waits for queued lines.
constexpr absl::Duration kExitFlushTimeout = absl::Seconds(1);

// The sink and the format of log lines.
struct Destination {
  Sink sink;
  Format format = Format::kText;
};

// A queue of lines for a destination that may be slow or may have stopped accepting lines.
//
// Invariants: the queue has at most kMaxQueuedBytes bytes, or one longer line. Push never waits for
//             a destination. It drops a line that does not fit, counts it, and queues a report of
//             the loss.
// Threads:    the writer thread calls Next and Finish; any thread calls the other functions.
class LineQueue {
 public:
  struct Item {
    std::shared_ptr<const Destination> destination;
    std::string line;
    // If not 0, the item has no line and reports that this many lines were lost.
    std::uint64_t dropped_lines = 0;
  };

  void Push(std::shared_ptr<const Destination> destination, std::string line) {
    {
      MutexLock lock(&mutex_);
      if (!items_.empty() && bytes_ + line.size() > kMaxQueuedBytes) {
        CountDropped(std::move(destination));
        return;
      }
      QueueLossReport();
      bytes_ += line.size();
      items_.push_back({.destination = std::move(destination), .line = std::move(line)});
      queued_items_.fetch_add(1, std::memory_order_relaxed);
    }
    changed_.NotifyAll();
  }

  // Waits for a line, or for a report of lost lines.
  Item Next() {
    MutexLock lock(&mutex_);
    while (items_.empty() && unreported_lines_ == 0) changed_.Wait(&mutex_);
    if (items_.empty()) QueueLossReport();
    Item item = std::move(items_.front());
    items_.pop_front();
    bytes_ -= item.line.size();
    return item;
  }

  // Records that the item returned by Next was written or lost.
  void Finish(bool is_lost) {
    {
      MutexLock lock(&mutex_);
      finished_items_.fetch_add(1, std::memory_order_relaxed);
      if (is_lost) dropped_lines_.fetch_add(1, std::memory_order_relaxed);
    }
    changed_.NotifyAll();
  }

  // Waits until everything queued before the call is finished. Returns false when `deadline`
  // passes.
  bool WaitFinished(absl::Time deadline) {
    MutexLock lock(&mutex_);
    QueueLossReport();
    const std::uint64_t last = queued_items_.load(std::memory_order_relaxed);
    while (finished_items_.load(std::memory_order_relaxed) < last) {
      if (MonotonicNow() >= deadline) return false;
      changed_.WaitUntil(&mutex_, deadline);
    }
    return true;
  }

  // Takes no lock, because a signal handler calls it.
  bool is_finished() const {
    return finished_items_.load(std::memory_order_relaxed) ==
           queued_items_.load(std::memory_order_relaxed);
  }
  std::uint64_t dropped() const { return dropped_lines_.load(std::memory_order_relaxed); }

 private:
  void CountDropped(std::shared_ptr<const Destination> destination)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    dropped_lines_.fetch_add(1, std::memory_order_relaxed);
    ++unreported_lines_;
    report_destination_ = std::move(destination);
  }

  void QueueLossReport() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (unreported_lines_ == 0) return;
    items_.push_back({.destination = std::move(report_destination_),
                      .line = {},
                      .dropped_lines = std::exchange(unreported_lines_, 0)});
    queued_items_.fetch_add(1, std::memory_order_relaxed);
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  std::size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t unreported_lines_ ABSL_GUARDED_BY(mutex_) =
      0;  // dropped lines that no item reports yet
  std::shared_ptr<const Destination> report_destination_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> queued_items_{0};    // since the process started
  std::atomic<std::uint64_t> finished_items_{0};  // written or lost
  std::atomic<std::uint64_t> dropped_lines_{0};
};

// Number of lines that a call site logged in one second.
struct CallSite {
  std::int64_t second = 0;
  std::uint32_t lines = 0;
};

// The mutex is never held while a line is written.
struct State {
  Mutex mutex;
  Options options ABSL_GUARDED_BY(mutex);
  std::map<std::string, Level> logger_levels ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const Destination> destination ABSL_GUARDED_BY(mutex);
  std::unordered_map<std::size_t, CallSite> sites ABSL_GUARDED_BY(mutex);
  std::atomic<Level> min_level{Level::kInfo};  // minimum over all loggers
  std::atomic<std::uint64_t> suppressed{0};
  LineQueue queue;
};

// Rejects anything but a regular file, because opening a FIFO without a reader could block. Accepts
// a file that does not exist yet.
absl::Status CheckRegular(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "log file ", file, " is not a regular file; an empty name means standard error"));
}

// Returns the sink of standard error. It is created only once, because creating another one could
// block: all such sinks of spdlog share a lock, which a thread holds while it writes a line. The
// sink writes each line unchanged and appends the newline.
Sink StandardErrorSink() {
  static const Sink* const sink = [] {
    auto* created = new Sink(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    (*created)->set_pattern("%v");
    return created;
  }();
  return *sink;
}

absl::StatusOr<Sink> OpenFile(const std::string& file) {
  QUIRE_RETURN_IF_ERROR(CheckRegular(file));
  try {
    Sink sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
    sink->set_pattern("%v");
    return sink;
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("log file ", file, ": ", e.what()));
  }
}

absl::StatusOr<Sink> OpenSink(const std::string& file) {
  if (file.empty()) return StandardErrorSink();
  auto sink = std::make_shared<absl::StatusOr<Sink>>();
  const absl::Status status = RunWithTimeout(kFileTimeout, [=] { *sink = OpenFile(file); });
  if (status.ok()) return *std::move(sink);
  return absl::Status(status.code(), absl::StrCat("log file ", file, ": ", status.message()));
}

void UpdateMinLevel(State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  Level min_level = state.options.level;
  for (const auto& [name, level] : state.logger_levels) min_level = std::min(min_level, level);
  state.min_level.store(min_level, std::memory_order_relaxed);
}

Level LevelOf(State& state, absl::string_view logger) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  if (state.logger_levels.empty()) return state.options.level;
  const auto found = state.logger_levels.find(std::string(logger));
  return found == state.logger_levels.end() ? state.options.level : found->second;
}

// Counts a line of a call site. Returns false if the line exceeds the limit for the current second.
bool IsWithinRate(State& state, absl::string_view logger, absl::string_view message, absl::Time now)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  const std::uint32_t limit = state.options.rate_limit_per_second;
  if (limit == 0) return true;
  if (state.sites.size() >= kMaxSites) state.sites.clear();
  const std::size_t key = absl::HashOf(logger, message);
  CallSite& site = state.sites[key];
  const std::int64_t second = absl::ToUnixSeconds(now);
  if (site.second != second) site = {second, 0};
  if (site.lines >= limit) return false;
  ++site.lines;
  return true;
}

// True if a terminal interprets the character as a command or reorders text because of it. These
// are C0 and C1 controls, delete, line and paragraph separators, and bidirectional controls.
bool IsControl(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

bool IsPlainWord(absl::string_view text) {
  if (text.empty() || FirstInvalidUtf8(text)) return false;
  for (std::size_t i = 0; i < text.size(); i += Utf8Length(text[i])) {
    const char32_t c = DecodeUtf8At(text, i).code_point;
    if (IsControl(c) || c == ' ' || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

// Appends the text as JSON and escapes control characters, so that client input cannot forge or
// hide log lines.
void AppendQuoted(absl::string_view text, std::string* out) {
  const std::string quoted = JsonQuoted(text);
  for (std::size_t i = 0; i < quoted.size(); i += Utf8Length(quoted[i])) {
    const Utf8Char c = DecodeUtf8At(quoted, i);
    if (IsControl(c.code_point)) {
      absl::StrAppend(out, "\\u",
                      absl::Hex(static_cast<std::uint32_t>(c.code_point), absl::kZeroPad4));
    } else {
      out->append(quoted, i, c.size_bytes);
    }
  }
}

void AppendDouble(double value, std::string* out) {
  if (std::isfinite(value)) {
    absl::StrAppend(out, value);
  } else {  // JSON has neither NaN nor infinities
    out->append(std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
  }
}

void AppendValue(const Field::Value& value, Format format, std::string* out) {
  if (const auto* text = std::get_if<absl::string_view>(&value)) {
    if (format == Format::kText && IsPlainWord(*text)) {
      out->append(text->data(), text->size());
    } else {
      AppendQuoted(*text, out);
    }
  } else if (const auto* number = std::get_if<double>(&value)) {
    AppendDouble(*number, out);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    out->append(*flag ? "true" : "false");
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    absl::StrAppend(out, *integer);
  } else {
    absl::StrAppend(out, std::get<std::uint64_t>(value));
  }
}

struct Line {
  absl::Time time;
  Level level;
  absl::string_view logger;
  absl::string_view message;
  Fields fields;
};

std::string FormatLine(Format format, const Line& line) {
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", line.time, absl::UTCTimeZone());
  const absl::string_view level = LevelName(line.level);
  std::string out;
  if (format == Format::kText) {
    absl::StrAppend(&out, time, " ", level, " ", line.logger, ": ", line.message);
    for (const Field& field : line.fields) {
      absl::StrAppend(&out, " ", field.key(), "=");
      AppendValue(field.value(), format, &out);
    }
    return out;
  }
  absl::StrAppend(&out, "{\"time\":\"", time, "\",\"level\":\"", level,
                  "\",\"logger\":", JsonQuoted(line.logger), ",\"msg\":", JsonQuoted(line.message));
  for (const Field& field : line.fields) {
    absl::StrAppend(&out, ",", JsonQuoted(field.key()), ":");
    AppendValue(field.value(), format, &out);
  }
  out.push_back('}');
  return out;
}

// Returns false if the line is lost. Catches exceptions, because a full disk must not end the
// process.
bool WriteLine(spdlog::sinks::sink& sink, absl::string_view line) {
  try {
    sink.log(spdlog::details::log_msg(spdlog::string_view_t(), spdlog::level::info,
                                      spdlog::string_view_t(line.data(), line.size())));
    sink.flush();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool ReportDropped(const Destination& destination, std::uint64_t lines) {
  return WriteLine(
      *destination.sink,
      FormatLine(destination.format,
                 {absl::Now(), Level::kWarn, "log", "lines were dropped", {{"lines", lines}}}));
}

// Runs the writer thread, which is the only thread that a destination can block.
void WriteLines(LineQueue* queue) {
  SetThreadName("log");
  std::uint64_t unreported = 0;  // lines lost because the queue was full or writing failed
  for (;;) {
    const LineQueue::Item item = queue->Next();
    unreported += item.dropped_lines;
    const bool is_reported = unreported == 0 || ReportDropped(*item.destination, unreported);
    if (is_reported) unreported = 0;
    const bool is_line = item.dropped_lines == 0;
    const bool is_lost = is_line && !(is_reported && WriteLine(*item.destination->sink, item.line));
    if (is_lost) ++unreported;
    queue->Finish(is_lost);
  }
}

// Starts the writer thread with all signals blocked, so that it receives no signal that the
// process's signal thread handles. The first line may be logged before the process blocks these
// signals.
void StartWriter(LineQueue* queue) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(&WriteLines, queue).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Never destroyed, because threads may log while the process ends.
State& GlobalState() {
  static State* const state = [] {
    auto* created = new State;
    {
      MutexLock lock(&created->mutex);
      created->destination =
          std::make_shared<const Destination>(Destination{StandardErrorSink(), Format::kText});
    }
    StartWriter(&created->queue);
    std::atexit([] { Flush(kExitFlushTimeout); });
    return created;
  }();
  return *state;
}

constexpr std::array<int, 5> kCrashSignals = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
std::array<struct sigaction, kCrashSignals.size()> actions_before;
const LineQueue* crash_queue = nullptr;

// Calls only async-signal-safe functions. Waits up to 0.2 s until the writer thread has written the
// queued lines. Then raises the signal again with the previous handler.
void OnCrash(int signal) {
  for (int i = 0; i < 20 && !crash_queue->is_finished(); ++i) poll(nullptr, 0, /*timeout=*/10);
  for (std::size_t i = 0; i < kCrashSignals.size(); ++i) {
    if (kCrashSignals[i] == signal) sigaction(signal, &actions_before[i], nullptr);
  }
  raise(signal);  // delivered after this handler returns
}

}  // namespace

absl::string_view LevelName(Level level) {
  return kLevelNames[static_cast<std::size_t>(level)];
}

std::optional<Level> LevelFromName(absl::string_view name) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<Level>(i);
  }
  return std::nullopt;
}

absl::StatusOr<std::function<void()>> PrepareConfigure(const Options& requested) {
  Options options = requested;
  if (options.format == Format::kAuto) {
    const bool is_terminal = options.file.empty() && isatty(STDERR_FILENO) != 0;
    options.format = is_terminal ? Format::kText : Format::kJson;
  }
  absl::StatusOr<Sink> sink = OpenSink(options.file);
  if (!sink.ok()) return sink.status();
  auto destination = std::make_shared<const Destination>(Destination{*sink, options.format});
  return [options, destination = std::move(destination)] {
    State& state = GlobalState();
    // Destroyed after the lock is released, because closing its file may block.
    std::shared_ptr<const Destination> before;
    MutexLock lock(&state.mutex);
    state.options = options;
    before = std::exchange(state.destination, destination);
    state.logger_levels.clear();
    state.sites.clear();
    UpdateMinLevel(state);
  };
}

absl::Status Configure(const Options& options) {
  const absl::StatusOr<std::function<void()>> apply = PrepareConfigure(options);
  if (apply.ok()) (*apply)();
  return apply.status();
}

absl::Status CheckFile(const std::string& file) {
  if (file.empty()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckRegular(file));
  // Opening creates a missing file, which needs write permission for its folder.
  std::string target = file;
  if (access(file.c_str(), F_OK) != 0) {
    const std::size_t slash = file.rfind('/');
    target = slash == file.npos ? "." : file.substr(0, slash + 1);
  }
  if (access(target.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("log file ", file, " cannot be opened: ", std::strerror(errno)));
}

absl::Status Reopen() {
  State& state = GlobalState();
  std::string file;
  {
    MutexLock lock(&state.mutex);
    file = state.options.file;
  }
  if (file.empty()) return absl::OkStatus();
  absl::StatusOr<Sink> sink = OpenSink(file);
  if (!sink.ok()) return sink.status();
  // Destroyed after the lock is released, because closing its file may block.
  std::shared_ptr<const Destination> before;
  MutexLock lock(&state.mutex);
  before = std::exchange(state.destination, std::make_shared<const Destination>(Destination{
                                                *std::move(sink), state.options.format}));
  return absl::OkStatus();
}

Level SetLevel(absl::string_view logger, Level level) {
  State& state = GlobalState();
  MutexLock lock(&state.mutex);
  const Level previous = logger.empty() ? state.options.level : LevelOf(state, logger);
  if (logger.empty()) {
    state.options.level = level;
    state.logger_levels.clear();
  } else {
    state.logger_levels[std::string(logger)] = level;
  }
  UpdateMinLevel(state);
  return previous;
}

void Write(Level level, absl::string_view logger, absl::string_view message, Fields fields) {
  State& state = GlobalState();
  if (level == Level::kOff || level < state.min_level.load(std::memory_order_relaxed)) return;
  const absl::Time now = absl::Now();
  std::shared_ptr<const Destination> destination;
  {
    MutexLock lock(&state.mutex);
    if (level < LevelOf(state, logger)) return;
    if (!IsWithinRate(state, logger, message, now)) {
      state.suppressed.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    destination = state.destination;
  }
  std::string line = FormatLine(destination->format, {now, level, logger, message, fields});
  state.queue.Push(std::move(destination), std::move(line));
}

bool Flush(absl::Duration timeout) {
  return GlobalState().queue.WaitFinished(MonotonicNow() + timeout);
}

void FlushOnCrash() {
  crash_queue = &GlobalState().queue;
  struct sigaction action = {};
  action.sa_handler = &OnCrash;
  for (std::size_t i = 0; i < kCrashSignals.size(); ++i) {
    sigaction(kCrashSignals[i], &action, &actions_before[i]);
  }
}

std::uint64_t SuppressedLines() {
  return GlobalState().suppressed.load(std::memory_order_relaxed);
}

std::uint64_t DroppedLines() {
  return GlobalState().queue.dropped();
}

}  // namespace quire::log
