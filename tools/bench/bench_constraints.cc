// Measures structured output without an engine: compile times of constraints, and times of their
// masks along a document. The vocabulary comes from a tokenizer.
//
//   bench_constraints --tokenizer DIR [--export FILE] [flags of Google Benchmark]
//
// Masks are computed along the document of a case, and along the same document with line breaks and
// indents. The counters of Masks are in microseconds: mean and 99th percentile over all passes
// except the first, and the maximum of the first pass. MaskDelay measures the time from a token of
// a cheap choice to its next mask, while other choices compute expensive masks. Its counters are in
// milliseconds: median, 99th percentile and maximum. `--export` writes vocabulary and cases to a
// file, with which constraint_peers.py measures other libraries.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "benchmark/benchmark.h"
#include "engine/constraint/constraint_build.h"
#include "engine/constraint/grammar_library.h"
#include "engine/masks/mask_pool.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/bench/constraint_cases.h"

namespace quire::engine {
namespace {

using BenchClock = std::chrono::steady_clock;
using BuildFunction = ConstraintCompiler::BuildFunction;

constexpr int kPasses = 20;

std::vector<std::string> TokenTexts(const text::Tokenizer& tokenizer) {
  std::vector<std::string> texts(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.HasText(id) || tokenizer.IsSpecial(id)) continue;
    texts[static_cast<std::size_t>(id)] = tokenizer.TokenBytes(id);
  }
  return texts;
}

ConstraintSpec SpecOf(absl::string_view schema) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  spec.text = std::string(schema);
  return spec;
}

void MeasureCompile(benchmark::State& state, const ConstraintSpec& spec,
                    const BuildFunction& build) {
  std::int64_t bytes = 0;
  for (auto _ : state) {
    const auto constraint = build(spec, {});
    QUIRE_CHECK(constraint.ok());
    bytes = (*constraint)->MemoryBytes();
  }
  state.counters["KiB"] = static_cast<double>(bytes) / 1024;
}

void MeasureMasks(benchmark::State& state, const ConstraintSpec& spec, const BuildFunction& build,
                  const std::vector<std::int32_t>& document) {
  const auto constraint = build(spec, {});
  QUIRE_CHECK(constraint.ok());
  std::vector<std::uint32_t> words((*constraint)->mask_words());
  std::vector<double> first, later;
  for (auto _ : state) {
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto matcher = (*constraint)->NewMatcher({});
      for (const std::int32_t token : document) {
        const auto begin = BenchClock::now();
        QUIRE_CHECK(matcher->FillMask(words).ok());
        const std::chrono::duration<double, std::micro> took = BenchClock::now() - begin;
        (pass == 0 ? first : later).push_back(took.count());
        QUIRE_CHECK(matcher->Accept(token).ok());
      }
    }
  }
  std::ranges::sort(later);
  double sum = 0;
  for (const double us : later) sum += us;
  state.counters["mean_us"] = sum / static_cast<double>(later.size());
  state.counters["p99_us"] = later[later.size() * 99 / 100];
  state.counters["first_max_us"] = *std::ranges::max_element(first);
}

// A choice that samples random allowed tokens, and restarts when no token is allowed.
class RandomChoice {
 public:
  RandomChoice(std::shared_ptr<const CompiledConstraint> constraint, MaskPool* pool)
      : constraint_(std::move(constraint)), pool_(pool) {
    Begin();
  }
  // Samples the next token if its mask is ready, and returns the time since the last token.
  std::optional<double> SampleIfReady() {
    if (!mask_->is_ready()) return std::nullopt;
    const std::chrono::duration<double, std::milli> took = BenchClock::now() - since_;
    QUIRE_CHECK(mask_->status().ok());
    std::vector<std::int32_t> allowed;
    for (std::size_t word = 0; word < mask_->words().size(); ++word) {
      for (std::uint32_t bits = mask_->words()[word]; bits != 0; bits &= bits - 1) {
        allowed.push_back(static_cast<std::int32_t>(32 * word) + std::countr_zero(bits));
      }
    }
    if (allowed.empty()) {
      Begin();
      return std::nullopt;
    }
    since_ = BenchClock::now();
    pool_->Advance(mask_, allowed[random_() % allowed.size()]);
    return took.count();
  }

 private:
  void Begin() {
    since_ = BenchClock::now();
    mask_ = pool_->Start({.constraint = constraint_, .end_tokens = {}, .banned = nullptr});
  }

  const std::shared_ptr<const CompiledConstraint> constraint_;
  MaskPool* const pool_;
  std::mt19937 random_{1};
  std::shared_ptr<ChoiceMask> mask_;
  BenchClock::time_point since_;
};

constexpr int kExpensiveChoices = 8;
constexpr int kCheapTokens = 500;
constexpr absl::Duration kStep = absl::Milliseconds(5);

// Simulates the steps of an engine. At the end of each step, every choice whose mask is ready
// samples a token.
void MeasureMaskDelay(benchmark::State& state, const std::string& expensive_schema,
                      const BuildFunction& build) {
  const auto cheap = build(SpecOf(ConstraintCases()[0].schema), {});
  const auto expensive = build(SpecOf(expensive_schema), {});
  QUIRE_CHECK(cheap.ok() && expensive.ok());
  std::vector<double> waits;
  for (auto _ : state) {
    const MachineClock clock;
    MaskPool pool(static_cast<std::int32_t>(state.range(0)), &clock, {});
    RandomChoice watched(*cheap, &pool);
    std::vector<std::unique_ptr<RandomChoice>> others;
    others.reserve(kExpensiveChoices);
    for (int i = 0; i < kExpensiveChoices; ++i) {
      others.push_back(std::make_unique<RandomChoice>(*expensive, &pool));
    }
    while (waits.size() < kCheapTokens) {
      absl::SleepFor(kStep);
      if (const auto wait = watched.SampleIfReady()) waits.push_back(*wait);
      for (const auto& other : others) other->SampleIfReady();
    }
  }
  std::ranges::sort(waits);
  state.counters["median_ms"] = waits[waits.size() / 2];
  state.counters["p99_ms"] = waits[waits.size() * 99 / 100];
  state.counters["max_ms"] = waits.back();
}

void Export(const std::string& path, const std::vector<std::string>& tokens,
            const std::vector<std::pair<ConstraintCase, std::vector<std::int32_t>>>& cases) {
  nlohmann::ordered_json out;
  for (const std::string& token : tokens)
    out["vocabulary"].push_back(absl::BytesToHexString(token));
  for (const auto& [measured, document] : cases) {
    out["cases"].push_back({{"name", measured.name},
                            {"schema", measured.schema},
                            {"document", measured.document},
                            {"tokens", document}});
  }
  std::ofstream(path) << out.dump();
}

absl::Status Run(const std::string& model_dir, const std::string& export_path) {
  QUIRE_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::Load(model_dir));
  const std::vector<std::string> tokens = TokenTexts(*tokenizer);
  QUIRE_ASSIGN_OR_RETURN(const BuildFunction build,
                         MakeConstraintBuildFunction({.tokens = tokens}));
  std::vector<std::pair<ConstraintCase, std::vector<std::int32_t>>> cases;
  for (ConstraintCase& measured : ConstraintCases()) {
    QUIRE_ASSIGN_OR_RETURN(auto document, tokenizer->Encode(measured.document, {}));
    cases.emplace_back(std::move(measured), std::move(document));
  }
  if (!export_path.empty()) Export(export_path, tokens, cases);
  const auto add_compile = [&](const std::string& name, const ConstraintSpec& spec) {
    benchmark::RegisterBenchmark(("Compile/" + name).c_str(), MeasureCompile, spec, build)
        ->Unit(benchmark::kMillisecond);
  };
  const auto add_masks = [&](const std::string& name, const ConstraintSpec& spec,
                             const std::vector<std::int32_t>& document) {
    benchmark::RegisterBenchmark(name.c_str(), MeasureMasks, spec, build, document)->Iterations(1);
  };
  for (const auto& [measured, document] : cases) {
    const ConstraintSpec spec = SpecOf(measured.schema);
    add_compile(measured.name, spec);
    add_masks("Masks/" + measured.name, spec, document);
    const std::string lines = nlohmann::ordered_json::parse(measured.document).dump(4);
    QUIRE_ASSIGN_OR_RETURN(const auto indented, tokenizer->Encode(lines, {}));
    add_masks("Masks indented/" + measured.name, spec, indented);
  }
  for (const SpecCase& measured : SpecCases()) {
    add_compile(measured.name, measured.spec);
    if (measured.document.empty()) continue;
    QUIRE_ASSIGN_OR_RETURN(const auto document, tokenizer->Encode(measured.document, {}));
    add_masks("Masks/" + measured.name, measured.spec, document);
  }
  for (const char* schema :
       {R"({"type": "string", "format": "hostname"})", R"({"type": "string", "minLength": 200})"}) {
    benchmark::RegisterBenchmark(absl::StrCat("MaskDelay/", schema).c_str(), MeasureMaskDelay,
                                 schema, build)
        ->Arg(1)
        ->Arg(2)
        ->Iterations(1);
  }
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace quire::engine

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  CLI::App app("Measures the times of constraints and their masks");
  std::string tokenizer, export_path;
  app.add_option("--tokenizer", tokenizer, "directory of a tokenizer")->required();
  app.add_option("--export", export_path, "file to write vocabulary and cases to");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = quire::engine::Run(tokenizer, export_path);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
