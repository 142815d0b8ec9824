// Measures the accuracy loss of quantized weights, activations and KV cache pages. Reports the
// perplexity of a text, and the divergence of the next-token distributions from a reference. The
// reference has unquantized weights, f32 activations and f32 pages.
//
//   accuracy --model assets/story --text held_out.txt --tokens 20480 --context 512
//   accuracy --model model.gguf --reference assets/story --formats auto,none --text held_out.txt
//   accuracy --model assets/story --formats none --bf16-pages --text held_out.txt
//
// The text is split into runs of `context` tokens that are computed separately. Within a run, every
// token except the first is predicted, which gives the perplexity. KL is the mean over all
// positions of sum p log(p / q) in nats. p is the distribution of the reference, and q the
// distribution of the format. "same best" is the fraction of positions with the same most likely
// token. Positions include the last token of a run, although its next token is not in the run.
// "lost" is the relative increase of the perplexity over the reference.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "formats/model_files.h"
#include "kernels/backend/backend.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/model_stack.h"
#include "text/tokenizer/tokenizer.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kChunk = 64;      // tokens per step; limits the memory of logits
constexpr std::uint32_t kStateSlots = 4;  // the smallest pool for one row

struct Arguments {
  std::string model, reference, text, tokenizer;
  std::vector<std::string> formats = {"int8",     "int8_g32", "int8_g64", "int8_g128",
                                      "int4_g32", "int4_g64", "int4_g128"};
  std::vector<std::string> activations;  // empty: int8 and, if the processor supports it, bf16
  std::size_t tokens = 20480;
  std::size_t skip_bytes = 0;
  std::uint32_t context = 512;
  int threads = 1;
  bool bf16_pages = false;
};

// A model that computes the logits of a run of tokens.
class Subject {
 public:
  static absl::StatusOr<std::unique_ptr<Subject>> Load(const std::string& path,
                                                       models::Quantization quantization,
                                                       std::uint32_t context, DType page_dtype,
                                                       const kernels::Backend& backend) {
    auto subject = std::make_unique<Subject>();
    QUIRE_ASSIGN_OR_RETURN(subject->model_,
                           runtime::LoadModel(path, backend, {.quantization = quantization}));
    const models::LayerGroups layers = models::PlanLayerGroups(subject->model_->spec);
    const std::vector<cache::CacheGroup> groups = models::CacheGroupsOf(layers);
    const std::uint32_t state_slots = layers.state_bytes > 0 ? kStateSlots : 0;
    const std::uint32_t pages =
        cache::PageDemand(kPageTokens, groups, kChunk).PagesFor(context) + 1;
    QUIRE_ASSIGN_OR_RETURN(
        const cache::KvGeometry geometry,
        runtime::KvGeometryFor(subject->model_->spec, kPageTokens, page_dtype, pages));
    QUIRE_ASSIGN_OR_RETURN(cache::KvPool pool, cache::KvPool::Create(geometry));
    subject->pool_ = std::make_unique<cache::KvPool>(std::move(pool));
    QUIRE_ASSIGN_OR_RETURN(
        subject->runner_,
        runtime::CpuRunner::Create(
            *subject->model_, backend, subject->pool_.get(),
            {.max_rows = 1, .max_step_tokens = kChunk, .num_state_slots = state_slots}));
    QUIRE_ASSIGN_OR_RETURN(subject->cache_,
                           cache::CacheManager::Create({.geometry = geometry,
                                                        .groups = groups,
                                                        .max_rows = 1,
                                                        .max_context_tokens = context,
                                                        .max_row_overlap_tokens = kChunk,
                                                        .num_state_slots = state_slots,
                                                        .prefix_caching = false}));
    subject->logits_.resize(std::size_t{kChunk} * subject->model_->spec.vocab_size);
    return subject;
  }

  const runtime::Model& model() const { return *model_; }

  // Returns logits [count, vocab] of tokens [begin, begin + count) of `run`, after the tokens
  // before them.
  absl::StatusOr<const float*> Logits(const std::vector<std::int32_t>& run, std::uint32_t begin,
                                      std::uint32_t count) {
    const BatchRow row(0);
    QUIRE_RETURN_IF_ERROR(cache_->Reserve(row, begin + count));
    runtime::StepBatch batch;
    batch.token_ids.assign(run.begin() + begin, run.begin() + begin + count);
    batch.rows.push_back(
        {.batch_row = row, .cache_length = begin, .first_token = 0, .num_tokens = count});
    for (std::uint32_t i = 0; i < count; ++i) batch.logits_tokens.push_back(i);
    const cache::RowStep step{.row = row, .cache_length = begin, .new_tokens = count};
    batch.copies = cache_->TakeCopies();
    batch.clears = cache_->TakeClears();
    batch.kv = cache_->PrepareStep({&step, 1});
    batch.states = cache_->state_inputs();
    batch.logits_out = logits_.data();
    QUIRE_RETURN_IF_ERROR(runner_->Run(batch));
    QUIRE_RETURN_IF_ERROR(runner_->Collect().status());
    cache_->CompleteStep();
    cache_->ReleaseOutsideWindow(row, begin + count);
    return logits_.data();
  }

  void EndRun() { cache_->Free(BatchRow(0)); }

 private:
  std::unique_ptr<runtime::Model> model_;
  std::unique_ptr<cache::KvPool> pool_;
  std::unique_ptr<runtime::CpuRunner> runner_;
  std::unique_ptr<cache::CacheManager> cache_;
  std::vector<float> logits_;
};

// Returns log(sum exp(logits)).
double LogSum(const float* logits, std::size_t vocab) {
  const double largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]} - largest);
  return largest + std::log(sum);
}

struct Score {
  double loss = 0;  // sum of negative log-likelihoods, nats
  double divergence = 0;
  std::int64_t same_best = 0;
  std::int64_t predictions = 0;
  std::int64_t divergences = 0;  // number of positions, the last one of each run included

  // Adds one position. `next` is the id of the next token, or negative at the last token of a run,
  // whose successor is unknown.
  void Add(const float* p, double p_sum, const float* q, std::size_t vocab, std::int32_t next) {
    const double q_sum = LogSum(q, vocab);
    for (std::size_t i = 0; i < vocab; ++i) {
      const double log_p = double{p[i]} - p_sum;
      divergence += std::exp(log_p) * (log_p - (double{q[i]} - q_sum));
    }
    same_best += std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q ? 1 : 0;
    ++divergences;
    if (next < 0) return;
    loss += q_sum - double{q[next]};
    ++predictions;
  }
};

bool IsInsideCharacter(const std::string& text, std::size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
}

// Returns bytes [begin, begin + length) of `text`, without incomplete UTF-8 characters at either
// end.
std::string TrimToCharacters(const std::string& text, std::size_t begin, std::size_t length) {
  begin = std::min(begin, text.size());
  std::size_t end = begin + std::min(length, text.size() - begin);
  while (IsInsideCharacter(text, begin)) ++begin;
  while (end > begin && IsInsideCharacter(text, end)) --end;
  return end > begin ? text.substr(begin, end - begin) : "";
}

absl::StatusOr<std::vector<std::int32_t>> ReadTokens(const Arguments& arguments) {
  std::ifstream file(arguments.text, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(arguments.text, ": cannot be read"));
  std::ostringstream content;
  content << file.rdbuf();
  // Upper limit of the average number of bytes per token.
  constexpr std::size_t kMaxBytesPerToken = 16;
  const std::string text =
      TrimToCharacters(content.str(), arguments.skip_bytes, arguments.tokens * kMaxBytesPerToken);
  const std::string& path = arguments.tokenizer.empty() ? arguments.reference : arguments.tokenizer;
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files, formats::ModelFiles::FromPath(path));
  runtime::ModelOptions model;
  model.path = path;
  QUIRE_ASSIGN_OR_RETURN(const auto tokenizer, runtime::OpenTokenizer(model, files));
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens,
                         tokenizer->Encode(text, {.add_special_tokens = true}));
  tokens.resize(std::min(tokens.size(), arguments.tokens));
  if (text.empty() || tokens.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(arguments.text,
                                                   ": nothing to predict: ", text.size(),
                                                   " bytes, ", tokens.size(), " tokens"));
  }
  return tokens;
}

// Measures all subjects over all runs; the first one is the reference.
absl::StatusOr<std::vector<Score>> Measure(const Arguments& arguments,
                                           const std::vector<std::int32_t>& tokens,
                                           const std::vector<std::unique_ptr<Subject>>& subjects) {
  std::vector<Score> scores(subjects.size());
  const std::size_t vocab = subjects[0]->model().spec.vocab_size;
  for (std::size_t at = 0; at + 1 < tokens.size(); at += arguments.context) {
    const std::size_t end = std::min(tokens.size(), at + arguments.context);
    const std::vector<std::int32_t> run(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                        tokens.begin() + static_cast<std::ptrdiff_t>(end));
    const auto length = static_cast<std::uint32_t>(run.size());
    for (std::uint32_t begin = 0; begin < length; begin += kChunk) {
      const std::uint32_t count = std::min(kChunk, length - begin);
      QUIRE_ASSIGN_OR_RETURN(const float* const p, subjects[0]->Logits(run, begin, count));
      std::vector<double> p_sums(count);
      for (std::uint32_t i = 0; i < count; ++i) p_sums[i] = LogSum(p + i * vocab, vocab);
      for (std::size_t s = 0; s < subjects.size(); ++s) {
        const float* q = p;
        if (s > 0) {
          QUIRE_ASSIGN_OR_RETURN(q, subjects[s]->Logits(run, begin, count));
        }
        for (std::uint32_t i = 0; i < count; ++i) {
          const std::int32_t next = begin + i + 1 < length ? run[begin + i + 1] : -1;
          scores[s].Add(p + i * vocab, p_sums[i], q + i * vocab, vocab, next);
        }
      }
    }
    for (const auto& subject : subjects) subject->EndRun();
  }
  return scores;
}

// Returns the activation types to measure.
std::vector<std::string> ActivationsOf(const Arguments& arguments) {
  if (!arguments.activations.empty()) return arguments.activations;
  const absl::Status bf16 = kernels::CheckCpuActivations(kernels::CpuActivations::kBF16);
  if (bf16.ok()) return {"int8", "bf16"};
  std::printf("not measured: %s\n\n", std::string(bf16.message()).c_str());
  return {"int8"};
}

// Returns a backend for every name.
absl::StatusOr<std::vector<kernels::Backend>> MakeBackends(const std::vector<std::string>& names,
                                                           ThreadPool* threads) {
  using enum kernels::CpuActivations;
  std::vector<kernels::Backend> backends;
  for (const std::string& name : names) {
    const std::size_t count = backends.size();
    for (const kernels::CpuActivations activations : {kInt8, kF32, kBF16}) {
      if (name != kernels::CpuActivationsName(activations)) continue;
      QUIRE_RETURN_IF_ERROR(kernels::CheckCpuActivations(activations));
      QUIRE_ASSIGN_OR_RETURN(kernels::Backend backend,
                             kernels::Backend::Create(Device::Cpu(), threads, activations));
      backends.push_back(std::move(backend));
    }
    if (backends.size() == count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--activations: \"", name,
          "\" is not supported; use a value of device.cpu.activations other than auto"));
    }
  }
  return backends;
}

void PrintTable(const Arguments& arguments, const std::vector<std::string>& names,
                const std::vector<std::unique_ptr<Subject>>& subjects,
                const std::vector<Score>& scores) {
  const auto perplexity = [](const Score& score) {
    return std::exp(score.loss / static_cast<double>(score.predictions));
  };
  std::printf("%s, %lld predictions, context %u\n\n", arguments.model.c_str(),
              static_cast<long long>(scores[0].predictions), arguments.context);
  std::printf(
      "| model.quantization | activations | weights MiB | perplexity | lost | KL, nats | same best "
      "|\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (std::size_t s = 0; s < subjects.size(); ++s) {
    const double positions = static_cast<double>(scores[s].divergences);
    std::printf("| %s | %.2f | %.4f | %+.3f %% | %.2e | %.2f %% |\n", names[s].c_str(),
                static_cast<double>(subjects[s]->model().weight_bytes) / (1 << 20),
                perplexity(scores[s]), 100 * (perplexity(scores[s]) / perplexity(scores[0]) - 1),
                scores[s].divergence / positions,
                100 * static_cast<double>(scores[s].same_best) / positions);
  }
}

absl::Status Run(const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> tokens, ReadTokens(arguments));
  ThreadPool threads(arguments.threads);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<kernels::Backend> exact,
                         MakeBackends({"f32"}, &threads));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<kernels::Backend> backends,
                         MakeBackends(ActivationsOf(arguments), &threads));
  std::vector<std::unique_ptr<Subject>> subjects;
  QUIRE_ASSIGN_OR_RETURN(auto reference,
                         Subject::Load(arguments.reference, models::Quantization::kNone,
                                       arguments.context, DType::kF32, exact[0]));
  subjects.push_back(std::move(reference));
  const auto vocab_size = static_cast<std::int64_t>(subjects[0]->model().spec.vocab_size);
  const std::int32_t largest = *std::max_element(tokens.begin(), tokens.end());
  if (largest >= vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer has id ", largest, ", but vocab_size is ", vocab_size));
  }
  std::vector<std::string> names = {"none, the reference | f32"};
  for (const std::string& format : arguments.formats) {
    const auto quantization = models::QuantizationFromName(format);
    if (!quantization) {
      return absl::InvalidArgumentError(
          absl::StrCat("--formats: \"", format, "\" is not a value of model.quantization"));
    }
    for (const kernels::Backend& backend : backends) {
      absl::StatusOr<std::unique_ptr<Subject>> subject =
          Subject::Load(arguments.model, *quantization, arguments.context,
                        arguments.bf16_pages ? DType::kBF16 : DType::kF32, backend);
      if (!subject.ok()) {
        std::fprintf(stderr, "%s: not measured: %s\n", format.c_str(),
                     std::string(subject.status().message()).c_str());
        break;
      }
      if ((*subject)->model().spec.vocab_size != subjects[0]->model().spec.vocab_size) {
        return absl::InvalidArgumentError("--model and --reference differ in vocab_size");
      }
      subjects.push_back(*std::move(subject));
      names.push_back(
          absl::StrCat(format, " | ", kernels::CpuActivationsName(backend.activations())));
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Score> scores, Measure(arguments, tokens, subjects));
  PrintTable(arguments, names, subjects, scores);
  return absl::OkStatus();
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Arguments arguments;
  CLI::App app("Measures the accuracy of quantized weights and activations");
  app.add_option("--model", arguments.model, "directory or GGUF file")->required();
  app.add_option("--reference", arguments.reference,
                 "unquantized model to compare with; default: --model");
  app.add_option("--tokenizer", arguments.tokenizer,
                 "directory or GGUF file; default: --reference");
  app.add_option("--text", arguments.text, "text to predict")->required();
  app.add_option("--skip-bytes", arguments.skip_bytes,
                 "number of bytes of the text to skip, rounded up to whole characters");
  app.add_option("--tokens", arguments.tokens, "number of tokens to use")
      ->check(CLI::Range(2, 1'000'000'000));
  app.add_option("--context", arguments.context, "tokens per run")->check(CLI::Range(2, 131072));
  app.add_option("--formats", arguments.formats, "values of model.quantization")->delimiter(',');
  app.add_option("--activations", arguments.activations,
                 "values of device.cpu.activations; default: int8, and bf16 if supported")
      ->delimiter(',');
  app.add_flag("--bf16-pages", arguments.bf16_pages,
               "store K and V in bf16, except those of the reference; default: f32");
  app.add_option("--threads", arguments.threads, "compute threads")->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  if (arguments.reference.empty()) arguments.reference = arguments.model;
  quire::log::SetLevel("", quire::log::Level::kWarn);
  const absl::Status status = quire::Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "accuracy: %s\n", std::string(status.message()).c_str());
  return 1;
}
