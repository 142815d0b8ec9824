#include "runtime/runner_base.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/elementwise/sum_rows.h"
#include "models/blocks/decoder.h"
#include "runtime/model.h"

namespace quire::runtime {
namespace {

std::uint32_t TextVocab(const Model& model, const RunnerOptions& options) {
  const std::uint32_t vocab = model.spec.vocab_size;
  return options.text_vocab == 0 ? vocab : std::min(options.text_vocab, vocab);
}

}  // namespace

RunnerBase::RunnerBase(const Model& the_model, const kernels::Backend& the_backend,
                       cache::KvPool* the_pool, const RunnerOptions& the_options)
    : model(the_model),
      backend(the_backend),
      pool(the_pool),
      options(the_options),
      layers(models::PlanLayerGroups(model.spec)),
      text_vocab(TextVocab(model, options)),
      has_text(options.has_text.empty() ? nullptr : options.has_text.data()) {
  const models::StepLimits limits = LimitsOf(options);
  sampling_rows.reserve(limits.max_step_samples);
  sample_indices.reserve(limits.max_step_samples);
  logprob_tokens.reserve(limits.max_step_tokens);
}

void RunnerBase::BeginLogits() {
  next_sample_ = 0;
  next_prompt_logprob_ = 0;
}

const float* RunnerBase::LogitsRow(std::uint32_t logits_index, std::uint32_t block_begin) const {
  return buffers.logits + std::size_t{logits_index - block_begin} * model.spec.vocab_size;
}

void RunnerBase::TakeSamples(const StepBatch& batch, std::uint32_t begin, std::uint32_t end,
                             SamplePass pass) {
  sampling_rows.clear();
  sample_indices.clear();
  for (; next_sample_ < batch.samples.size() && batch.samples[next_sample_].logits_index < end;
       ++next_sample_) {
    const StepSample& sample = batch.samples[next_sample_];
    if (sample.is_late && (pass == SamplePass::kEarly || !sample.is_completed)) continue;
    if (!sample.is_late && pass == SamplePass::kLate) continue;
    sample_indices.push_back(static_cast<std::uint32_t>(next_sample_));
    kernels::SamplingRow& row = sampling_rows.emplace_back(sample.row);
    row.logits = LogitsRow(sample.logits_index, begin);
    row.text_vocab = text_vocab;
    row.has_text = has_text;
  }
}

std::size_t RunnerBase::TakePromptLogprobs(const StepBatch& batch, std::uint32_t begin,
                                           std::uint32_t end) {
  logprob_tokens.clear();
  const std::size_t first = next_prompt_logprob_;
  for (; next_prompt_logprob_ < batch.prompt_logprobs.size() &&
         batch.prompt_logprobs[next_prompt_logprob_].logits_index < end;
       ++next_prompt_logprob_) {
    const StepPromptLogprob& prompt_logprob = batch.prompt_logprobs[next_prompt_logprob_];
    kernels::TokenLogprob& token = logprob_tokens.emplace_back();
    token.token = prompt_logprob.token;
    token.num_logprobs = prompt_logprob.num_top;
    token.logits = LogitsRow(prompt_logprob.logits_index, begin);
  }
  return first;
}

absl::Status RunnerBase::AddPool(const StepPool& pool, std::uint32_t first, std::uint32_t head_rows,
                                 float* sum) {
  for (std::uint32_t begin = 0; begin < pool.num_tokens; begin += head_rows) {
    const std::uint32_t rows = std::min(pool.num_tokens - begin, head_rows);
    QUIRE_RETURN_IF_ERROR(models::DecoderNorm(model.spec, *model.weights, backend, &buffers,
                                              first + begin, first + begin + rows));
    QUIRE_RETURN_IF_ERROR(kernels::SumRows(backend, {.x = buffers.head_in,
                                                     .sum = sum,
                                                     .num_rows = rows,
                                                     .columns = model.spec.hidden,
                                                     .begins = pool.begins && begin == 0}));
  }
  return absl::OkStatus();
}

StepToken ToStepToken(const kernels::SampledRow& row) {
  return {.token = row.token,
          .logprob = row.logprob,
          .rank = row.rank,
          .processed_logprob = row.processed_logprob,
          .non_finite = row.non_finite,
          .no_survivor = row.no_survivor,
          .top = {row.top, row.num_top}};
}

StepToken ToStepToken(const kernels::TokenLogprob& token) {
  return {.token = token.token,
          .logprob = token.logprob,
          .rank = token.rank,
          .non_finite = token.non_finite,
          .no_survivor = false,
          .top = {token.top, token.num_top}};
}

}  // namespace quire::runtime
