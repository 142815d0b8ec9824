#include "tools/quire/pull_display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "hub/cache/model_name.h"

namespace quire::client {
namespace {

using hub::FileProgress;
using hub::FileState;

constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr absl::Duration kTotalInterval = absl::Seconds(10);
constexpr int kBarColumns = 20;

int TerminalColumns() {
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

std::string Bar(std::int64_t done, std::int64_t size) {
  const double share = size == 0 ? 1 : static_cast<double>(done) / static_cast<double>(size);
  const auto filled = static_cast<std::size_t>(share * kBarColumns);
  return absl::StrFormat("[%s%s] %3.0f %%", std::string(filled, '#'),
                         std::string(kBarColumns - filled, '-'), 100 * share);
}

std::string Describe(const FileProgress& file) {
  switch (file.state) {
    case FileState::kLocked:
      return "waits for another download of this file";
    case FileState::kRetrying:
      return file.note;
    case FileState::kChecking:
      return "checks the earlier part";
    default:
      return absl::StrCat(hub::FormatBytes(file.done_bytes), " of ",
                          hub::FormatBytes(file.size_bytes));
  }
}

std::string Total(const std::vector<FileProgress>& files, std::int64_t received_bytes,
                  absl::Duration elapsed) {
  std::int64_t size = 0, done = 0, done_files = 0;
  for (const FileProgress& file : files) {
    size += file.size_bytes;
    done += file.done_bytes;
    done_files += file.state == FileState::kDone ? 1 : 0;
  }
  std::string line = absl::StrCat(done_files, " of ", files.size(), " files, ",
                                  hub::FormatBytes(done), " of ", hub::FormatBytes(size));
  const double rate =
      static_cast<double>(received_bytes) / std::max(absl::ToDoubleSeconds(elapsed), 1e-3);
  if (rate < 1) return line;
  absl::StrAppend(&line, ", ", hub::FormatBytes(static_cast<std::int64_t>(rate)), "/s");
  if (done == size) return line;
  const absl::Duration left = absl::Seconds(static_cast<double>(size - done) / rate);
  return absl::StrCat(line, ", ", absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                      " left");
}

}  // namespace

std::vector<std::string> DrawProgress(const std::vector<FileProgress>& files,
                                      std::int64_t received_bytes, absl::Duration elapsed,
                                      int columns) {
  std::vector<std::string> lines;
  if (files.empty()) return lines;
  for (const FileProgress& file : files) {
    if (file.state == FileState::kQueued || file.state == FileState::kDone) continue;
    lines.push_back(
        absl::StrCat(Bar(file.done_bytes, file.size_bytes), "  ", file.name, "  ", Describe(file)));
  }
  lines.push_back(Total(files, received_bytes, elapsed));
  for (std::string& line : lines) {
    // A line that wraps would fill two rows, and the next Draw would replace only one of them.
    line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(columns - 1, 1))));
  }
  return lines;
}

PullDisplay::PullDisplay(const hub::PullProgress* progress)
    : progress_(progress),
      is_terminal_(isatty(STDERR_FILENO) != 0),
      start_(MonotonicNow()),
      next_total_(start_ + kTotalInterval),
      thread_([this] { Run(); }) {}

PullDisplay::~PullDisplay() {
  stop_.Request();
  thread_.join();
  Draw();
}

void PullDisplay::Run() {
  do {
    Draw();
  } while (!stop_.WaitFor(kRedraw));
}

void PullDisplay::PrintLine(const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
}

void PullDisplay::PrintChanges() {
  const std::vector<FileProgress> files = progress_->files();
  shown_.resize(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileProgress& file = files[i];
    const bool is_new = file.state != shown_[i].state || file.note != shown_[i].note;
    const bool is_event =
        file.state == FileState::kDone ||
        (!is_terminal_ && (file.state == FileState::kLocked || file.state == FileState::kRetrying));
    if (is_new && is_event) {
      PrintLine(absl::StrCat(
          file.name, ": ",
          file.state == FileState::kDone ? hub::FormatBytes(file.size_bytes) : Describe(file)));
    }
    shown_[i] = file;
  }
  const std::string note = progress_->note();
  if (note != shown_note_) PrintLine(note);
  shown_note_ = note;
}

void PullDisplay::Draw() {
  if (drawn_lines_ > 0) {
    // Moves the cursor to the first line of the last Draw and clears the screen from there on.
    std::fprintf(stderr, "\033[%zuA\033[J", drawn_lines_);
    drawn_lines_ = 0;
  }
  PrintChanges();
  const absl::Time now = MonotonicNow();
  if (is_terminal_) {
    const std::vector<std::string> lines =
        DrawProgress(shown_, progress_->received_bytes(), now - start_, TerminalColumns());
    for (const std::string& line : lines) PrintLine(line);
    drawn_lines_ = lines.size();
  } else if (!shown_.empty() && now >= next_total_) {
    PrintLine(Total(shown_, progress_->received_bytes(), now - start_));
    next_total_ = now + kTotalInterval;
  }
  std::fflush(stderr);
}

}  // namespace quire::client
