#pragma once

// The processes of each stage. Each item is a process of its own, so that a hang or a crash affects
// only that item.

#include <string>
#include <vector>

#include "tools/gpu_run/process.h"

namespace quire::gpu_run {

// The stages in running order, with their shares of the time.
struct Stage {
  const char* name;
  double share;
  // Minimum free device memory to start the stage.
  double min_bytes;
};
inline constexpr Stage kStages[] = {
    {"facts", 20, 0},   {"smoke", 40, 1e9},  {"tests", 130, 4e9},  {"runner", 80, 4e9},
    {"tools", 90, 2e9}, {"speed", 120, 8e9}, {"daemon", 60, 24e9},
};

struct Item {
  std::string name;
  Command command;
  Seconds limit{60};
  // If the time is up before this item runs, the stage still passes.
  bool is_optional = false;
  std::string skipped{};  // reason for not running it; empty: it runs
};

// Folders and options of a run.
struct Setup {
  std::string bundle;    // folder
  std::string testdata;  // folder, in the bundle or from the environment variable QUIRE_TESTDATA
  std::string results;   // folder
  bool is_emulated = false;
  int prompts = 1000;  // prompts for each of the two daemons
  // Folder of the bundle's C++ runtime if the machine's is too old; empty: use the machine's.
  std::string cxx_runtime{};

  // Returns a command for a program of the bundle that logs to results/<log>.log.
  Command Program(const std::string& name, std::vector<std::string> arguments,
                  const std::string& log) const;
  // Returns a command for the benchmark program, on the device or the emulated device.
  Command Bench(std::vector<std::string> arguments, const std::string& log) const;
};

// Returns `text` as a file name.
std::string FileName(const std::string& text);
// Returns the path of a program on PATH or in the CUDA installation, or "" if there is none.
std::string FindProgram(const std::string& name);

// Starts each program of the bundle without using a device, to detect missing libraries.
std::vector<Item> StartItems(const Setup& setup);
// Measures C and G, the copy bandwidth and the rate of a large matrix product.
std::vector<Item> ProbeItems(const Setup& setup);
// `listing` is the output of --benchmark_list_tests or --gtest_list_tests.
std::vector<Item> SmokeItems(const Setup& setup, const std::string& listing);
// Returns the suites of ops, beginning with those that need compute capability 9.0.
std::vector<Item> TestItems(const Setup& setup, const std::string& listing);
// Returns the suites of whole models, one item per fixture; skipped if the fixture is missing.
std::vector<Item> RunnerItems(const Setup& setup, const std::string& listing);
// Returns nothing if compute-sanitizer is missing.
std::vector<Item> ToolItems(const Setup& setup);
std::vector<Item> SpeedItems(const Setup& setup, const std::string& listing);

// Asks the daemon whose sockets are in `run` for its health.
Command DaemonHealth(const Setup& setup, const std::string& run);

// Sends the same prompts to a daemon with overlap scheduling and to one without, over one fixture.
// The answers must be bitwise equal. The item is skipped if the fixture is missing.
Item CompareItem(const Setup& setup);
Command OverlapDaemon(const Setup& setup, const std::string& run, bool has_overlap);
Item AnswersItem(const Setup& setup, const std::string& run, bool has_overlap);

// Creates a model with the shape of Llama 3.1 8B and synthetic weights in `run`.
Item MakeModelItem(const Setup& setup, const std::string& run);
Command LoadDaemon(const Setup& setup, const std::string& run);
std::vector<Item> LoadItems(const Setup& setup, const std::string& run);

}  // namespace quire::gpu_run
