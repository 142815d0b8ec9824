#pragma once

// Shows the progress of `quire pull` on standard error: one line for each finished file, and bars
// on a terminal. Without a terminal, also a line for each retry, a line for each wait for another
// process, and the totals every ten seconds.
//
// Threads:  created and destroyed by one thread; a second thread draws.
// Lifetime: `progress` outlives it.

#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "hub/pull_progress.h"
#include "hub/stop_signal.h"

namespace quire::client {

// Returns the lines of a terminal of `columns`: a bar for each active file, and the total.
std::vector<std::string> DrawProgress(const std::vector<hub::FileProgress>& files,
                                      std::int64_t received_bytes, absl::Duration elapsed,
                                      int columns);

class PullDisplay {
 public:
  explicit PullDisplay(const hub::PullProgress* progress);
  // Draws the last state.
  ~PullDisplay();
  PullDisplay(const PullDisplay&) = delete;
  PullDisplay& operator=(const PullDisplay&) = delete;

 private:
  void Run();
  void Draw();
  void PrintChanges();
  void PrintLine(const std::string& line);

  const hub::PullProgress* const progress_;
  const bool is_terminal_;
  const absl::Time start_;
  hub::StopSignal stop_;
  // Used only by the display's thread, and by the destructor after that thread has ended.
  std::vector<hub::FileProgress> shown_;  // states at the last PrintChanges
  std::string shown_note_;
  std::size_t drawn_lines_ = 0;  // bar lines that the next Draw replaces
  absl::Time next_total_;        // next line of totals without a terminal
  std::thread thread_;           // last, so that it starts after the other members
};

}  // namespace quire::client
