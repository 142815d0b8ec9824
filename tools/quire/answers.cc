// quire_answers: sends seeded requests to a daemon and writes the answers, with exact bits, so that
// the answers of two daemons can be compared.
//
//   quire_answers --address 127.0.0.1:50051 --requests 1000 --out FILE
//   quire_answers --compare FILE FILE
//
// The parameters of a request depend only on its number and the vocabulary size. They include
// penalties, three choices, stop tokens, greedy and random sampling, and shared prefixes. Each line
// of the file describes one choice by request number, choice index and finish reason, followed by
// its tokens. Each token is followed by the two most likely tokens. All three are written with the
// bits of their log-probabilities. 32 requests are in flight, so the batches of two runs differ.

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/split_mix.h"
#include "quire/v1/generation.grpc.pb.h"

namespace {

namespace v1 = quire::v1;

struct Options {
  std::string address = "127.0.0.1:50051";
  int requests = 1000;
  int concurrency = 32;
  int timeout_seconds = 60;
  std::string out;
  std::vector<std::string> compare;
};

// A pseudorandom sequence that depends only on its seed.
class NumberSequence {
 public:
  explicit NumberSequence(int seed) : state_(quire::SplitMix(static_cast<std::uint64_t>(seed))) {}
  std::int32_t Below(std::int32_t bound) {
    state_ += quire::kSplitMixStep;
    return static_cast<std::int32_t>(quire::SplitMix(state_) % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t state_;
};

void AppendTokens(NumberSequence numbers, int count, std::int32_t vocab, v1::TokenIds* out) {
  for (int i = 0; i < count; ++i) out->add_ids(numbers.Below(vocab));
}

v1::GenerateRequest MakeRequest(int number, std::int32_t vocab) {
  NumberSequence numbers(number);
  v1::GenerateRequest request;
  v1::TokenIds* const prompt = request.mutable_token_ids();
  // Half of the requests begin with one of four prefixes of 80 tokens, a page of 64 tokens and 16
  // more.
  const std::int32_t prefix = numbers.Below(8);
  if (prefix < 4) AppendTokens(NumberSequence(1'000'000 + prefix), 80, vocab, prompt);
  AppendTokens(NumberSequence(2'000'000 + number), 1 + numbers.Below(48), vocab, prompt);
  v1::SamplingParams* const sampling = request.mutable_sampling();
  sampling->set_seed(number);
  sampling->set_temperature(number % 4 == 0 ? 0.0f : 0.8f);
  if (number % 4 == 1) sampling->set_top_p(0.9f);
  if (number % 4 == 2) sampling->set_top_k(20);
  if (number % 3 == 1) {
    sampling->set_repetition_penalty(1.2f);
    sampling->set_presence_penalty(0.5f);
    sampling->set_frequency_penalty(0.25f);
  }
  if (number % 5 == 2) sampling->set_choice_count(3);
  v1::StoppingParams* const stopping = request.mutable_stopping();
  stopping->set_max_tokens(1 + numbers.Below(24));
  if (number % 2 == 0) {
    for (int i = 0; i < 32; ++i) stopping->add_stop_token_ids(numbers.Below(vocab));
  }
  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_logprobs(2);
  return request;
}

std::string HexBits(float x) {
  return absl::StrCat(absl::Hex(std::bit_cast<std::uint32_t>(x), absl::kZeroPad8));
}

std::string FormatLine(int number, const v1::Completed& completed) {
  std::string line = absl::StrCat(number, " ", completed.index(), " ",
                                  v1::FinishReason_Name(completed.finish_reason()));
  for (const v1::TokenLogprob& token : completed.logprobs()) {
    absl::StrAppend(&line, " ", token.token_id(), ":", HexBits(token.logprob()));
    for (const v1::TopLogprob& top : token.top()) {
      absl::StrAppend(&line, ",", top.token_id(), ":", HexBits(top.logprob()));
    }
  }
  return line;
}

class Client {
 public:
  explicit Client(const Options& options)
      : options_(options),
        stub_(v1::GenerationService::NewStub(
            grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()))),
        lines_(static_cast<std::size_t>(options.requests)) {}

  // Returns the exit status.
  int Run() {
    v1::GetModelResponse model;
    grpc::ClientContext context;
    SetDeadline(&context);
    context.set_wait_for_ready(true);
    const grpc::Status status = stub_->GetModel(&context, {}, &model);
    if (!status.ok()) return Fail("GetModel", status);
    vocab_ = model.model().vocab_size();
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(options_.concurrency));
    for (int i = 0; i < options_.concurrency; ++i) threads.emplace_back([this] { RunRequests(); });
    for (std::thread& thread : threads) thread.join();
    if (has_failed_) return 1;
    std::ofstream file(options_.out);
    std::int64_t tokens = 0;
    for (const std::vector<std::string>& request_lines : lines_) {
      for (const std::string& line : request_lines) {
        file << line << "\n";
        tokens += std::count(line.begin(), line.end(), ' ') - 2;
      }
    }
    file.close();
    if (!file) {
      std::fprintf(stderr, "error: cannot write %s\n", options_.out.c_str());
      return 1;
    }
    std::printf("%d requests, %lld tokens\n", options_.requests, static_cast<long long>(tokens));
    return 0;
  }

 private:
  void SetDeadline(grpc::ClientContext* context) const {
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(options_.timeout_seconds));
  }

  int Fail(const std::string& what, const grpc::Status& status) {
    if (!has_failed_.exchange(true)) {
      std::fprintf(stderr, "error: %s: %s\n", what.c_str(), status.error_message().c_str());
    }
    return 1;
  }

  // Fails unless every choice is present and has a token, since two empty files would be equal.
  void CheckComplete(int number, const v1::GenerateRequest& request,
                     const std::vector<std::string>& lines) {
    const auto wanted = static_cast<std::size_t>(std::max(1, request.sampling().choice_count()));
    const bool has_tokens = std::all_of(lines.begin(), lines.end(), [](const std::string& line) {
      return std::count(line.begin(), line.end(), ' ') > 2;
    });
    if (lines.size() == wanted && has_tokens) return;
    Fail(absl::StrCat("request ", number),
         {grpc::StatusCode::INTERNAL,
          lines.size() == wanted
              ? "has a choice without log-probabilities"
              : absl::StrCat("has ", lines.size(), " choices, must have ", wanted)});
  }

  void RunRequests() {
    for (int i = next_++; i < options_.requests && !has_failed_; i = next_++) {
      grpc::ClientContext context;
      SetDeadline(&context);
      std::vector<std::string>& lines = lines_[static_cast<std::size_t>(i)];
      const v1::GenerateRequest request = MakeRequest(i, vocab_);
      const auto reader = stub_->Generate(&context, request);
      v1::GenerateResponse response;
      while (reader->Read(&response)) {
        if (response.has_completed()) lines.push_back(FormatLine(i, response.completed()));
      }
      const grpc::Status status = reader->Finish();
      if (!status.ok()) Fail(absl::StrCat("request ", i), status);
      CheckComplete(i, request, lines);
      // Choices can end in any order.
      std::sort(lines.begin(), lines.end());
    }
  }

  const Options& options_;
  const std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::int32_t vocab_ = 0;
  std::atomic<int> next_{0};
  std::atomic<bool> has_failed_{false};
  std::vector<std::vector<std::string>> lines_;
};

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Returns 0 if both files have the same answers and are not empty.
int Compare(const std::string& one, const std::string& other) {
  const std::vector<std::string> a = ReadLines(one);
  const std::vector<std::string> b = ReadLines(other);
  if (a.empty() || a.size() != b.size()) {
    std::fprintf(stderr, "error: the files have %zu and %zu choices\n", a.size(), b.size());
    return 1;
  }
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (different++ == 0) std::fprintf(stderr, "%s\n%s\n", a[i].c_str(), b[i].c_str());
  }
  if (different > 0) {
    std::fprintf(stderr, "error: %zu of %zu choices differ\n", different, a.size());
    return 1;
  }
  std::printf("%zu choices are the same\n", a.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Sends seeded requests to quired and writes the answers, or compares two such files");
  app.add_option("--address", options.address, "data listener")->capture_default_str();
  app.add_option("--requests", options.requests, "number of requests")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--concurrency", options.concurrency, "requests in flight")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "time limit of a call in seconds")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  CLI::Option* const out = app.add_option("--out", options.out, "file to write the answers to");
  app.add_option("--compare", options.compare, "two files of answers to compare")
      ->expected(2)
      ->excludes(out);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!options.compare.empty()) return Compare(options.compare[0], options.compare[1]);
  if (options.out.empty()) {
    std::fprintf(stderr, "error: give --out or --compare\n");
    return 2;
  }
  return Client(options).Run();
}
