#include "tools/gpu_run/stages.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace quire::gpu_run {
namespace {

bool Has(const std::string& text, const char* part) {
  // NOLINTNEXTLINE(abseil-string-find-str-contains): this program does not use Abseil.
  return text.find(part) != std::string::npos;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Returns the names of benchmarks, without other lines of the listing.
std::vector<std::string> Benchmarks(const std::string& listing) {
  std::vector<std::string> names;
  for (const std::string& line : Lines(listing)) {
    if (line.starts_with("BM_")) names.push_back(line);
  }
  return names;
}

// Parts of names of the most informative shapes of docs/benchmarks/gpu_queue.md, in order of
// priority.
constexpr std::array kFirstShapes = {
    "batch:32/cached:4096/rows:1/heads:32/kv_heads:8/d:128/maps:1",
    "batch:1/cached:0/rows:8192/heads:32/kv_heads:8/d:128/maps:1",
    "BM_Linear/n:28672/k:4096/m:1/",
    "BM_Linear/n:28672/k:4096/m:64/",
    "BM_Linear/n:28672/k:4096/m:4096/",
    "BM_Linear/n:4096/k:4096/m:1/",
    "batch:32/cached:4096/rows:1/heads:32/kv_heads:8/d:128/maps:0",
    "batch:1/cached:0/rows:8192/heads:32/kv_heads:8/d:128/maps:0",
    "batch:1/cached:1024/rows:1/heads:32/kv_heads:8/d:128/maps:1",
    "format:3/group:128/zeros:0/order:0/n:28672/k:4096/m:1/",
    "format:1/group:0/zeros:0/order:0/n:28672/k:4096/m:1/",
    "format:2/group:0/zeros:0/order:0/n:28672/k:4096/m:1/",
    "format:4/group:32/zeros:0/order:0/n:28672/k:4096/m:1/",
    "format:3/group:128/zeros:0/order:0/n:28672/k:4096/m:2048",
    "BM_RmsNorm/rows:8192",
    "BM_SiluProduct/rows:4096",
    "BM_QkvStore/rows:4096",
    "BM_Sample/rows:1/vocab:128256/k:0/p:100/t:0",
    "BM_Sample/rows:64/vocab:128256/k:40",
    "BM_PlanAttention/batch:512",
};

std::size_t RankOf(const std::string& name) {
  const auto found = std::find_if(kFirstShapes.begin(), kFirstShapes.end(),
                                  [&](const char* part) { return Has(name, part); });
  return static_cast<std::size_t>(found - kFirstShapes.begin());
}

// Returns an item for the shapes that match `pattern`; a pattern without wildcards is one shape.
Item BenchItem(const Setup& setup, const char* stage, const std::string& name,
               const std::string& pattern) {
  const std::string file = std::string(stage) + "-" + FileName(name);
  // Five repetitions of ten milliseconds each.
  return {
      .name = name,
      .command = setup.Bench({"--benchmark_filter=^" + pattern + "$", "--benchmark_repetitions=5",
                              "--benchmark_min_time=0.01", "--benchmark_out_format=json",
                              "--benchmark_out=" + setup.results + "/" + file + ".json"},
                             file),
      .limit = Seconds(20)};
}

// Returns the names of the test suites in a listing.
std::vector<std::string> Suites(const std::string& listing) {
  std::vector<std::string> suites;
  for (const std::string& line : Lines(listing)) {
    const std::string suite = line.substr(0, line.find('.'));
    if (!line.empty() && suite.size() < line.size() && !Has(suite, " ")) suites.push_back(suite);
  }
  return suites;
}

// Returns true if a suite needs the fixture of a model.
bool IsOfModels(const std::string& suite) {
  constexpr std::array kParts = {"Parity",    "LlamaCuda",  "FormatCuda",
                                 "Converted", "BlocksCuda", "WindowModel"};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](const char* part) { return Has(suite, part); });
}

Item TestItem(const Setup& setup, const std::string& stage, const std::string& suite,
              const std::string& tests) {
  const std::string name = tests == "*" ? suite : suite + tests.substr(1);
  const std::string file = stage + "-" + FileName(name);
  return {.name = name,
          .command = setup.Program("quire_gpu_tests",
                                   {"--gtest_filter=" + suite + "." + tests,
                                    "--gtest_output=xml:" + setup.results + "/" + file + ".xml"},
                                   file),
          .limit = Seconds(120)};
}

// Returns the names of the fixtures in the test data, in the spelling of tests: _ instead of -.
std::vector<std::string> Fixtures(const std::string& testdata) {
  std::vector<std::string> names;
  std::error_code error;
  for (const char* const below : {"/models", "/gguf/models", "/formats/models"}) {
    for (const auto& entry : std::filesystem::directory_iterator(testdata + below, error)) {
      std::string name = entry.path().stem().string();
      std::replace(name.begin(), name.end(), '-', '_');
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace

std::string FileName(const std::string& text) {
  std::string name;
  for (const char c : text) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ? c : '-';
  }
  return name.size() > 70 ? name.substr(name.size() - 70) : name;
}

std::string FindProgram(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(std::string(path == nullptr ? "" : path) +
                             ":/usr/local/cuda/bin:/usr/bin");
  for (std::string file; std::getline(folders, file, ':');) {
    if (file.empty()) continue;
    file += "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

Command Setup::Program(const std::string& name, std::vector<std::string> arguments,
                       const std::string& log) const {
  Command command{.argv = {bundle + "/" + name},
                  .env = {"QUIRE_UNPROVEN=1", "QUIRE_TESTDATA=" + testdata},
                  .log = results + "/" + log + ".log"};
  if (!cxx_runtime.empty()) command.env.push_back("LD_LIBRARY_PATH=" + cxx_runtime);
  for (std::string& argument : arguments) command.argv.push_back(std::move(argument));
  return command;
}

Command Setup::Bench(std::vector<std::string> arguments, const std::string& log) const {
  return Program(is_emulated ? "bench_kernels_cuda_emulated" : "bench_kernels_cuda",
                 std::move(arguments), log);
}

std::vector<Item> StartItems(const Setup& setup) {
  std::vector<Item> items;
  for (const auto& [name, argument] : {std::pair{"quired", "--version"},
                                       {"quire", "--version"},
                                       {"quire_answers", "--help"},
                                       {"quire_gpu_tests", "--gtest_list_tests"},
                                       {"bench_kernels_cuda", "--benchmark_list_tests"},
                                       {"bench_kernels_cuda_emulated", "--benchmark_list_tests"}}) {
    items.push_back({.name = std::string(name) + " starts",
                     .command = setup.Program(name, {argument}, std::string("facts-") + name),
                     .limit = Seconds(20)});
  }
  return items;
}

std::vector<Item> ProbeItems(const Setup& setup) {
  std::vector<Item> items;
  for (const auto& [large, tiny] :
       {std::pair{"BM_DeviceCopy/2147483648", "BM_DeviceCopy/tiny/4096"},
        {"BM_DeviceMatmul/8192", "BM_DeviceMatmul/tiny/64"}}) {
    const std::string name = std::string(setup.is_emulated ? tiny : large) + "/manual_time";
    items.push_back(BenchItem(setup, "facts", name, name));
  }
  return items;
}

std::vector<Item> SmokeItems(const Setup& setup, const std::string& listing) {
  std::vector<Item> items;
  for (const std::string& name : Benchmarks(listing)) {
    if (!Has(name, "/tiny")) continue;
    const std::string file = "smoke-" + FileName(name);
    items.push_back({.name = name,
                     .command = setup.Bench(
                         {"--benchmark_filter=^" + name + "$", "--benchmark_min_time=0.001"}, file),
                     .limit = Seconds(20)});
  }
  return items;
}

std::vector<Item> TestItems(const Setup& setup, const std::string& listing) {
  std::vector<Item> items;
  for (const std::string& suite : Suites(listing)) {
    if (!IsOfModels(suite)) items.push_back(TestItem(setup, "tests", suite, "*"));
  }
  std::stable_partition(items.begin(), items.end(), [](const Item& item) {
    return Has(item.name, "Sm90") || Has(item.name, "TensorMaps");
  });
  return items;
}

std::vector<Item> RunnerItems(const Setup& setup, const std::string& listing) {
  const std::vector<std::string> fixtures = Fixtures(setup.testdata);
  std::vector<Item> items;
  std::string suite;
  std::set<std::string> seen;
  for (const std::string& line : Lines(listing)) {
    if (line.empty() || line[0] != ' ') {
      suite = line.substr(0, line.find('.'));
      seen.clear();
      continue;
    }
    if (!IsOfModels(suite)) continue;
    const std::string test = line.substr(2, line.find("  #") - 2);
    const std::size_t slash = test.find('/');
    const std::string parameter = slash == std::string::npos ? "" : test.substr(slash + 1);
    if (!seen.insert(parameter).second) continue;
    items.push_back(TestItem(setup, "runner", suite, parameter.empty() ? "*" : "*/" + parameter));
    const bool is_there = std::any_of(fixtures.begin(), fixtures.end(), [&](const auto& name) {
      return parameter.empty() || parameter.starts_with(name);
    });
    if (!is_there) items.back().skipped = "its fixture is not in the bundle";
  }
  return items;
}

std::vector<Item> ToolItems(const Setup& setup) {
  std::vector<Item> items;
  const std::string sanitizer = FindProgram("compute-sanitizer");
  if (sanitizer.empty()) return items;
  for (const char* const tool : {"memcheck", "racecheck", "synccheck", "initcheck"}) {
    Item item{.name = tool,
              .command = setup.Bench({"--benchmark_filter=/tiny", "--benchmark_min_time=0.001"},
                                     std::string("tools-") + tool),
              .limit = Seconds(90)};
    const std::vector<std::string> before = {sanitizer, "--tool", tool, "--error-exitcode", "2"};
    item.command.argv.insert(item.command.argv.begin(), before.begin(), before.end());
    items.push_back(item);
  }
  return items;
}

std::vector<Item> SpeedItems(const Setup& setup, const std::string& listing) {
  std::vector<std::string> names;
  for (const std::string& name : Benchmarks(listing)) {
    if (!Has(name, "/tiny") && !Has(name, "BM_Device")) names.push_back(name);
  }
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return RankOf(a) < RankOf(b);
  });
  std::vector<Item> items;
  std::map<std::string, std::vector<std::string>> others;  // the other shapes, by function
  for (const std::string& name : names) {
    if (RankOf(name) < kFirstShapes.size()) {
      items.push_back(BenchItem(setup, "speed", name, name));
      continue;
    }
    others[name.substr(0, name.find('/'))].push_back(name);
  }
  // One process per function, because opening a GPU takes longer than measuring most shapes.
  for (const auto& [function, shapes] : others) {
    std::string pattern;
    for (const std::string& name : shapes) pattern += (pattern.empty() ? "(" : "|") + name;
    Item item = BenchItem(setup, "speed", function, pattern + ")");
    item.limit *= static_cast<double>(shapes.size());
    item.is_optional = true;
    items.push_back(std::move(item));
  }
  // torch is measured directly after the most important shapes, so that both run under the same
  // conditions.
  const std::string python = FindProgram("python3");
  if (python.empty()) return items;
  Item peers{.name = "peers",
             .command = setup.Program("gpu_peers.py", {setup.results + "/peers.json"}, "peers"),
             .limit = Seconds(60)};
  peers.command.argv.insert(peers.command.argv.begin(), python);
  const auto at =
      std::find_if(items.begin(), items.end(), [](const Item& item) { return item.is_optional; });
  items.insert(at, peers);
  return items;
}

namespace {

// Returns the address of a daemon, so that several checks can run in parallel.
std::string OwnAddress(const std::string& run) {
  return "unix:" + run + "/grpc.sock";
}

Command Client(const Setup& setup, const std::string& run, std::vector<std::string> arguments,
               const std::string& log) {
  std::vector<std::string> all = {"--address", OwnAddress(run), "--admin",
                                  "unix:" + run + "/admin.sock"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return setup.Program("quire", all, log);
}

}  // namespace

Command DaemonHealth(const Setup& setup, const std::string& run) {
  return Client(setup, run, {"--timeout", "2", "health"}, "daemon-health");
}

namespace {

Command Quired(const Setup& setup, const std::string& run, std::vector<std::string> keys,
               const std::string& log) {
  keys.emplace_back("device.type=cuda");
  keys.emplace_back("server.http.listen=127.0.0.1:0");
  keys.push_back("server.admin.listen=[unix:" + run + "/admin.sock]");
  std::vector<std::string> arguments;
  for (std::string& key : keys) {
    arguments.emplace_back("--set");
    arguments.push_back(std::move(key));
  }
  return setup.Program("quired", arguments, log);
}

constexpr char kOverlapModel[] = "llama-theta500k-multieos-bf16";

std::string AnswersName(bool has_overlap) {
  return std::string("answers-") + (has_overlap ? "overlap" : "one-step");
}

}  // namespace

Item CompareItem(const Setup& setup) {
  Item item{.name = "overlap on and off",
            .command = setup.Program("quire_answers",
                                     {"--compare", setup.results + "/" + AnswersName(true) + ".txt",
                                      setup.results + "/" + AnswersName(false) + ".txt"},
                                     "answers-compare"),
            .limit = Seconds(20)};
  const std::vector<std::string> fixtures = Fixtures(setup.testdata);
  std::string name = kOverlapModel;
  std::replace(name.begin(), name.end(), '-', '_');
  if (std::find(fixtures.begin(), fixtures.end(), name) == fixtures.end()) {
    item.skipped = "its fixture is not in the bundle";
  }
  return item;
}

Command OverlapDaemon(const Setup& setup, const std::string& run, bool has_overlap) {
  return Quired(setup, run,
                {"model.path=" + setup.testdata + "/models/" + kOverlapModel,
                 "server.grpc.listen=[" + OwnAddress(run) + "]", "kv_cache.capacity_bytes=64MiB",
                 "shutdown.pre_drain_delay=0s",
                 std::string("engine.overlap_scheduling=") + (has_overlap ? "true" : "false")},
                AnswersName(has_overlap) + "-quired");
}

Item AnswersItem(const Setup& setup, const std::string& run, bool has_overlap) {
  const std::string name = AnswersName(has_overlap);
  return {.name = name,
          .command = setup.Program(
              "quire_answers",
              {"--address", OwnAddress(run), "--requests", std::to_string(setup.prompts), "--out",
               setup.results + "/" + name + ".txt"},
              name),
          .limit = Seconds(90)};
}

Item MakeModelItem(const Setup& setup, const std::string& run) {
  return {.name = "make-model",
          .command = setup.Program(
              "quire", {"make-model", "--shape", "llama-3.1-8b", "--out", run + "/model"},
              "daemon-make-model")};
}

Command LoadDaemon(const Setup& setup, const std::string& run) {
  return Quired(setup, run,
                {"model.path=" + run + "/model", "model.load_mode=dummy",
                 "server.grpc.listen=[" + OwnAddress(run) + "]"},
                "daemon-quired");
}

std::vector<Item> LoadItems(const Setup& setup, const std::string& run) {
  std::vector<Item> items;
  for (const int streams : {1, 32, 128}) {
    const std::string count = std::to_string(streams);
    items.push_back(
        {.name = count + (streams == 1 ? " stream" : " streams"),
         .command =
             Client(setup, run,
                    {"bench", "--concurrency", count, "--requests", std::to_string(streams * 4),
                     "--warmup", count, "--input-tokens", "512", "--output-tokens", "128",
                     "--output-file", setup.results + "/daemon-" + count + ".json"},
                    "daemon-" + count),
         .limit = Seconds(60)});
  }
  return items;
}

}  // namespace quire::gpu_run
