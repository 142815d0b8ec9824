#include "base/logging.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/json_text.h"
#include "base/mutex.h"
#include "base/status.h"

namespace quire::log {
namespace {

using Sink = std::shared_ptr<spdlog::sinks::sink>;

constexpr std::array<absl::string_view, 6> kLevelNames = {"trace", "debug", "info",
                                                          "warn",  "error", "off"};
// Sites whose rate is watched at once; the table starts anew when it is full.
constexpr std::size_t kMaxSites = 4096;

struct Site {
  std::int64_t second = 0;
  std::uint32_t lines = 0;
};

struct State {
  Mutex mutex;
  Options options ABSL_GUARDED_BY(mutex);
  std::map<std::string, Level> single_levels ABSL_GUARDED_BY(mutex);
  Sink sink ABSL_GUARDED_BY(mutex);
  std::unordered_map<std::size_t, Site> sites ABSL_GUARDED_BY(mutex);
  std::atomic<Level> min_level{Level::kInfo};  // of all loggers
  std::atomic<std::uint64_t> suppressed{0};
};

// Nothing where opening could wait, as for a FIFO without a reader. What is not there yet is made.
absl::Status CheckRegular(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "log file ", file, " is not a regular file; an empty name means standard error"));
}

// The sink writes the line as it is; spdlog adds the line end.
absl::StatusOr<Sink> OpenSink(const std::string& file) {
  QUIRE_RETURN_IF_ERROR(CheckRegular(file));
  try {
    Sink sink;
    if (file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
    }
    sink->set_pattern("%v");
    return sink;
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("log file ", file, ": ", e.what()));
  }
}

// Never destroyed: threads may log while the process ends.
State& GlobalState() {
  static State* const state = [] {
    auto* made = new State;
    MutexLock lock(&made->mutex);
    made->sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    made->sink->set_pattern("%v");
    return made;
  }();
  return *state;
}

void UpdateMinLevel(State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  Level least = state.options.level;
  for (const auto& [name, level] : state.single_levels) least = std::min(least, level);
  state.min_level.store(least, std::memory_order_relaxed);
}

Level LevelOf(State& state, absl::string_view logger) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  if (state.single_levels.empty()) return state.options.level;
  const auto found = state.single_levels.find(std::string(logger));
  return found == state.single_levels.end() ? state.options.level : found->second;
}

// Counts a line of a site; false when it is over the limit of this second.
bool IsWithinRate(State& state, absl::string_view logger, absl::string_view message, absl::Time now)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
  const std::uint32_t limit = state.options.rate_limit_per_second;
  if (limit == 0) return true;
  if (state.sites.size() >= kMaxSites) state.sites.clear();
  const std::size_t key = absl::HashOf(logger, message);
  Site& site = state.sites[key];
  const std::int64_t second = absl::ToUnixSeconds(now);
  if (site.second != second) site = {second, 0};
  if (site.lines >= limit) return false;
  ++site.lines;
  return true;
}

bool IsPlainWord(absl::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f) return false;
  }
  return true;
}

void AppendDouble(double value, std::string* out) {
  // JSON has no word for these.
  if (std::isnan(value)) return out->append("\"nan\""), void();
  if (std::isinf(value)) return out->append(value > 0 ? "\"inf\"" : "\"-inf\""), void();
  absl::StrAppend(out, value);
}

void AppendValue(const Field::Value& value, Format format, std::string* out) {
  if (const auto* text = std::get_if<absl::string_view>(&value)) {
    if (format == Format::kText && IsPlainWord(*text)) {
      out->append(text->data(), text->size());
    } else {
      out->append(JsonQuoted(*text));
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

void WriteLine(spdlog::sinks::sink& sink, absl::string_view line) {
  try {
    sink.log(spdlog::details::log_msg(spdlog::string_view_t(), spdlog::level::info,
                                      spdlog::string_view_t(line.data(), line.size())));
    sink.flush();
  } catch (const std::exception&) {
    // A full disk must not end the process, and there is no better place to say so.
    GlobalState().suppressed.fetch_add(1, std::memory_order_relaxed);
  }
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

absl::StatusOr<std::function<void()>> PrepareConfigure(const Options& options) {
  absl::StatusOr<Sink> sink = OpenSink(options.file);
  if (!sink.ok()) return sink.status();
  return [options, sink = *std::move(sink)] {
    State& state = GlobalState();
    MutexLock lock(&state.mutex);
    state.options = options;
    state.sink = sink;
    state.single_levels.clear();
    state.sites.clear();
    UpdateMinLevel(state);
  };
}

absl::Status Configure(const Options& options) {
  const absl::StatusOr<std::function<void()>> apply = PrepareConfigure(options);
  if (apply.ok()) (*apply)();
  return apply.status();
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
  MutexLock lock(&state.mutex);
  state.sink = *std::move(sink);
  return absl::OkStatus();
}

Level SetLevel(absl::string_view logger, Level level) {
  State& state = GlobalState();
  MutexLock lock(&state.mutex);
  const Level previous = logger.empty() ? state.options.level : LevelOf(state, logger);
  if (logger.empty()) {
    state.options.level = level;
    state.single_levels.clear();
  } else {
    state.single_levels[std::string(logger)] = level;
  }
  UpdateMinLevel(state);
  return previous;
}

bool IsEnabled(absl::string_view logger, Level level) {
  State& state = GlobalState();
  if (level == Level::kOff || level < state.min_level.load(std::memory_order_relaxed)) {
    return false;
  }
  MutexLock lock(&state.mutex);
  return level >= LevelOf(state, logger);
}

void Write(Level level, absl::string_view logger, absl::string_view message, Fields fields) {
  State& state = GlobalState();
  if (level == Level::kOff || level < state.min_level.load(std::memory_order_relaxed)) return;
  const absl::Time now = absl::Now();
  Sink sink;
  Format format = Format::kText;
  {
    MutexLock lock(&state.mutex);
    if (level < LevelOf(state, logger)) return;
    if (!IsWithinRate(state, logger, message, now)) {
      state.suppressed.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    sink = state.sink;
    format = state.options.format;
  }
  WriteLine(*sink, FormatLine(format, {now, level, logger, message, fields}));
}

std::uint64_t SuppressedLines() {
  return GlobalState().suppressed.load(std::memory_order_relaxed);
}

}  // namespace quire::log
