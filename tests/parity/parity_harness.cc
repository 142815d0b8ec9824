#include "tests/parity/parity_harness.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/status.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "cache_manager/pool/kv_pool.h"
#include "formats/tensors/safetensors.h"
#include "kernels/backend/backend.h"
#include "runtime/cpu_runner.h"
#include "runtime/cuda_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/parity/page_tables.h"
#include "tests/testing/paths.h"

namespace quire::models::parity {
namespace {

constexpr std::uint32_t kPageSize = 16;
constexpr std::uint32_t kTop = 5;

std::vector<float> Floats(const formats::StoredTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// A model with everything that the engine would provide: pool, page tables, backend.
class Stage {
 public:
  static absl::StatusOr<std::unique_ptr<Stage>> Create(const formats::ModelFiles& files,
                                                       std::uint32_t num_rows,
                                                       std::uint32_t row_tokens,
                                                       const ReplayOptions& options) {
    auto stage = std::make_unique<Stage>();
    stage->threads_ = std::make_unique<ThreadPool>(options.threads);
    QUIRE_RETURN_IF_ERROR(stage->MakeBackend(options));
    QUIRE_ASSIGN_OR_RETURN(
        stage->model_,
        runtime::LoadModel(
            files, *stage->backend_,
            {.activation = options.activation,
             .quantization = options.quantization,
             .fp8_activations = options.fp8_activations,
             .max_context_tokens =
                 options.max_context_tokens == 0 ? row_tokens : options.max_context_tokens,
             .part = options.comm == nullptr
                         ? RankPart{}
                         : RankPart{options.comm->rank(), options.comm->size()}}));
    if (options.edit_spec) options.edit_spec(&stage->model_->spec);
    if (options.edit_weights) {
      // Nothing else changes weights, so Weights has no such access.
      const std::span<const LayerWeights> layers = stage->model_->weights->layers();
      options.edit_weights({const_cast<LayerWeights*>(layers.data()), layers.size()});
    }
    // Uses twice the rows and pages needed, so that tables have gaps and most ids belong to nobody.
    const std::uint32_t max_rows = 2 * num_rows;
    const std::uint32_t row_pages = (row_tokens + kPageSize - 1) / kPageSize;
    const LayerGroups layers = PlanLayerGroups(stage->model_->spec);
    for (auto* slots : {&stage->state_in_, &stage->state_out_, &stage->no_snapshots_}) {
      slots->assign(max_rows, 0);
    }
    const auto num_groups = static_cast<std::uint32_t>(layers.groups.size());
    const std::uint32_t num_pages = 1 + 2 * num_rows * row_pages * num_groups;
    QUIRE_ASSIGN_OR_RETURN(
        const cache::KvGeometry geometry,
        runtime::KvGeometryFor(stage->model_->spec, kPageSize, options.kv_dtype, num_pages));
    QUIRE_ASSIGN_OR_RETURN(cache::KvPool pool,
                           cache::KvPool::Create(geometry, {.stream = stage->stream_}));
    stage->pool_ = std::make_unique<cache::KvPool>(std::move(pool));
    QUIRE_RETURN_IF_ERROR(
        stage->MakeRunner({.max_rows = max_rows,
                           .max_step_tokens = num_rows * std::max(options.chunk, 1u),
                           .max_logprobs = kTop,
                           .num_state_slots = layers.state_bytes > 0 ? 1 + 2 * max_rows : 0,
                           .comm = options.comm,
                           .activation = options.activation,
                           .max_context_tokens = row_pages * kPageSize,
                           .graphs = options.graphs,
                           .fp8_activations = options.fp8_activations}));
    QUIRE_ASSIGN_OR_RETURN(stage->tables_,
                           PageTables::Create({.groups = layers.groups,
                                               .page_size = kPageSize,
                                               .num_blocks = num_pages,
                                               .max_rows = max_rows,
                                               .num_rows = num_rows,
                                               .row_pages = row_pages,
                                               .seed = options.seed,
                                               .poison = [stage = stage.get()](const auto& pages) {
                                                 return stage->PoisonPages(pages);
                                               }}));
    return stage;
  }

  const runtime::Model& model() const { return *model_; }
  runtime::StepRunner& runner() { return *runner_; }
  // Null on the CPU.
  const runtime::CudaRunner* cuda_runner() const { return cuda_runner_; }
  BatchRow batch_row(std::size_t i) const { return tables_->batch_row(i); }
  PageTables& tables() { return *tables_; }

  // Returns the state slots for a step in which row i has cached[i] tokens and computes fresh[i].
  cache::StateStepInputs States(const std::vector<std::uint32_t>& cached,
                                const std::vector<std::uint32_t>& fresh,
                                const ReplayOptions& options) {
    const LayerGroups layers = PlanLayerGroups(model_->spec);
    if (layers.state_bytes == 0) return {};
    for (std::size_t i = 0; i < cached.size(); ++i) {
      const std::uint32_t row = batch_row(i).value();
      if (fresh[i] == 0) continue;
      // Slots 1 + 2 * row and the one after it belong to the row.
      const std::uint32_t first = 1 + 2 * row;
      state_in_[row] = state_out_[row] == 0 ? first : state_out_[row];
      state_out_[row] = row % 2 == 0 ? first : 2 * first + 1 - state_in_[row];
      if (options.edit_state == nullptr || cached[i] == 0) continue;
      const auto bytes = static_cast<std::size_t>(layers.state_bytes);
      const std::span<std::byte> slot = static_cast<runtime::CpuRunner&>(*runner_).states().subspan(
          state_in_[row] * bytes, bytes);
      options.edit_state(model_->spec, layers,
                         {reinterpret_cast<float*>(slot.data()), bytes / sizeof(float)});
    }
    return {.state_in = state_in_.data(),
            .state_out = state_out_.data(),
            .snapshot_at = no_snapshots_.data(),
            .snapshot_slot = no_snapshots_.data(),
            .max_rows = static_cast<std::uint32_t>(state_in_.size())};
  }

 private:
  absl::Status MakeBackend(const ReplayOptions& options) {
    if (options.cuda && options.comm != nullptr) {
      backend_ = options.comm->backend();
      stream_ = backend_->cuda()->stream;
      return UseDevice(backend_->device());
    }
    if (options.cuda) {
      QUIRE_ASSIGN_OR_RETURN(Device device, OpenCudaDevice(0));
      if (options.compute_capability != 0) device.compute_capability = options.compute_capability;
      QUIRE_ASSIGN_OR_RETURN(own_stream_, Stream::Create(device));
      stream_ = &*own_stream_;
    }
    QUIRE_ASSIGN_OR_RETURN(
        own_backend_,
        options.cuda
            ? kernels::Backend::CreateCuda(*stream_, kernels::Determinism::kBatchInvariant,
                                           threads_.get())
            : kernels::Backend::Create(Device::Cpu(), threads_.get(), options.cpu_activations));
    backend_ = &*own_backend_;
    return absl::OkStatus();
  }

  absl::Status MakeRunner(const runtime::RunnerOptions& options) {
    if (stream_ == nullptr) {
      QUIRE_ASSIGN_OR_RETURN(runner_,
                             runtime::CpuRunner::Create(*model_, *backend_, pool_.get(), options));
      return absl::OkStatus();
    }
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runtime::CudaRunner> runner,
                           runtime::CudaRunner::Create(*model_, *backend_, pool_.get(), options));
    cuda_runner_ = runner.get();
    runner_ = std::move(runner);
    return absl::OkStatus();
  }

  // Bytes of 0xff are NaN in f32, bf16 and fp8_e4m3, so a sequence that reads an unwritten row gets
  // NaN logits.
  absl::Status PoisonPages(const std::vector<std::uint32_t>& pages) {
    for (const std::uint32_t page : pages) {
      for (const std::span<std::byte> bytes :
           {pool_->page_blocks(BlockId{page}), pool_->page_scales(BlockId{page})}) {
        if (stream_ == nullptr) {
          std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
          continue;
        }
        const std::vector<std::byte> poisoned(bytes.size(), std::byte{0xff});
        QUIRE_RETURN_IF_ERROR(stream_->Copy(bytes.data(), poisoned.data(),
                                            static_cast<std::int64_t>(poisoned.size())));
      }
    }
    return stream_ != nullptr ? stream_->Synchronize() : absl::OkStatus();
  }

  std::unique_ptr<ThreadPool> threads_;
  std::optional<Stream> own_stream_;
  std::optional<kernels::Backend> own_backend_;
  const Stream* stream_ = nullptr;  // of the GPU
  const kernels::Backend* backend_ = nullptr;
  std::unique_ptr<runtime::Model> model_;
  std::unique_ptr<cache::KvPool> pool_;
  std::unique_ptr<runtime::StepRunner> runner_;
  const runtime::CudaRunner* cuda_runner_ = nullptr;
  std::optional<PageTables> tables_;
  std::vector<std::uint32_t> state_in_;  // [max_rows], as the next two
  std::vector<std::uint32_t> state_out_;
  std::vector<std::uint32_t> no_snapshots_;
};

kernels::SamplingRow GreedyRow(bool logprobs) {
  kernels::SamplingRow row{};
  row.temperature = 0;
  row.num_logprobs = logprobs ? static_cast<std::int32_t>(kTop) : -1;
  return row;
}

// The state of one replay.
class Replayer {
 public:
  Replayer(Stage* stage, const Reference& reference, const ReplayOptions& options,
           std::vector<std::size_t> which)
      : stage_(*stage),
        reference_(reference),
        options_(options),
        which_(std::move(which)),
        random_(options.seed + 17),
        cached_(which_.size(), 0),
        recorded_(which_.size(), 0),
        pending_(which_.size(), -1),
        pending_step_(which_.size(), 0),
        preempted_(which_.size(), false),
        results_(which_.size()) {
    for (const std::size_t i : which_) tokens_.push_back(reference.prompts[i].tokens);
  }

  absl::StatusOr<std::vector<ReplayedPrompt>> Run() {
    bool swapped = false;
    while (!Done()) {
      if (options_.swap_one_page && !swapped && AllPrefilled()) {
        stage_.tables().ShareFirstPage(which_.size() - 1, which_.size() - 2);
        swapped = true;
      }
      if (launched_ > 0 && !options_.overlap) QUIRE_RETURN_IF_ERROR(Collect());
      if (!Done()) QUIRE_RETURN_IF_ERROR(Step());
      if (launched_ > 1) QUIRE_RETURN_IF_ERROR(Collect());
    }
    while (launched_ > 0) QUIRE_RETURN_IF_ERROR(Collect());
    return std::move(results_);
  }

  std::uint64_t steps() const { return steps_; }

 private:
  // One row of logits_tokens.
  struct Wanted {
    std::size_t prompt;
    bool recorded;  // the reference contains its logits
    bool samples;   // it has a sample and a prompt log-probability
  };

  struct Launched {
    runtime::StepBatch batch;
    std::vector<Wanted> wanted;  // one per logits_tokens
    std::vector<float> logits;
  };

  const ReferencePrompt& prompt(std::size_t i) const { return reference_.prompts[which_[i]]; }
  // Number of samples of prompt i, including those in flight.
  std::size_t Sampled(std::size_t i) const {
    return results_[i].sampled.size() + (pending_[i] >= 0 ? 1 : 0);
  }
  // Number of tokens of prompt i that a step may contain, including one in flight.
  std::uint32_t Known(std::size_t i) const {
    return static_cast<std::uint32_t>(tokens_[i].size()) + (pending_[i] >= 0 ? 1 : 0);
  }
  // Returns whether there is nothing left to launch.
  bool Done() const {
    for (std::size_t i = 0; i < which_.size(); ++i) {
      if (Sampled(i) < options_.generated) return false;
    }
    return true;
  }
  bool AllPrefilled() const {
    for (std::size_t i = 0; i < which_.size(); ++i) {
      if (cached_[i] < prompt(i).tokens.size()) return false;
    }
    return true;
  }
  // Number of new tokens of prompt i in this step. Before a swap, finished prompts wait for the
  // others.
  std::uint32_t Fresh(std::size_t i) {
    if (Sampled(i) == options_.generated) return 0;
    if (Sampled(i) == options_.preempt_at && options_.preempt_at > 0 && !preempted_[i]) {
      preempted_[i] = true;
      cached_[i] = 0;
    }
    const auto prefill = static_cast<std::uint32_t>(prompt(i).tokens.size());
    if (options_.swap_one_page && cached_[i] >= prefill && !AllPrefilled()) return 0;
    return std::min(options_.chunk, Known(i) - cached_[i]);
  }

  absl::Status Step() {
    std::vector<std::uint32_t> fresh(which_.size());
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < which_.size(); ++i) {
      fresh[i] = Fresh(i);
      if (fresh[i] > 0) order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), random_);
    Launched& step = steps_in_flight_[steps_ % 2];
    step.batch.Clear();
    step.wanted.clear();
    for (const std::size_t i : order) AddRow(i, fresh[i], &step);
    QUIRE_ASSIGN_OR_RETURN(step.batch.kv, stage_.tables().Inputs(cached_, fresh));
    step.batch.states = stage_.States(cached_, fresh, options_);
    step.logits.assign(step.batch.logits_tokens.size() * reference_.vocab_size, 0);
    step.batch.logits_out = step.logits.data();
    QUIRE_RETURN_IF_ERROR(stage_.runner().Run(step.batch));
    // Prepares what the next step may name. The previous step is collected first.
    std::int32_t sample = 0;
    for (const Wanted& wanted : step.wanted) {
      if (!wanted.samples) continue;
      pending_[wanted.prompt] = sample++;
      pending_step_[wanted.prompt] = steps_;
    }
    for (const std::size_t i : order) cached_[i] += fresh[i];
    ++steps_;
    ++launched_;
    return absl::OkStatus();
  }

  void AddRow(std::size_t i, std::uint32_t count, Launched* step) {
    runtime::StepBatch& batch = step->batch;
    const std::uint32_t first = static_cast<std::uint32_t>(batch.token_ids.size());
    const auto prefill = static_cast<std::uint32_t>(prompt(i).tokens.size());
    batch.rows.push_back(
        {.batch_row = stage_.batch_row(i),
         .cache_length = cached_[i],
         .first_token = first,
         .num_tokens = count,
         .prompt_tokens = std::min(count, prefill - std::min(prefill, cached_[i]))});
    for (std::uint32_t j = 0; j < count; ++j) {
      const std::uint32_t position = cached_[i] + j;
      batch.token_ids.push_back(position < tokens_[i].size() ? tokens_[i][position]
                                                             : -(pending_[i] + 1));
      const bool last_of_prompt = position + 1 == prefill;
      const bool recorded = position < prefill && position >= recorded_[i] &&
                            (prompt(i).all_positions || last_of_prompt);
      const bool samples = position + 1 == Known(i);
      if (!recorded && !samples) continue;
      if (recorded) recorded_[i] = position + 1;
      step->wanted.push_back({i, recorded, samples});
      const std::uint32_t index = static_cast<std::uint32_t>(batch.logits_tokens.size());
      batch.logits_tokens.push_back(first + j);
      if (!samples) continue;
      batch.samples.push_back({.logits_index = index, .row = GreedyRow(options_.logprobs)});
      batch.samples.back().row.position = position + 1;
      if (!options_.logprobs) continue;
      batch.prompt_logprobs.push_back({.logits_index = index,
                                       .token = prompt(i).greedy[position + 1 - prefill],
                                       .num_top = kTop});
    }
  }

  // Collects the results of the oldest step.
  absl::Status Collect() {
    const std::uint64_t index = steps_ - launched_;
    QUIRE_ASSIGN_OR_RETURN(const runtime::StepResult* result, stage_.runner().Collect());
    Take(*result, steps_in_flight_[index % 2]);
    for (std::size_t i = 0; i < which_.size(); ++i) {
      if (pending_step_[i] == index) pending_[i] = -1;
    }
    --launched_;
    return absl::OkStatus();
  }

  void Take(const runtime::StepResult& result, const Launched& step) {
    const std::size_t vocab = reference_.vocab_size;
    std::size_t sample = 0;
    for (std::size_t row = 0; row < step.wanted.size(); ++row) {
      const Wanted& wanted = step.wanted[row];
      ReplayedPrompt& out = results_[wanted.prompt];
      const auto begin = step.logits.begin() + static_cast<std::ptrdiff_t>(row * vocab);
      if (wanted.recorded) {
        out.logits.insert(out.logits.end(), begin, begin + static_cast<std::ptrdiff_t>(vocab));
      }
      if (!wanted.samples) continue;
      const runtime::StepToken& token = result.samples[sample];
      const float scored = options_.logprobs ? result.prompt_logprobs[sample].logprob : 0;
      ++sample;
      const std::int32_t recorded = prompt(wanted.prompt).greedy[out.sampled.size()];
      out.sampled.push_back(token.token);
      out.logprobs.push_back(options_.feed_reference ? scored : token.logprob);
      out.top_ids.emplace_back();
      out.top_logprobs.emplace_back();
      for (const kernels::TopLogprob& top : token.top) {
        out.top_ids.back().push_back(top.token);
        out.top_logprobs.back().push_back(top.logprob);
      }
      tokens_[wanted.prompt].push_back(options_.feed_reference ? recorded : token.token);
    }
  }

  Stage& stage_;
  const Reference& reference_;
  const ReplayOptions& options_;
  const std::vector<std::size_t> which_;
  std::mt19937 random_;
  std::vector<std::uint32_t> cached_;
  std::vector<std::vector<std::int32_t>> tokens_;  // prompt and generated tokens
  std::vector<std::uint32_t> recorded_;            // positions whose logits were read
  // Index of the sample in the last launched step that gives a prompt's next token, or -1 if that
  // step is collected.
  std::vector<std::int32_t> pending_;
  std::vector<std::uint64_t> pending_step_;
  std::vector<bool> preempted_;
  std::vector<ReplayedPrompt> results_;
  std::array<Launched, 2> steps_in_flight_;
  std::uint64_t steps_ = 0;
  std::uint64_t launched_ = 0;  // steps not yet collected
};

std::vector<std::size_t> Selected(const Reference& reference, const ReplayOptions& options) {
  if (!options.only.empty()) return options.only;
  std::vector<std::size_t> all(reference.prompts.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

}  // namespace

std::string FixturePath(const std::string& folder) {
  return paths::TestData(absl::StrCat("models/", folder));
}

absl::StatusOr<Reference> ReadReference(const std::string& folder) {
  std::ifstream stream(FixturePath(folder) + "/reference.json");
  const nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError(folder + ": no reference.json");
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files,
                         formats::ModelFiles::FromDirectory(FixturePath(folder)));
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile file, files.Open("reference.safetensors"));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<formats::StoredTensor> tensors,
                         formats::ReadSafetensors(file.bytes(), file.label()));
  Reference reference;
  reference.vocab_size = json["vocab_size"].get<std::uint32_t>();
  reference.num_parameters = json["num_parameters"].get<std::int64_t>();
  const auto& accuracy = json["accuracy"]["bfloat16_cache_vs_float32"];
  reference.bf16_cache_error = accuracy["relative_error"].get<double>();
  reference.bf16_cache_max_abs = accuracy["max_abs"].get<double>();
  reference.half_error = json["accuracy"]["half_vs_float32"]["relative_error"].get<double>();
  for (const auto& entry : json["prompts"]) {
    ReferencePrompt prompt;
    prompt.id = entry["id"].get<std::string>();
    prompt.tokens = entry["token_ids"].get<std::vector<std::int32_t>>();
    prompt.greedy = entry["greedy_token_ids"].get<std::vector<std::int32_t>>();
    prompt.greedy_logprobs = entry["greedy_logprobs"].get<std::vector<float>>();
    prompt.top5_ids = entry["top5_ids"].get<std::vector<std::vector<std::int32_t>>>();
    prompt.top5_logprobs = entry["top5_logprobs"].get<std::vector<std::vector<float>>>();
    prompt.all_positions = entry["logits_positions"].get<std::string>() == "all";
    for (const formats::StoredTensor& tensor : tensors) {
      if (tensor.name == prompt.id + ".logits") prompt.logits = Floats(tensor);
      if (tensor.name != prompt.id + ".hidden") continue;
      prompt.hidden = Floats(tensor);
      reference.num_layers = static_cast<std::uint32_t>(tensor.shape[0]) - 2;
    }
    reference.prompts.push_back(std::move(prompt));
  }
  return reference;
}

std::string GgufFixturePath(const std::string& folder) {
  return paths::TestData(absl::StrCat("gguf/models/", folder));
}

absl::StatusOr<Reference> ReadGgufReference(const std::string& folder) {
  const std::string path = GgufFixturePath(folder);
  std::ifstream stream(path + "/reference.json");
  const nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError(folder + ": no reference.json");
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files, formats::ModelFiles::FromDirectory(path));
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile file, files.Open("reference.safetensors"));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<formats::StoredTensor> tensors,
                         formats::ReadSafetensors(file.bytes(), file.label()));
  Reference reference;
  reference.vocab_size = json["hyper_parameters"]["vocab_size"].get<std::uint32_t>();
  for (const auto& entry : json["prompts"]) {
    ReferencePrompt prompt;
    prompt.id = entry["id"].get<std::string>();
    prompt.tokens = entry["token_ids"].get<std::vector<std::int32_t>>();
    prompt.greedy = entry["greedy_token_ids"].get<std::vector<std::int32_t>>();
    prompt.greedy_logprobs = entry["greedy_logprobs"].get<std::vector<float>>();
    for (const formats::StoredTensor& tensor : tensors) {
      if (tensor.name == prompt.id + ".logits") prompt.logits = Floats(tensor);
    }
    reference.prompts.push_back(std::move(prompt));
  }
  return reference;
}

absl::StatusOr<std::vector<ReplayedPrompt>> Replay(const formats::ModelFiles& files,
                                                   const Reference& reference,
                                                   const ReplayOptions& options,
                                                   ReplayCounters* counters) {
  const std::vector<std::size_t> which = Selected(reference, options);
  std::size_t longest = 0;
  for (const std::size_t i : which) longest = std::max(longest, reference.prompts[i].tokens.size());
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<Stage> stage,
      Stage::Create(files, static_cast<std::uint32_t>(which.size()),
                    static_cast<std::uint32_t>(longest) + options.generated, options));
  Replayer replayer(stage.get(), reference, options, which);
  absl::StatusOr<std::vector<ReplayedPrompt>> replayed = replayer.Run();
  if (counters != nullptr) {
    const runtime::CudaRunner* const cuda = stage->cuda_runner();
    *counters = {.steps = replayer.steps(),
                 .released_pages = stage->tables().released_pages(),
                 .graph_steps = cuda == nullptr ? 0 : cuda->graph_steps(),
                 .graphs = cuda == nullptr ? 0 : cuda->num_graphs()};
  }
  return replayed;
}

RankReplays ReplayOnRanks(const formats::ModelFiles& files,
                          const std::vector<Reference>& references, const ReplayOptions& options,
                          const std::vector<kernels::Communicator*>& group,
                          ReplayCounters* counters) {
  RankReplays results(group.size(), absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ReplayOptions own = options;
      own.comm = group[rank];
      results[rank] = Replay(files, references[rank], own, rank == 0 ? counters : nullptr);
      if (!results[rank].ok()) own.comm->Abort(results[rank].status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::StatusOr<std::vector<ReplayedPrompt>> ReplayByContext(const formats::ModelFiles& files,
                                                            const Reference& reference,
                                                            const ReplayOptions& options,
                                                            std::uint32_t border) {
  const std::vector<std::size_t> which = Selected(reference, options);
  std::vector<ReplayedPrompt> results(which.size());
  for (const bool beyond : {false, true}) {
    ReplayOptions part = options;
    part.only.clear();
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < which.size(); ++i) {
      const std::size_t needed = reference.prompts[which[i]].tokens.size() + options.generated;
      if ((needed > border) != beyond) continue;
      part.only.push_back(which[i]);
      places.push_back(i);
    }
    if (places.empty()) continue;
    QUIRE_ASSIGN_OR_RETURN(std::vector<ReplayedPrompt> replayed, Replay(files, reference, part));
    for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(replayed[i]);
  }
  return results;
}

absl::StatusOr<std::vector<float>> ReplayHidden(const formats::ModelFiles& files,
                                                const ReferencePrompt& prompt,
                                                const ReplayOptions& options) {
  const std::uint32_t count = static_cast<std::uint32_t>(prompt.tokens.size());
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage, Stage::Create(files, 1, count, options));
  const ModelSpec& spec = stage->model().spec;
  const std::size_t planes = spec.layers.size() + 2;
  std::vector<float> hidden(planes * count * spec.hidden);
  for (std::uint32_t done = 0; done < count;) {
    const std::uint32_t fresh = std::min(options.chunk, count - done);
    runtime::StepBatch batch;
    for (std::uint32_t j = 0; j < fresh; ++j) batch.token_ids.push_back(prompt.tokens[done + j]);
    batch.rows.push_back({stage->batch_row(0), done, 0, fresh, fresh});
    QUIRE_ASSIGN_OR_RETURN(batch.kv, stage->tables().Inputs({done}, {fresh}));
    batch.states = stage->States({done}, {fresh}, options);
    std::vector<float> part(planes * fresh * spec.hidden);
    batch.hidden_out = part.data();
    QUIRE_RETURN_IF_ERROR(stage->runner().Run(batch));
    QUIRE_RETURN_IF_ERROR(stage->runner().Collect().status());
    for (std::size_t plane = 0; plane < planes; ++plane) {
      std::copy_n(part.data() + plane * fresh * spec.hidden, std::size_t{fresh} * spec.hidden,
                  hidden.data() + (plane * count + done) * spec.hidden);
    }
    done += fresh;
  }
  return hidden;
}

Deviation Compare(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size() || want.empty()) {
    return {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  }
  double difference = 0;
  double norm = 0;
  Deviation deviation;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double delta = double{got[i]} - double{want[i]};
    difference += delta * delta;
    norm += double{want[i]} * double{want[i]};
    // The comparison is written so that NaN propagates.
    if (!(std::abs(delta) <= deviation.max_abs)) deviation.max_abs = std::abs(delta);
  }
  deviation.relative = std::sqrt(difference / norm);
  return deviation;
}

Deviation CompareLogits(const std::vector<ReplayedPrompt>& got, const Reference& want) {
  std::vector<float> all_got;
  std::vector<float> all_want;
  for (std::size_t i = 0; i < want.prompts.size() && i < got.size(); ++i) {
    all_got.insert(all_got.end(), got[i].logits.begin(), got[i].logits.end());
    all_want.insert(all_want.end(), want.prompts[i].logits.begin(), want.prompts[i].logits.end());
  }
  return Compare(all_got, all_want);
}

absl::StatusOr<Deviation> Bf16ErrorRatio(const std::vector<ReplayedPrompt>& got,
                                         const Reference& want, const std::string& name,
                                         DType pages) {
  std::ifstream stream(paths::TestData("bf16_activations.json"));
  const nlohmann::json table = nlohmann::json::parse(stream, nullptr, false);
  if (!table.is_object() || !table.contains(name)) {
    return absl::NotFoundError(absl::StrCat("bf16_activations.json has no ", name));
  }
  const bool is_bf16 = pages == DType::kBF16;
  const double recorded =
      table[name][is_bf16 ? "pages_relative_error" : "relative_error"].get<double>();
  const Deviation deviation = CompareLogits(got, want);
  std::printf("%s: bf16 activations and %s pages differ by %.2e relative, recorded %.2e\n",
              name.c_str(), std::string(DTypeName(pages)).c_str(), deviation.relative, recorded);
  const double max_abs = is_bf16 ? 0 : deviation.max_abs / table[name]["max_abs"].get<double>();
  return Deviation{.relative = deviation.relative / recorded, .max_abs = max_abs};
}

std::size_t CountTokenMismatches(const std::vector<ReplayedPrompt>& got, const Reference& want) {
  std::size_t mismatches = 0;
  for (std::size_t i = 0; i < want.prompts.size(); ++i) {
    if (i >= got.size() || got[i].sampled != want.prompts[i].greedy) ++mismatches;
  }
  return mismatches;
}

bool Passes(const std::vector<ReplayedPrompt>& got, const Reference& want) {
  const Deviation deviation = CompareLogits(got, want);
  return deviation.relative <= kMaxRelative && deviation.max_abs <= kMaxAbsolute &&
         CountTokenMismatches(got, want) == 0;
}

}  // namespace quire::models::parity
