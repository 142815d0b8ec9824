#pragma once

// Runs all stages within their time and writes a verdict per stage and an archive of results.

#include <string>
#include <vector>

#include "tools/gpu_run/bundle.h"
#include "tools/gpu_run/process.h"
#include "tools/gpu_run/stages.h"

namespace quire::gpu_run {

struct Options {
  double minutes = 9;
  double item_seconds = 600;  // upper limit of every item's own limit
  int prompts = 1000;         // prompts for each of the two daemons of the stage runner
  bool is_emulated = false;
  std::string bundle;  // folder
  std::string archive;
  std::vector<std::string> stages;  // empty: all
};

// Exit statuses.
inline constexpr int kPassed = 0;
inline constexpr int kFailed = 1;
inline constexpr int kDamagedBundle = 65;
inline constexpr int kIncomplete = 75;  // nothing failed, but the time was up
inline constexpr int kNoDevice = 77;

// Runs the stages, prints a table and writes the archive. Returns the exit status.
int Check(const Options& options);

}  // namespace quire::gpu_run
