#pragma once

// Structured log lines: a logger name, a constant message, and fields.
//
//   log::Info("engine", "model loaded", {{"path", path}, {"seconds", 0.8}, {"layers", 12}});
//
// gives, as JSON, {"time":"2026-11-21T21:42:00.123456Z","level":"info","logger":"engine",
// "msg":"model loaded","path":"...","seconds":0.8,"layers":12}, and as text
// `2026-11-21T21:42:00.123456Z info engine: model loaded path=... seconds=0.8 layers=12`.
// Until Configure, lines of level info and above go to standard error as text.
//
// Invariants: a thread that logs never waits for the place where lines go. They are queued, and a
//             thread of the log's own writes them in their order. A line that finds the queue full
//             is dropped and counted, and "lines were dropped" stands in its place; so are lines
//             that the place does not take, as a full disk, which is told once it takes some again.
// Threads:    any.
// Lifetime:   the first use starts the writer, which runs until the process is gone. exit() waits a
//             second for it at most; who ends the process otherwise calls Flush before.
//
// spdlog writes the lines, whole, to a file or to standard error. It has no fields and no JSON, no
// limit of lines per place in the code, no level for loggers that are yet to be made, and in
// version 1.10 no way to open its file again. Its own queue drops the oldest lines without a word,
// and its end waits for the last line however long that takes. So those are here.

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
enum class Format : std::uint8_t { kText, kJson };

// "trace", "debug", "info", "warn", "error", "off".
absl::string_view LevelName(Level level);
std::optional<Level> LevelFromName(absl::string_view name);

struct Options {
  Level level = Level::kInfo;
  Format format = Format::kText;
  std::string file;  // appended to; empty: standard error
  // Lines per second of one logger and message; more are counted, not written. 0: no limit.
  std::uint32_t rate_limit_per_second = 0;
};

// One key and value. Text is not copied: a Field lives only as an argument.
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
  // Seconds.
  Field(absl::string_view key, absl::Duration value)
      : key_(key), value_(absl::ToDoubleSeconds(value)) {}

  absl::string_view key() const { return key_; }
  const Value& value() const { return value_; }

 private:
  absl::string_view key_;
  Value value_;
};

using Fields = std::initializer_list<Field>;

// Sets level, format and destination of the whole process, and drops the levels of single loggers.
// Returns the error of opening the file, which takes kFileTimeout at most; then nothing has
// changed.
absl::Status Configure(const Options& options);
// The same in two parts: opens the file, and returns what makes the change.
absl::StatusOr<std::function<void()>> PrepareConfigure(const Options& options);

// Opens the log file again under its name, after it was rotated. Standard error: nothing to do.
absl::Status Reopen();

// Changes the level of one logger; of all, single ones included, when `logger` is empty. Returns
// the level that it had.
Level SetLevel(absl::string_view logger, Level level);

// Whether a line of this level would be written. One atomic load when the answer is no for all.
bool IsEnabled(absl::string_view logger, Level level);

// Queues a line, or returns at once when its level is off. `message` is the same text every time,
// since it is also the name of the rate limit's site. Never on the engine's step path.
void Write(Level level, absl::string_view logger, absl::string_view message, Fields fields = {});

inline void Trace(absl::string_view logger, absl::string_view message, Fields fields = {}) {
  Write(Level::kTrace, logger, message, fields);
}
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

// Waits until all lines so far are written; false when `timeout` is over before.
bool Flush(absl::Duration timeout);

// From now on abort() and faults of the processor wait a moment, 0.2 s at most, for the lines
// before them. REQUIRES: called once.
void FlushOnCrash();

// Lines since the start that the rate limit kept back.
std::uint64_t SuppressedLines();
// Lines since the start that found the queue full, or that could not be written.
std::uint64_t DroppedLines();

}  // namespace quire::log
