// quire bench: load test of quired, optionally alternating with another server.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/bench_counters.h"
#include "tools/quire/bench_load.h"
#include "tools/quire/bench_report.h"
#include "tools/quire/bench_run.h"
#include "tools/quire/bench_svg.h"
#include "tools/quire/bench_target.h"
#include "tools/quire/bench_trace.h"
#include "tools/quire/client.h"
#include "tools/quire/unary_call.h"

namespace quire::client {
namespace {

using nlohmann::json;

// Options of the command line.
struct BenchOptions {
  std::int64_t requests = 0;  // 0: 64, or the whole trace
  std::int64_t warmup = 0;
  std::int64_t concurrency = 0;  // 0: 8 clients; open loop: at most 4096 requests in flight
  std::string input = "128", output = "64";
  std::string arrival = "poisson";
  LoadOptions load;
  std::string slo, trace, output_file, svg_file;
  double speed = 1;
  std::string metrics;
  std::string peer, peer_model;
  std::int64_t rounds = 1;
  int pid = 0, peer_pid = 0;
};

// The parsed options.
struct BenchPlan {
  LoadOptions load;
  std::vector<TraceEntry> trace;
  std::int64_t requests = 0, warmup = 0, concurrency = 0;
  ServiceLevel service_level;
  std::optional<PeerAddress> peer;
};

// One server under test.
struct Subject {
  std::string backend, model_id;
  TargetFactory targets;
  int pid = 0;
  std::string metrics;  // URL of its metrics; empty: do not read counters
};

absl::StatusOr<BenchPlan> MakePlan(const BenchOptions& options) {
  BenchPlan plan;
  plan.load = options.load;
  QUIRE_ASSIGN_OR_RETURN(plan.load.input, ParseLengths(options.input));
  QUIRE_ASSIGN_OR_RETURN(plan.load.output, ParseLengths(options.output));
  if (options.load.burstiness != 1 && options.arrival != "gamma") {
    return absl::InvalidArgumentError("--burstiness needs --arrival gamma");
  }
  if (!options.load.schema.empty() &&
      !json::parse(options.load.schema, nullptr, /*allow_exceptions=*/false).is_object()) {
    return absl::InvalidArgumentError("--schema: the file is not a JSON object");
  }
  if (options.load.rate > 0) {
    plan.load.arrival = options.arrival == "poisson" ? Arrival::kPoisson
                        : options.arrival == "gamma" ? Arrival::kGamma
                                                     : Arrival::kConstant;
  }
  if (!options.slo.empty()) {
    QUIRE_ASSIGN_OR_RETURN(plan.service_level, ParseServiceLevel(options.slo));
  }
  if (!options.peer.empty()) {
    QUIRE_ASSIGN_OR_RETURN(plan.peer, ParsePeer(options.peer));
  }
  plan.requests = options.requests > 0 ? options.requests : 64;
  if (!options.trace.empty()) {
    QUIRE_ASSIGN_OR_RETURN(plan.trace, ReadTrace(options.trace, options.speed));
    const auto length = static_cast<std::int64_t>(plan.trace.size());
    plan.requests = options.requests > 0 ? std::min(options.requests, length) : length;
  }
  const bool is_open = options.load.rate > 0 || !plan.trace.empty();
  plan.concurrency = options.concurrency > 0 ? options.concurrency : is_open ? 4096 : 8;
  plan.warmup = options.warmup;
  return plan;
}

absl::StatusOr<ServerCounters> ReadCounters(const std::string& url) {
  constexpr absl::string_view kHint =
      "; --metrics needs the metrics of quired (server.http.listen), by default "
      "http://127.0.0.1:9464/metrics";
  const absl::StatusOr<std::string> text = HttpGet(url);
  if (!text.ok()) {
    return absl::UnavailableError(absl::StrCat(text.status().message(), kHint));
  }
  if (!absl::StrContains(*text, "quire_requests_accepted_total")) {
    return absl::InvalidArgumentError(
        absl::StrCat(url, " does not serve the metrics of quired", kHint));
  }
  return ParseCounters(*text);
}

// The server may count the end of a request some time after the client has its answer. Violated
// rules are therefore checked again for half a minute, unless the violation is permanent. Returns
// DATA_LOSS with the violated rules.
absl::Status CheckCounters(const std::string& url, const ServerCounters& before,
                           const std::vector<RequestSample>& samples) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const ServerCounters after, ReadCounters(url));
    const std::vector<std::string> violations = CheckConservation(before, after, samples);
    if (violations.empty()) return absl::OkStatus();
    if (IsPermanentMismatch(before, after, samples) || std::chrono::steady_clock::now() >= end) {
      return absl::DataLossError(absl::StrCat("the counters of the server are inconsistent: ",
                                              absl::StrJoin(violations, "; ")));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// Runs `plan` once on one server. `round` determines the tokens of the prompts, so that rounds
// share no prefix. Stores the result of the counter check in `*check`.
absl::StatusOr<BenchRun> RunOnce(const BenchPlan& plan, const Subject& subject,
                                 std::int32_t vocab_size, std::int64_t round,
                                 const std::atomic<bool>& stop, absl::Status* check) {
  LoadOptions load = plan.load;
  load.round = static_cast<std::uint64_t>(round);
  const Workload workload(load, vocab_size, plan.trace);
  if (round == 0 && plan.warmup > 0) {
    RunLoad(Workload(load, vocab_size), subject.targets,
            {.first = plan.requests,
             .count = plan.warmup,
             .concurrency = std::min<std::int64_t>(plan.concurrency, 64),
             .is_closed_loop = true},
            stop);
  }
  ServerCounters before;
  if (!subject.metrics.empty()) {
    QUIRE_ASSIGN_OR_RETURN(before, ReadCounters(subject.metrics));
  }
  MemorySampler memory(subject.pid);
  RunResult result = RunLoad(workload, subject.targets,
                             {.count = plan.requests, .concurrency = plan.concurrency}, stop);
  BenchRun run{.backend = subject.backend,
               .model_id = subject.model_id,
               .concurrency = plan.concurrency,
               .duration_seconds = result.duration_seconds,
               .interrupted = static_cast<std::int64_t>(result.samples.size()) < plan.requests,
               .service_level = plan.service_level,
               .peak_pss_bytes = memory.Stop(),
               .samples = std::move(result.samples)};
  if (workload.is_open()) {
    // For a trace, reports the average rate.
    const double span = workload.SendTimes(plan.requests).back();
    run.request_rate = plan.trace.empty() ? load.rate
                       : span > 0         ? static_cast<double>(plan.requests - 1) / span
                                          : static_cast<double>(plan.requests);
    run.burstiness = load.burstiness;
  }
  if (!subject.metrics.empty() && !run.interrupted) {
    *check = CheckCounters(subject.metrics, before, run.samples);
  }
  return run;
}

// A file that a run writes. It is opened before the load, which may take hours.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path) : path_(path) {
    if (!path.empty()) file_.open(path, std::ios::binary);
  }

  absl::Status status() const {
    return file_ ? absl::OkStatus()
                 : absl::FailedPreconditionError(absl::StrCat("cannot write ", path_));
  }
  absl::Status Write(const std::string& text) {
    if (path_.empty()) return absl::OkStatus();
    file_ << text;
    file_.close();
    return status();
  }

 private:
  const std::string path_;
  std::ofstream file_;
};

// Returns exit code 1 if a request failed, and prints the first error of each server.
int ExitCodeOf(const std::vector<std::vector<BenchRun>>& runs) {
  int exit_code = kOk;
  for (const std::vector<BenchRun>& subject_runs : runs) {
    std::size_t failed = 0, sent = 0;
    const RequestSample* first = nullptr;
    for (const BenchRun& run : subject_runs) {
      sent += run.samples.size();
      for (const RequestSample& sample : run.samples) {
        if (sample.ok || sample.cancelled) continue;
        ++failed;
        if (first == nullptr) first = &sample;
      }
    }
    if (failed == 0) continue;
    exit_code = kRequestFailed;
    std::fprintf(stderr, "quire: %s of %zu requests failed (%s); the first error: %s\n",
                 failed == sent ? "all" : absl::StrCat(failed).c_str(), sent,
                 subject_runs.front().backend.c_str(), first->error.c_str());
  }
  return exit_code;
}

// Prints the report and writes it to `output`. REQUIRES: there is a run of each subject.
absl::Status Print(const CommonOptions& common, OutputFile* output,
                   const std::vector<std::vector<BenchRun>>& runs, bool interrupted) {
  const bool compares = runs.size() > 1;
  std::string json, table;
  if (compares) {
    json = ComparisonJson(runs[0], runs[1], interrupted);
    table = ComparisonTable(runs[0], runs[1], interrupted);
  } else if (runs[0].size() == 1) {
    json = ReportJson(runs[0][0]);
    table = ReportTable(runs[0][0]);
  } else {
    std::vector<std::string> lines;
    for (const BenchRun& run : runs[0]) {
      lines.push_back(ReportJson(run));
      table += ReportTable(run);
    }
    json = absl::StrJoin(lines, "\n");
  }
  json += "\n";
  std::printf("%s", common.json ? json.c_str() : table.c_str());
  return output->Write(json);
}

// Appends a run of each subject to `runs`. An interrupted round of a comparison is discarded,
// because medians need complete rounds. Sets `*interrupted` if requests were not sent.
absl::Status RunRound(const BenchPlan& plan, const std::vector<Subject>& subjects,
                      std::int32_t vocab_size, std::int64_t round, const std::atomic<bool>& stop,
                      std::vector<std::vector<BenchRun>>* runs, bool* interrupted) {
  absl::Status check;
  std::vector<BenchRun> round_runs;
  for (const Subject& subject : subjects) {
    absl::Status subject_check;
    QUIRE_ASSIGN_OR_RETURN(BenchRun run,
                           RunOnce(plan, subject, vocab_size, round, stop, &subject_check));
    check.Update(subject_check);
    round_runs.push_back(std::move(run));
    *interrupted = round_runs.back().interrupted;
    if (*interrupted) break;
  }
  if (*interrupted && subjects.size() > 1) return check;
  for (std::size_t i = 0; i < subjects.size(); ++i) (*runs)[i].push_back(std::move(round_runs[i]));
  return check;
}

int RunRounds(const CommonOptions& common, const BenchOptions& options, const BenchPlan& plan,
              const std::vector<Subject>& subjects, std::int32_t vocab_size) {
  OutputFile output(options.output_file);
  if (!output.status().ok()) return FailWith(output.status(), kRequestFailed);
  OutputFile svg(options.svg_file);
  if (!svg.status().ok()) return FailWith(svg.status(), kRequestFailed);
  std::atomic<bool> stop{false};
  InterruptGuard guard([&stop] { stop.store(true); });
  std::vector<std::vector<BenchRun>> runs(subjects.size());
  bool interrupted = false;
  absl::Status failure;
  for (std::int64_t round = 0; round < options.rounds && failure.ok() && !interrupted; ++round) {
    interrupted = stop.load();
    if (interrupted) break;
    failure = RunRound(plan, subjects, vocab_size, round, stop, &runs, &interrupted);
  }
  // Prints the measured rounds even if a later one failed.
  absl::Status written;
  if (!runs[0].empty()) {
    written = Print(common, &output, runs, interrupted);
    written.Update(svg.Write(BenchSvg(runs)));
  }
  if (interrupted && runs[0].empty()) {
    std::fprintf(stderr, "quire: interrupted in the first round\n");
  }
  if (!failure.ok()) return FailWith(failure, kRequestFailed);
  if (!written.ok()) return FailWith(written, kRequestFailed);
  const int verdict = ExitCodeOf(runs);
  return interrupted ? kInterrupted : verdict;
}

int RunBench(const CommonOptions& common, const BenchOptions& options) {
  const absl::StatusOr<BenchPlan> plan = MakePlan(options);
  if (!plan.ok()) return FailWith(plan.status(), kWrongUsage);
  v1::GetModelResponse model;
  const grpc::Status status =
      Call(common, common.address, &v1::GenerationService::Stub::GetModel, {}, &model);
  if (!status.ok()) return Fail(common, status, common.address);

  std::vector<Subject> subjects = {
      {"quire", model.model().id(), GrpcTargets(common), options.pid, options.metrics}};
  if (plan->peer.has_value()) {
    std::string peer_model = options.peer_model;
    if (peer_model.empty()) {
      const absl::StatusOr<std::string> found = PeerModel(*plan->peer);
      if (!found.ok()) return FailWith(found.status(), kCannotConnect);
      peer_model = *found;
    }
    subjects.push_back({std::string(PeerKindName(plan->peer->kind)), peer_model,
                        HttpTargets(*plan->peer, peer_model, common.timeout_seconds),
                        options.peer_pid, ""});
  }
  return RunRounds(common, options, *plan, subjects, model.model().vocab_size());
}

// Adds and returns the prompt options that cannot be combined with a trace.
std::vector<CLI::Option*> AddPromptOptions(CLI::App* cmd, BenchOptions* options) {
  CLI::Option* const input =
      cmd->add_option("--input-tokens", options->input,
                      "prompt lengths: 128, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX")
          ->capture_default_str();
  CLI::Option* const output =
      cmd->add_option("--output-tokens", options->output, "answer lengths, in the same format")
          ->capture_default_str();
  CLI::Option* const prefix =
      cmd->add_option("--prefix-tokens", options->load.prefix_tokens, "length of shared prefixes")
          ->capture_default_str()
          ->check(CLI::Range(0, 10'000'000));
  cmd->add_option("--prefix-count", options->load.prefix_count, "number of shared prefixes")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000))
      ->needs(prefix);
  cmd->add_option("--prefix-share", options->load.prefix_share,
                  "fraction of prompts with a shared prefix")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->needs(prefix);
  return {input, output, prefix};
}

// Adds the options of send times. An option that would have no effect is an error.
void AddArrivalOptions(CLI::App* cmd, BenchOptions* options,
                       const std::vector<CLI::Option*>& prompt_options) {
  CLI::Option* const rate =
      cmd->add_option("--rate", options->load.rate,
                      "open loop with this many requests per second, 0.001 to 1000000")
          ->check(CLI::Range(1e-3, 1e6));
  cmd->add_option("--arrival", options->arrival,
                  "distribution of arrivals in the open loop: poisson, gamma or constant")
      ->capture_default_str()
      ->check(CLI::IsMember({"poisson", "gamma", "constant"}))
      ->needs(rate);
  cmd->add_option("--burstiness", options->load.burstiness,
                  "shape of --arrival gamma, 0.001 to 1000; 1 is poisson, less is burstier")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e3))
      ->needs(rate);
  CLI::Option* const trace =
      cmd->add_option("--trace", options->trace,
                      "file with send times and lengths (Azure CSV or Mooncake JSON lines)")
          ->excludes(rate);
  for (CLI::Option* const option : prompt_options) trace->excludes(option);
  cmd->add_option("--speed", options->speed, "speed of the trace; 2 is twice as fast")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->needs(trace);
}

void AddLoadOptions(CLI::App* cmd, BenchOptions* options) {
  cmd->add_option("--requests", options->requests,
                  "requests to measure (default: 64, or the whole trace)")
      ->check(CLI::Range(1, 10'000'000));
  cmd->add_option("--warmup", options->warmup, "requests to send before measuring")
      ->capture_default_str()
      ->check(CLI::Range(0, 10'000'000));
  cmd->add_option("--concurrency", options->concurrency,
                  "clients of the closed loop (default 8), or maximum requests in flight of the "
                  "open loop (4096)")
      ->check(CLI::Range(1, 4096));
  AddArrivalOptions(cmd, options, AddPromptOptions(cmd, options));
  cmd->add_option("--cancel-ratio", options->load.cancel_ratio,
                  "fraction of requests that are cancelled after some tokens")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  CLI::Option* const schema = AddFileOption(
      cmd, "--schema", "file with a JSON Schema for the answers", [options](std::string text) {
        options->load.schema = std::move(text);
        return absl::OkStatus();
      });
  cmd->add_option("--schema-share", options->load.schema_share,
                  "fraction of requests with --schema")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->needs(schema);
  cmd->add_option("--seed", options->load.seed, "seed of lengths, prompts and send times")
      ->capture_default_str();
}

void AddMeasureOptions(CLI::App* cmd, BenchOptions* options) {
  cmd->add_option("--slo", options->slo,
                  "latency limits of goodput, any of ttft=500ms,tpot=50ms,e2e=10s");
  cmd->add_option("--rounds", options->rounds,
                  "number of runs, each with new prompts of the same lengths; with --peer they "
                  "alternate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  CLI::Option* const peer = cmd->add_option(
      "--peer", options->peer, "also run the load on another server: openai=URL or llamacpp=URL");
  cmd->add_option("--peer-model", options->peer_model,
                  "model of --peer (default: the first of its /v1/models)")
      ->needs(peer);
  cmd->add_option(
      "--metrics", options->metrics,
      "check quired's counters, read from this URL, such as http://127.0.0.1:9464/metrics");
  cmd->add_option("--pid", options->pid, "process id of quired; reports its peak memory (PSS)")
      ->check(CLI::PositiveNumber);
  cmd->add_option("--peer-pid", options->peer_pid,
                  "process id of --peer; reports its peak memory (PSS)")
      ->check(CLI::PositiveNumber)
      ->needs(peer);
  cmd->add_option("--output-file", options->output_file, "write the JSON report to this file");
  cmd->add_option("--svg", options->svg_file,
                  "draw latencies by percentile and a timeline to this file");
}

}  // namespace

void AddBench(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* cmd =
      app->add_subcommand("bench", "run a load test, optionally alternating with another server");
  AddLoadOptions(cmd, options.get());
  AddMeasureOptions(cmd, options.get());
  cmd->callback([=] { *exit_code = RunBench(*common, *options); });
}

}  // namespace quire::client
