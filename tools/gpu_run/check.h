#pragma once

// The whole check: stages within their time, a verdict for each, results in one archive.

#include <string>
#include <vector>

#include "tools/gpu_run/bundle.h"
#include "tools/gpu_run/process.h"
#include "tools/gpu_run/stages.h"

namespace quire::gpu_run {

struct Options {
  double minutes = 9;
  double item_seconds = 600;  // no item takes longer, whatever its own limit
  int prompts = 1000;         // that two daemons answer in the stage of the runner
  bool is_emulated = false;
  std::string bundle;  // folder
  std::string archive;
  std::vector<std::string> stages;  // empty: all
};

// Exit statuses.
inline constexpr int kPassed = 0;
inline constexpr int kFailed = 1;
inline constexpr int kDamagedBundle = 65;
inline constexpr int kIncomplete = 75;  // nothing failed, but time was up
inline constexpr int kNoDevice = 77;

// Runs the stages, prints a table last and writes the archive. Returns the exit status.
int Check(const Options& options);

}  // namespace quire::gpu_run
