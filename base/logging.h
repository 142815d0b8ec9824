#pragma once

// Structured log lines: a logger name, a constant message, and fields.
//
//   log::Info("engine", "model loaded", {{"path", path}, {"seconds", 0.8}, {"layers", 12}});
//
// The line in JSON is {"time":"2026-11-21T21:42:00.123456Z","level":"info","logger":"engine",
// "msg":"model loaded","path":"...","seconds":0.8,"layers":12}, and in text
// `2026-11-21T21:42:00.123456Z info engine: model loaded path=... seconds=0.8 layers=12`.
// Before Configure is called, lines of level info and above go to standard error as text.
//
// Invariants: logging never waits for the log file or standard error. Lines are queued, and one
//             writer thread writes them in order. Lines are dropped and counted when the queue is
//             full or when writing fails, for example on a full disk. As soon as writing succeeds
//             again, a line "lines were dropped" reports their number.
// Threads:    any.
// Lifetime:   the first call starts the writer, which runs until the process ends. exit() waits at
//             most one second for queued lines. Code that ends the process in another way must call
//             Flush first.
//
// spdlog's sinks write the finished lines. The rest of spdlog 1.10 is not used: its loggers lack
// fields, JSON, a rate limit per call site and levels for loggers that do not exist yet. It cannot
// reopen the log file. Its queue drops the oldest lines silently, and its shutdown waits without a
// timeout.

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace quire::log {

enum class Level : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };
// kAuto is kText if the lines go to a terminal, otherwise kJson.
enum class Format : std::uint8_t { kText, kJson, kAuto };

// The names are "trace", "debug", "info", "warn", "error" and "off".
absl::string_view LevelName(Level level);
std::optional<Level> LevelFromName(absl::string_view name);

struct Options {
  Level level = Level::kInfo;
  Format format = Format::kText;
  std::string file;  // lines are appended to it; empty: standard error
  // Maximum lines per second for each pair of logger and message. Further lines are counted but not
  // written. 0: no limit.
  std::uint32_t rate_limit_per_second = 0;
};

// One key and value. Text is not copied, so a Field is only valid as a function argument.
class Field {
 public:
  using Value = std::variant<absl::string_view, std::int64_t, std::uint64_t, double, bool>;

  Field(absl::string_view key, absl::string_view value) : key_(key), value_(value) {}
  Field(absl::string_view key, const char* value) : key_(key), value_(absl::string_view(value)) {}
  Field(absl::string_view key, const std::string& value)
      : key_(key), value_(absl::string_view(value)) {}
  Field(absl::string_view key, bool value) : key_(key), value_(value) {}
  Field(absl::string_view key, std::floating_point auto value)
      : key_(key), value_(static_cast<double>(value)) {}
  Field(absl::string_view key, std::signed_integral auto value)
      : key_(key), value_(static_cast<std::int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Field(absl::string_view key, T value)
      : key_(key), value_(static_cast<std::uint64_t>(value)) {}
  // Logs the duration in seconds.
  Field(absl::string_view key, absl::Duration value)
      : key_(key), value_(absl::ToDoubleSeconds(value)) {}

  absl::string_view key() const { return key_; }
  const Value& value() const { return value_; }

 private:
  absl::string_view key_;
  Value value_;
};

using Fields = std::initializer_list<Field>;

// Sets level, format and destination of the whole process, and clears the levels that SetLevel set
// per logger. If the file cannot be opened within kFileTimeout, returns an error and changes
// nothing.
absl::Status Configure(const Options& options);
// Like Configure, but only opens the file, and returns a function that applies the change.
absl::StatusOr<std::function<void()>> PrepareConfigure(const Options& options);

// Checks that `file` can be opened as a log file, without creating it. An empty name is standard
// error.
absl::Status CheckFile(const std::string& file);

// Opens the log file again by name, after log rotation. Does nothing for standard error.
absl::Status Reopen();

// Changes the level of one logger, or of all loggers when `logger` is empty. Returns the previous
// level.
Level SetLevel(absl::string_view logger, Level level);

// Queues a line, or returns immediately if its level is disabled. If the level is disabled for all
// loggers, a call costs one atomic load. `message` must be a constant, because the rate limit
// identifies the call site by its message. Must not be called on the engine's step path.
void Write(Level level, absl::string_view logger, absl::string_view message, Fields fields = {});

inline void Debug(absl::string_view logger, absl::string_view message, Fields fields = {}) {
  Write(Level::kDebug, logger, message, fields);
}
inline void Info(absl::string_view logger, absl::string_view message, Fields fields = {}) {
  Write(Level::kInfo, logger, message, fields);
}
inline void Warn(absl::string_view logger, absl::string_view message, Fields fields = {}) {
  Write(Level::kWarn, logger, message, fields);
}
inline void Error(absl::string_view logger, absl::string_view message, Fields fields = {}) {
  Write(Level::kError, logger, message, fields);
}

// Waits until all lines that were queued before the call are written. Returns false if `timeout`
// passes first.
bool Flush(absl::Duration timeout);

// Installs signal handlers so that abort() and processor faults wait up to 0.2 s for queued lines.
// REQUIRES: called once.
void FlushOnCrash();

// Number of lines that the rate limit has suppressed since the process started.
std::uint64_t SuppressedLines();
// Number of lines lost since the process started, because the queue was full or writing failed.
std::uint64_t DroppedLines();

}  // namespace quire::log
