#pragma once

// Which processes each stage runs. An item is a process of its own, so that one that hangs or
// crashes costs nothing else.

#include <string>
#include <vector>

#include "tools/gpu_run/process.h"

namespace quire::gpu_run {

// In the order in which they run, with their shares of the time.
struct Stage {
  const char* name;
  double share;
  // Bytes of free device memory without which it is not begun.
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
  // Its stage is whole without it: when time is up, that is no fault.
  bool is_optional = false;
  std::string skipped{};  // why it is not run at all
};

// Where things are.
struct Setup {
  std::string bundle;    // folder
  std::string testdata;  // folder; of the bundle, or QUIRE_TESTDATA of the environment
  std::string results;   // folder
  bool is_emulated = false;
  int prompts = 1000;  // that two daemons answer
  // Of the C++ runtime, where the machine has none that is new enough; empty: its own.
  std::string cxx_runtime{};

  // A program of the bundle that logs to results/<log>.log.
  Command Program(const std::string& name, std::vector<std::string> arguments,
                  const std::string& log) const;
  // The benchmark program, on the device or on the emulated one.
  Command Bench(std::vector<std::string> arguments, const std::string& log) const;
};

// `text` as a file's name.
std::string FileName(const std::string& text);
// The program of this name on PATH or where CUDA is installed; empty when there is none.
std::string FindProgram(const std::string& name);

// Each program of the bundle as far as it gets without a device: whether libraries are missing.
std::vector<Item> StartItems(const Setup& setup);
// C and G, the copy bandwidth and the rate of a large matrix product: what rates are compared with.
std::vector<Item> ProbeItems(const Setup& setup);
// `listing` is what the program prints for --benchmark_list_tests or --gtest_list_tests.
std::vector<Item> SmokeItems(const Setup& setup, const std::string& listing);
// Suites of ops, those first that stand on what only compute capability 9.0 has.
std::vector<Item> TestItems(const Setup& setup, const std::string& listing);
// Suites of whole models, an item for each fixture; skipped where test data lack the fixture.
std::vector<Item> RunnerItems(const Setup& setup, const std::string& listing);
// Empty where compute-sanitizer is missing.
std::vector<Item> ToolItems(const Setup& setup);
std::vector<Item> SpeedItems(const Setup& setup, const std::string& listing);

// Asks the daemon whose sockets lie below `run`.
Command DaemonHealth(const Setup& setup, const std::string& run);

// Two daemons over one fixture, with overlap scheduling and without, are asked the same prompts;
// what they say must be the same bits. Where test data lack the fixture, the item says so.
Item CompareItem(const Setup& setup);
Command OverlapDaemon(const Setup& setup, const std::string& run, bool has_overlap);
Item AnswersItem(const Setup& setup, const std::string& run, bool has_overlap);

// Llama 3.1 8B's shape with made-up weights below `run`.
Item MakeModelItem(const Setup& setup, const std::string& run);
Command LoadDaemon(const Setup& setup, const std::string& run);
std::vector<Item> LoadItems(const Setup& setup, const std::string& run);

}  // namespace quire::gpu_run
