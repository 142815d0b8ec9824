// quire bench: closed loop with fixed lengths. Each of `--concurrency` threads has a connection of
// its own and sends its next request when the last one has ended.

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/bench_report.h"
#include "tools/quire/client.h"

namespace quire::client {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct BenchOptions {
  std::int64_t requests = 64;
  std::int64_t warmup = 0;
  std::int64_t concurrency = 8;
  std::int64_t input_tokens = 128;
  std::int64_t output_tokens = 64;
  std::uint64_t seed = 1;
  std::string output_file;
};

double SecondsBetween(SteadyClock::time_point from, SteadyClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Random ids, another prompt for every request, so that no prompt is answered from the prefix
// cache.
v1::GenerateRequest MakeRequest(const BenchOptions& options, std::int32_t vocab_size,
                                std::int64_t number) {
  v1::GenerateRequest request;
  std::mt19937_64 random(options.seed * 1'000'003 + static_cast<std::uint64_t>(number));
  for (std::int64_t i = 0; i < options.input_tokens; ++i) {
    request.mutable_token_ids()->add_ids(
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab_size)));
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(static_cast<std::int32_t>(options.output_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_stream(true);
  request.mutable_output()->set_token_ids(true);
  return request;
}

RequestSample RunOne(const CommonOptions& common, v1::GenerationService::Stub* stub,
                     const v1::GenerateRequest& request) {
  RequestSample sample;
  grpc::ClientContext context;
  ApplyDeadline(common, &context);
  const auto start = SteadyClock::now();
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  SteadyClock::time_point first;
  SteadyClock::time_point last;
  while (reader->Read(&response)) {
    if (response.has_completed()) {
      sample.input_tokens = response.completed().usage().prompt_tokens();
    }
    if (!response.has_delta() || response.delta().token_ids().empty()) continue;
    const auto now = SteadyClock::now();
    if (sample.output_tokens == 0) {
      first = now;
    } else {
      sample.itl_seconds.push_back(SecondsBetween(last, now));
    }
    last = now;
    sample.output_tokens += response.delta().token_ids_size();
  }
  const grpc::Status status = reader->Finish();
  sample.e2e_seconds = SecondsBetween(start, SteadyClock::now());
  sample.ok = status.ok();
  if (!sample.ok) sample.error = absl::StrCat(ReasonOf(status), ": ", status.error_message());
  if (sample.output_tokens > 0) {
    sample.ttft_seconds = SecondsBetween(start, first);
    sample.first_to_last_token_seconds = SecondsBetween(first, last);
  }
  return sample;
}

// Sends requests [first, first + count) from `concurrency` threads; false in `*stop` ends it early.
std::vector<RequestSample> RunLoop(const CommonOptions& common, const BenchOptions& options,
                                   std::int32_t vocab_size, std::int64_t first, std::int64_t count,
                                   const std::atomic<bool>& stop) {
  std::vector<RequestSample> samples(static_cast<std::size_t>(count));
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < std::min(options.concurrency, count); ++t) {
    threads.emplace_back([&] {
      const auto stub = v1::GenerationService::NewStub(Connect(common.address));
      for (std::int64_t i = next++; i < count && !stop.load(); i = next++) {
        samples[static_cast<std::size_t>(i)] =
            RunOne(common, stub.get(), MakeRequest(options, vocab_size, first + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return samples;
}

void WriteReport(const std::string& path, const std::string& report) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "quire: cannot write %s\n", path.c_str());
    return;
  }
  std::fprintf(file, "%s\n", report.c_str());
  std::fclose(file);
}

int RunBench(const CommonOptions& common, const BenchOptions& options) {
  const auto stub = v1::GenerationService::NewStub(Connect(common.address));
  v1::GetModelResponse model;
  grpc::ClientContext context;
  ApplyDeadline(common, &context);
  const grpc::Status status = stub->GetModel(&context, {}, &model);
  if (!status.ok()) return Fail(status, common.address);

  std::atomic<bool> stop{false};
  InterruptGuard guard([&stop] { stop.store(true); });
  const std::int32_t vocab_size = model.model().vocab_size();
  RunLoop(common, options, vocab_size, options.requests, options.warmup, stop);
  BenchRun run;
  run.model_id = model.model().id();
  run.concurrency = options.concurrency;
  const auto start = SteadyClock::now();
  run.samples = RunLoop(common, options, vocab_size, 0, options.requests, stop);
  run.duration_seconds = SecondsBetween(start, SteadyClock::now());

  std::printf("%s",
              common.json ? absl::StrCat(ReportJson(run), "\n").c_str() : ReportTable(run).c_str());
  if (!options.output_file.empty()) WriteReport(options.output_file, ReportJson(run));
  const auto failed = std::find_if(run.samples.begin(), run.samples.end(),
                                   [](const RequestSample& sample) { return !sample.ok; });
  if (failed == run.samples.end()) return kOk;
  std::fprintf(stderr, "quire: first failure: %s\n", failed->error.c_str());
  return kRequestFailed;
}

}  // namespace

void AddBench(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* cmd = app->add_subcommand("bench", "closed-loop load with fixed lengths");
  cmd->add_option("--requests", options->requests, "requests to measure")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000));
  cmd->add_option("--warmup", options->warmup, "requests sent before, not measured")
      ->capture_default_str()
      ->check(CLI::Range(0, 10'000'000));
  cmd->add_option("--concurrency", options->concurrency, "requests in flight")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  cmd->add_option("--input-tokens", options->input_tokens, "prompt length")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000));
  cmd->add_option("--output-tokens", options->output_tokens, "answer length")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000));
  cmd->add_option("--seed", options->seed, "prompts are a function of it")->capture_default_str();
  cmd->add_option("--output-file", options->output_file, "write the JSON report here");
  cmd->callback([=] { *exit_code = RunBench(*common, *options); });
}

}  // namespace quire::client
