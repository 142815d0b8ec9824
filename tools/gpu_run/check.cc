#include "tools/gpu_run/check.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "nlohmann/json.hpp"
#include "tools/gpu_run/archive.h"

namespace quire::gpu_run {
namespace {

using nlohmann::json;

// Time reserved for the archive and the table.
constexpr Seconds kReserve{3};
constexpr Seconds kProbeLimit{15};
constexpr char kNothingToRun[] = "the program lists nothing to run";

enum class Verdict { kPassed, kFailed, kSkipped, kNotRun };
constexpr const char* kVerdictNames[] = {"passed", "FAILED", "skipped", "not run"};

struct Outcome {
  std::string name;
  Verdict verdict = Verdict::kNotRun;
  std::string why{};
  double seconds = 0;
  bool is_optional = false;
};

struct StageResult {
  std::string name;
  std::vector<Outcome> items{};
  std::string skipped{};  // why it was not started
  double seconds = 0;

  std::size_t Count(Verdict verdict) const {
    return static_cast<std::size_t>(std::count_if(
        items.begin(), items.end(), [&](const Outcome& o) { return o.verdict == verdict; }));
  }
  // True if the stage was not started, or an item that counts was not run.
  bool is_incomplete() const {
    return std::any_of(items.begin(), items.end(), [](const Outcome& o) {
      return o.verdict == Verdict::kNotRun && !o.is_optional;
    });
  }
  const char* verdict() const {
    if (Count(Verdict::kFailed) > 0) return "FAILED";
    if (!skipped.empty()) return "skipped";
    return is_incomplete() ? "incomplete" : "passed";
  }
};

std::size_t CountOf(const std::string& log, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
    ++count;
  }
  return count;
}

// Returns the line of a log that best explains why a process failed.
std::string Reason(const std::string& log) {
  std::istringstream lines(log);
  std::string last;
  std::string marked;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    last = line;
    for (const char* const mark : {"ERROR", "error", ": Failure", "FAILED  ] ", "not found"}) {
      if (marked.empty() && CountOf(line, mark) > 0) marked = line;
    }
  }
  const std::string line = marked.empty() ? last : marked;
  const std::size_t start = std::min(line.find_first_not_of(" \t"), line.size());
  return line.substr(start, 200);
}

// Returns a verdict if all errors in a log are expected: not enough memory for a shape, or a device
// without tensor maps. Returns nothing if there is another error or none.
std::optional<Verdict> ExcusedBy(const std::string& log) {
  const std::size_t errors = CountOf(log, "ERROR OCCURRED");
  const std::size_t memory = CountOf(log, "ERROR OCCURRED: 'out of device memory");
  const std::size_t maps = CountOf(log, "ERROR OCCURRED: 'no tensor maps on this device");
  if (errors == 0 || memory + maps != errors) return std::nullopt;
  return memory > 0 ? Verdict::kNotRun : Verdict::kSkipped;
}

// Returns the outcome of an ended process. Google Benchmark exits with 0 even after an error.
Outcome Judge(const Item& item, std::optional<int> status, double seconds) {
  Outcome outcome{.name = item.name, .seconds = seconds, .is_optional = item.is_optional};
  const std::string log = ReadFile(item.command.log);
  if (!status.has_value()) {
    char text[64];
    std::snprintf(text, sizeof(text), "killed after %.0f s", seconds);
    outcome.verdict = Verdict::kFailed;
    outcome.why = text;
  } else if (*status == 77) {
    outcome.verdict = Verdict::kSkipped;
    outcome.why = Reason(log);
  } else if (*status == 0 && log.empty() && item.name.starts_with("BM_")) {
    outcome.verdict = Verdict::kFailed;
    outcome.why = "the log is empty; is the disk full?";
  } else if (const auto excused = ExcusedBy(log); *status == 0 && excused) {
    outcome.verdict = *excused;
    outcome.why = Reason(log);
  } else if (*status != 0 || CountOf(log, "ERROR OCCURRED") > 0) {
    outcome.verdict = Verdict::kFailed;
    outcome.why = *status > 128 ? "ended by signal " + std::to_string(*status - 128) + ": " : "";
    outcome.why += Reason(log);
  } else {
    outcome.verdict = Verdict::kPassed;
  }
  return outcome;
}

class Checker {
 public:
  explicit Checker(const Options& options)
      : options_(options),
        start_(Clock::now()),
        end_(After(Seconds(options.minutes * 60) - kReserve)) {}

  int Run();

 private:
  bool Chosen(const Stage& stage) const {
    return options_.stages.empty() || std::find(options_.stages.begin(), options_.stages.end(),
                                                stage.name) != options_.stages.end();
  }
  bool is_over() const { return processes_.interrupted() || !lost_.empty(); }
  void Say(const std::string& text) const;
  void RunStages();
  std::string WhyNot(const Stage& stage) const;
  TimePoint EndOf(const Stage& stage) const;
  void RunItems(const std::vector<Item>& items, std::size_t jobs, StageResult* stage);
  void AskDevice(const std::string& suspect);
  void Record(Outcome outcome, StageResult* stage);
  void RecordRest(const std::vector<Item>& items, std::size_t next, StageResult* stage);
  void Facts(StageResult* stage);
  void FindTools();
  void ChooseCxxRuntime();
  void OpenDevice(StageResult* stage);
  void RunnerStage(const std::string& listing, std::size_t jobs, StageResult* stage);
  void DaemonStage(StageResult* stage);
  bool Serve(const Command& daemon, const std::string& run, const std::string& prefix,
             const std::vector<Item>& items, StageResult* stage);
  bool AwaitDaemon(pid_t pid, const Command& daemon, const std::string& run,
                   const std::string& name, StageResult* stage);
  std::string Listing(const Command& command);
  Command DeviceCommand(const std::string& log) const { return setup_.Bench({"--device"}, log); }
  int ExitStatus() const;
  // Returns false if the file cannot be written.
  bool WriteJson(int status) const;
  void PrintTable() const;

  const Options& options_;
  const TimePoint start_;
  const TimePoint end_;
  TimePoint stage_end_;
  Setup setup_;
  Bundle bundle_;
  Processes processes_;
  std::vector<StageResult> stages_;
  json device_;        // output of bench_kernels_cuda --device; null: no device
  json tools_;         // paths of the tools on this machine
  std::string fault_;  // error of the bundle
  std::string no_device_;
  std::string lost_;  // why nothing else can run on the device
};

void Checker::Say(const std::string& text) const {
  std::printf("[%4.0f s] %s\n", Seconds(Clock::now() - start_).count(), text.c_str());
  std::fflush(stdout);
}

void Checker::Record(Outcome outcome, StageResult* stage) {
  Say(stage->name + " " + outcome.name + ": " + kVerdictNames[static_cast<int>(outcome.verdict)] +
      (outcome.why.empty() ? "" : ", " + outcome.why));
  stage->items.push_back(std::move(outcome));
}

// Checks whether the device still works after an item that failed.
void Checker::AskDevice(const std::string& suspect) {
  const Command probe = DeviceCommand("device-after-failure");
  if (processes_.Run(probe, After(kProbeLimit)).value_or(1) == 0) return;
  lost_ = "the GPU is lost since " + suspect + ": " + Reason(ReadFile(probe.log));
  Say(lost_);
}

// Runs items, up to `jobs` at a time. A failed item may have broken the device, so the next process
// checks the device, and nothing else starts until it has answered.
void Checker::RunItems(const std::vector<Item>& items, std::size_t jobs, StageResult* stage) {
  struct Running {
    const Item* item;
    TimePoint start, limit;
  };
  std::map<pid_t, Running> running;
  std::string suspect;
  std::size_t next = 0;
  while (!running.empty() || !suspect.empty() || next < items.size()) {
    const bool may_start = !is_over() && Clock::now() + Seconds(1) < stage_end_;
    if (running.empty() && !suspect.empty()) {
      AskDevice(suspect);
      suspect.clear();
      continue;
    }
    if (running.empty() && !may_start) break;
    if (may_start && suspect.empty() && running.size() < jobs && next < items.size()) {
      const Item& item = items[next++];
      if (!item.skipped.empty()) {
        stage->items.push_back({item.name, Verdict::kSkipped, item.skipped});
        continue;
      }
      const TimePoint limit =
          std::min(stage_end_, After(std::min(item.limit, Seconds(options_.item_seconds))));
      const pid_t pid = processes_.Start(item.command);
      if (pid > 0) running[pid] = {&item, Clock::now(), limit};
      if (pid <= 0) Record({item.name, Verdict::kFailed, "cannot start a process"}, stage);
      continue;
    }
    TimePoint until = stage_end_;
    for (const auto& [pid, run] : running) until = std::min(until, run.limit);
    processes_.Wait(until);
    for (auto at = running.begin(); at != running.end();) {
      const auto [pid, run] = *at;
      const std::optional<int> status = processes_.TakeStatus(pid);
      const TimePoint now = Clock::now();
      if (!status && now < run.limit && !processes_.interrupted()) {
        ++at;
        continue;
      }
      if (!status) processes_.Kill(pid);
      Outcome outcome = Judge(*run.item, status, Seconds(now - run.start).count());
      if (!status && run.limit >= stage_end_) outcome.why = "the time was up before it ended";
      if (!status && processes_.interrupted()) outcome.why = "interrupted";
      if (!status && (run.limit >= stage_end_ || processes_.interrupted())) {
        outcome.verdict = Verdict::kNotRun;
      }
      const bool is_suspect = outcome.verdict != Verdict::kPassed && !processes_.interrupted();
      if (is_suspect && !device_.is_null()) suspect = outcome.name;
      Record(std::move(outcome), stage);
      at = running.erase(at);
    }
  }
  RecordRest(items, next, stage);
}

void Checker::RecordRest(const std::vector<Item>& items, std::size_t next, StageResult* stage) {
  for (; next < items.size(); ++next) {
    stage->items.push_back({.name = items[next].name,
                            .why = processes_.interrupted() ? "interrupted"
                                   : lost_.empty()          ? "the time was up"
                                                            : "the GPU is lost",
                            .is_optional = items[next].is_optional});
  }
}

std::string Checker::Listing(const Command& command) {
  processes_.Run(command, std::min(stage_end_, After(Seconds(20))));
  return ReadFile(command.log);
}

void Checker::FindTools() {
  for (const char* const name : {"nvidia-smi", "nvcc", "ncu", "compute-sanitizer", "python3"}) {
    tools_[name] = FindProgram(name);
  }
  const std::string smi = tools_["nvidia-smi"];
  const std::string log = setup_.results + "/nvidia-smi.log";
  if (!smi.empty()) processes_.Run({.argv = {smi, "-q"}, .log = log}, After(Seconds(10)));
}

// The bundle's runtime needs the newest glibc. On a machine with an older one, its own may be new
// enough.
void Checker::ChooseCxxRuntime() {
  const Command start = setup_.Program("quired", {"--version"}, "facts-cxx-runtime");
  if (processes_.Run(start, After(kProbeLimit)).value_or(1) == 0) return;
  setup_.cxx_runtime = options_.bundle + "/lib/cxx";
}

void Checker::OpenDevice(StageResult* stage) {
  const Item item{.name = "device", .command = DeviceCommand("facts-device")};
  const std::optional<int> status = processes_.Run(item.command, After(kProbeLimit));
  Outcome outcome = Judge(item, status, 0);
  device_ = json::parse(ReadFile(item.command.log), nullptr, false);
  if (outcome.verdict != Verdict::kPassed || !device_.is_object()) device_ = nullptr;
  if (outcome.verdict == Verdict::kPassed && device_.is_null()) {
    outcome.why = "bench_kernels_cuda --device prints no JSON";
  } else if (outcome.verdict == Verdict::kPassed) {
    const int capability = device_.value("compute_capability", 0);
    if (!options_.is_emulated && !RunsOn(bundle_.archs, capability)) {
      outcome.why = "the bundle has machine code for " + bundle_.archs + ", but the device needs " +
                    std::to_string(capability) + ": see scripts/gpu_bundle --arch";
      device_ = nullptr;
    }
  }
  if (device_.is_null()) {
    outcome.verdict = Verdict::kFailed;
    no_device_ = outcome.why;
  } else {
    outcome.why = device_.value("name", "");
  }
  Record(std::move(outcome), stage);
}

void Checker::Facts(StageResult* stage) {
  Record({.name = "bundle",
          .verdict = fault_.empty() ? Verdict::kPassed : Verdict::kFailed,
          .why = fault_},
         stage);
  if (!fault_.empty()) return;
  FindTools();
  ChooseCxxRuntime();
  RunItems(StartItems(setup_), 4, stage);
  OpenDevice(stage);
  if (!device_.is_null()) RunItems(ProbeItems(setup_), 1, stage);
}

// A temporary folder. It is in /tmp if the name of the usual folder is too long for Unix sockets
// (at most 107 bytes). Its contents are deleted with the object.
class RunFolder {
 public:
  RunFolder() {
    constexpr std::size_t kLongest = 64;
    std::error_code error;
    std::string base = std::filesystem::temp_directory_path(error).string();
    if (error || base.size() > kLongest) base = "/tmp";
    path_ = base + "/quire-gpu-XXXXXX";
    is_made_ = mkdtemp(path_.data()) != nullptr;
    if (!is_made_) problem_ = base + " cannot be written: " + strerror(errno);
  }
  ~RunFolder() {
    std::error_code error;
    if (is_made_) std::filesystem::remove_all(path_, error);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  bool is_made() const { return is_made_; }
  const std::string& problem() const { return problem_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string problem_;
  bool is_made_ = false;
};

// Waits until the daemon serves, or records why it does not.
bool Checker::AwaitDaemon(pid_t pid, const Command& daemon, const std::string& run,
                          const std::string& name, StageResult* stage) {
  const Command health = DaemonHealth(setup_, run);
  const TimePoint start = Clock::now();
  Outcome outcome{.name = name};
  std::optional<int> ended;
  while (!is_over() && Clock::now() < stage_end_ && !(ended = processes_.TakeStatus(pid))) {
    if (processes_.Run(health, stage_end_).value_or(1) == 0) {
      outcome.verdict = Verdict::kPassed;
      break;
    }
    processes_.Wait(After(Seconds(0.2)));
  }
  outcome.seconds = Seconds(Clock::now() - start).count();
  if (outcome.verdict != Verdict::kPassed) {
    outcome.verdict = Verdict::kFailed;
    const std::string reason = Reason(ReadFile(daemon.log));
    outcome.why = (ended ? "quired has exited: " : "quired is not ready: ") + reason;
    if (!ended) processes_.Kill(pid);
  }
  Record(outcome, stage);
  return outcome.verdict == Verdict::kPassed;
}

// Starts a daemon, runs items against it and stops it. Names in the results begin with `prefix`.
// Returns true if everything passed.
bool Checker::Serve(const Command& daemon, const std::string& run, const std::string& prefix,
                    const std::vector<Item>& items, StageResult* stage) {
  const std::size_t passed = stage->Count(Verdict::kPassed);
  const pid_t pid = processes_.Start(daemon);
  if (pid <= 0) {
    Record({prefix + "start", Verdict::kFailed, "cannot start quired"}, stage);
    return false;
  }
  if (AwaitDaemon(pid, daemon, run, prefix + "start", stage)) {
    RunItems(items, 1, stage);
    // If it has already ended, its process id may belong to another process.
    std::optional<int> status = processes_.TakeStatus(pid);
    if (!status) kill(pid, SIGTERM);
    const TimePoint until = After(Seconds(10));
    while (!status && Clock::now() < until) {
      processes_.Wait(until);
      status = processes_.TakeStatus(pid);
    }
    if (!status) processes_.Kill(pid);
    Record(Judge({.name = prefix + "stop", .command = daemon}, status, 0), stage);
  }
  return stage->Count(Verdict::kPassed) == passed + items.size() + 2;
}

// Runs the fixtures, then the daemon with and without overlap scheduling.
void Checker::RunnerStage(const std::string& listing, std::size_t jobs, StageResult* stage) {
  const std::vector<Item> fixtures = RunnerItems(setup_, listing);
  if (fixtures.empty()) Record({"list", Verdict::kFailed, kNothingToRun}, stage);
  RunItems(fixtures, jobs, stage);
  const Item compare = CompareItem(setup_);
  for (const bool has_overlap : {true, false}) {
    if (!compare.skipped.empty()) break;
    if (is_over() || Clock::now() + Seconds(1) >= stage_end_) {
      return RecordRest({compare}, 0, stage);
    }
    const RunFolder run;
    const std::string prefix = has_overlap ? "overlap on " : "overlap off ";
    if (!run.is_made()) {
      return Record({prefix + "folder", Verdict::kFailed, run.problem()}, stage);
    }
    if (!Serve(OverlapDaemon(setup_, run.path(), has_overlap), run.path(), prefix,
               {AnswersItem(setup_, run.path(), has_overlap)}, stage)) {
      return;  // the failure was recorded
    }
  }
  RunItems({compare}, 1, stage);
}

void Checker::DaemonStage(StageResult* stage) {
  const RunFolder run;
  if (!run.is_made()) {
    Record({.name = "folder", .verdict = Verdict::kFailed, .why = run.problem()}, stage);
    return;
  }
  RunItems({MakeModelItem(setup_, run.path())}, 1, stage);
  if (stage->Count(Verdict::kPassed) != 1) return;
  Serve(LoadDaemon(setup_, run.path()), run.path(), "", LoadItems(setup_, run.path()), stage);
}

// Returns why a stage cannot start, or "" if it can.
std::string Checker::WhyNot(const Stage& stage) const {
  if (!fault_.empty()) return "the bundle is incomplete";
  if (!no_device_.empty()) return "no device: " + no_device_;
  if (!lost_.empty()) return lost_;
  if (processes_.interrupted()) return "interrupted";
  const double free = device_.value("free_bytes", 0.0);
  if (!options_.is_emulated && free < stage.min_bytes) {
    char text[96];
    std::snprintf(text, sizeof(text), "%.1f GB of device memory are free, but the stage needs %.0f",
                  free / 1e9, stage.min_bytes / 1e9);
    return text;
  }
  if (std::string(stage.name) == "tools" && FindProgram("compute-sanitizer").empty()) {
    return "compute-sanitizer is not installed";
  }
  return "";
}

// Returns a share of the remaining time. Stages that cannot start leave their share to the others.
TimePoint Checker::EndOf(const Stage& stage) const {
  double shares = 0;
  for (const Stage& other : kStages) {
    const bool is_later = &other >= &stage;
    if (is_later && Chosen(other) && (device_.is_null() || WhyNot(other).empty())) {
      shares += other.share;
    }
  }
  if (!Chosen(stage)) shares += stage.share;
  const TimePoint now = Clock::now();
  return now + std::chrono::duration_cast<Clock::duration>(
                   (end_ - now) * std::min(1.0, stage.share / std::max(shares, stage.share)));
}

void Checker::RunStages() {
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t jobs = options_.is_emulated ? cores : std::clamp<std::size_t>(cores, 5, 16) - 4;
  for (const Stage& stage : kStages) {
    const std::string name = stage.name;
    // Without the stage facts, the device is unknown.
    if (!Chosen(stage) && name != "facts") continue;
    stage_end_ = EndOf(stage);
    StageResult result{.name = name};
    const TimePoint start = Clock::now();
    if (name != "facts") result.skipped = WhyNot(stage);
    if (!result.skipped.empty()) {
      Say(name + ": skipped, " + result.skipped);
    } else if (name == "facts") {
      Facts(&result);
    } else if (name == "smoke") {
      RunItems(SmokeItems(setup_, Listing(setup_.Bench({"--benchmark_list_tests"}, "list-bench"))),
               jobs, &result);
    } else if (name == "tests" || name == "runner") {
      const Command list = setup_.Program("quire_gpu_tests", {"--gtest_list_tests"}, "list-tests");
      const std::string listing = Listing(list);
      if (name == "tests") {
        RunItems(TestItems(setup_, listing), jobs, &result);
      } else {
        RunnerStage(listing, jobs, &result);
      }
    } else if (name == "tools") {
      RunItems(ToolItems(setup_), jobs, &result);
    } else if (name == "speed") {
      RunItems(SpeedItems(setup_, Listing(setup_.Bench({"--benchmark_list_tests"}, "list-bench"))),
               1, &result);
    } else {
      DaemonStage(&result);
    }
    if (result.items.empty() && result.skipped.empty()) {
      if (processes_.interrupted()) {
        result.skipped = "interrupted";
      } else {
        Record({"list", Verdict::kFailed, kNothingToRun}, &result);
      }
    }
    result.seconds = Seconds(Clock::now() - start).count();
    stages_.push_back(std::move(result));
  }
}

int Checker::ExitStatus() const {
  if (!fault_.empty()) return kDamagedBundle;
  if (!no_device_.empty()) return kNoDevice;
  int status = kPassed;
  for (const StageResult& stage : stages_) {
    if (stage.Count(Verdict::kFailed) > 0 || !lost_.empty()) return kFailed;
    if (stage.is_incomplete() || !stage.skipped.empty()) status = kIncomplete;
  }
  return status;
}

bool Checker::WriteJson(int status) const {
  json stages = json::array();
  for (const StageResult& stage : stages_) {
    json items = json::array();
    for (const Outcome& item : stage.items) {
      items.push_back({{"name", item.name},
                       {"verdict", kVerdictNames[static_cast<int>(item.verdict)]},
                       {"why", item.why},
                       {"seconds", item.seconds}});
    }
    stages.push_back({{"name", stage.name},
                      {"verdict", stage.verdict()},
                      {"skipped", stage.skipped},
                      {"seconds", stage.seconds},
                      {"items", items}});
  }
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%F %H:%M UTC", std::gmtime(&now));
  const json all = {{"quire", bundle_.version},
                    {"archs", bundle_.archs},
                    {"date", date},
                    {"is_emulated", options_.is_emulated},
                    {"minutes", options_.minutes},
                    {"device", device_},
                    {"tools", tools_},
                    {"lost", lost_},
                    {"exit_status", status},
                    {"stages", stages}};
  std::ofstream file(setup_.results + "/results.json");
  file << all.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  file.close();
  return !file.fail();
}

void Checker::PrintTable() const {
  std::printf("\n%s%s\n", device_.is_null() ? "no device" : device_.value("name", "").c_str(),
              options_.is_emulated ? ": EMULATED, its times are meaningless" : "");
  std::printf("%-8s %-10s %9s %8s  %s\n", "stage", "verdict", "items", "seconds", "why");
  for (const StageResult& stage : stages_) {
    std::string why = stage.skipped;
    for (const Outcome& item : stage.items) {
      const bool tells = item.verdict == Verdict::kFailed ||
                         (item.verdict == Verdict::kNotRun && !item.is_optional);
      if (tells && why.empty()) why = item.name + ": " + item.why;
    }
    const std::size_t skipped = stage.Count(Verdict::kSkipped);
    if (why.empty() && skipped > 0) {
      const auto first = std::find_if(stage.items.begin(), stage.items.end(), [](const auto& item) {
        return item.verdict == Verdict::kSkipped;
      });
      why = std::to_string(skipped) + " skipped: " + first->why;
    }
    std::printf("%-8s %-10s %4zu/%-4zu %8.1f  %s\n", stage.name.c_str(), stage.verdict(),
                stage.Count(Verdict::kPassed), stage.items.size() - skipped, stage.seconds,
                why.c_str());
  }
  std::printf("results: %s\n", options_.archive.c_str());
}

int Checker::Run() {
  const char* const testdata = getenv("QUIRE_TESTDATA");
  setup_ = {.bundle = options_.bundle,
            .testdata = testdata != nullptr ? testdata : options_.bundle + "/testdata",
            .results = options_.archive + ".parts",
            .is_emulated = options_.is_emulated,
            .prompts = options_.prompts};
  std::error_code error;
  std::filesystem::create_directories(setup_.results, error);
  if (error) {
    std::fprintf(stderr, "cannot create %s: %s\n", setup_.results.c_str(), error.message().c_str());
    return kFailed;
  }
  bundle_ = ReadBundle(options_.bundle, &fault_);
  RunStages();
  int status = ExitStatus();
  std::string fault;
  if (!WriteJson(status)) fault = "cannot write results.json";
  if (fault.empty()) fault = WriteArchive(setup_.results, "results", options_.archive);
  if (fault.empty()) {
    std::filesystem::remove_all(setup_.results, error);
  } else {
    std::fprintf(stderr, "%s; the files are in %s\n", fault.c_str(), setup_.results.c_str());
    if (status == kPassed || status == kIncomplete) status = kFailed;
  }
  PrintTable();
  return status;
}

}  // namespace

int Check(const Options& options) {
  return Checker(options).Run();
}

}  // namespace quire::gpu_run
