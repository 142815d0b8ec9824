// quire generate: one request. Text is streamed to standard output, other messages go to standard
// error.

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/client.h"
#include "tools/quire/constraint_options.h"
#include "tools/quire/message_json.h"

namespace quire::client {
namespace {

struct GenerateOptions {
  std::string prompt, prompt_file;
  std::vector<std::int32_t> token_ids;
  std::string model;
  std::string request_id;
  std::optional<float> temperature, top_p, min_p, top_n_sigma, xtc_probability, xtc_threshold,
      repetition_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base;
  std::optional<std::int32_t> top_k, choice_count, max_tokens, min_tokens, logprobs,
      prompt_logprobs, dry_allowed_length, dry_window_tokens;
  std::optional<std::int64_t> seed;
  std::vector<std::string> stop, banned_text, dry_sequence_breakers;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool echo = false;
  bool no_stream = false;
  bool quiet = false;
  std::int32_t priority = 0;
  v1::Constraint constraint;
};

void FillSampling(const GenerateOptions& options, v1::SamplingParams* sampling) {
  if (options.temperature) sampling->set_temperature(*options.temperature);
  if (options.top_p) sampling->set_top_p(*options.top_p);
  if (options.top_k) sampling->set_top_k(*options.top_k);
  if (options.min_p) sampling->set_min_p(*options.min_p);
  if (options.top_n_sigma) sampling->set_top_n_sigma(*options.top_n_sigma);
  if (options.xtc_probability) sampling->set_xtc_probability(*options.xtc_probability);
  if (options.xtc_threshold) sampling->set_xtc_threshold(*options.xtc_threshold);
  if (options.repetition_penalty) sampling->set_repetition_penalty(*options.repetition_penalty);
  if (options.presence_penalty) sampling->set_presence_penalty(*options.presence_penalty);
  if (options.frequency_penalty) sampling->set_frequency_penalty(*options.frequency_penalty);
  if (options.dry_multiplier) sampling->set_dry_multiplier(*options.dry_multiplier);
  if (options.dry_base) sampling->set_dry_base(*options.dry_base);
  if (options.dry_allowed_length) sampling->set_dry_allowed_length(*options.dry_allowed_length);
  if (options.dry_window_tokens) sampling->set_dry_window_tokens(*options.dry_window_tokens);
  for (const std::string& text : options.dry_sequence_breakers)
    sampling->add_dry_sequence_breakers(text);
  if (options.seed) sampling->set_seed(*options.seed);
  if (options.choice_count) sampling->set_choice_count(*options.choice_count);
  for (const std::string& text : options.banned_text) sampling->add_banned_text(text);
}

v1::GenerateRequest ToRequest(const GenerateOptions& options, bool json) {
  v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_request_id(options.request_id);
  if (options.token_ids.empty()) {
    request.set_text(options.prompt);
  } else {
    request.mutable_token_ids()->mutable_ids()->Add(options.token_ids.begin(),
                                                    options.token_ids.end());
  }
  FillSampling(options, request.mutable_sampling());
  v1::StoppingParams* stopping = request.mutable_stopping();
  if (options.max_tokens) stopping->set_max_tokens(*options.max_tokens);
  if (options.min_tokens) stopping->set_min_tokens(*options.min_tokens);
  for (const std::string& stop : options.stop) stopping->add_stop(stop);
  for (const std::int32_t id : options.stop_token_ids) stopping->add_stop_token_ids(id);
  stopping->set_ignore_eos(options.ignore_eos);
  v1::OutputOptions* output = request.mutable_output();
  output->set_stream(!options.no_stream);
  output->set_text(true);
  output->set_token_ids(json);
  output->set_echo_prompt(options.echo);
  output->set_timings(true);
  if (options.logprobs) output->set_logprobs(*options.logprobs);
  if (options.prompt_logprobs) output->set_prompt_logprobs(*options.prompt_logprobs);
  request.set_priority(options.priority);
  SetConstraint(options.constraint, &request);
  return request;
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + 1e-9 * duration.nanos();
}

void PrintSummary(const v1::Completed& completed) {
  const v1::Timings& timings = completed.timings();
  const double decode = Seconds(timings.decode());
  const int tokens = completed.usage().completion_tokens();
  std::fprintf(stderr, "[%s; prompt %d tokens, %d from cache; output %d tokens",
               EnumWords(v1::FinishReason_descriptor(), completed.finish_reason()).c_str(),
               completed.usage().prompt_tokens(), completed.usage().cached_tokens(), tokens);
  std::fprintf(stderr, "; first token after %.1f ms", 1e3 * Seconds(timings.time_to_first_token()));
  if (decode > 0 && tokens > 1) {
    std::fprintf(stderr, "; %.1f tokens/s", (tokens - 1) / decode);
  }
  std::fprintf(stderr, "]\n");
}

// Prints the text of a single choice as it arrives. Prints several choices as a whole, in the order
// in which they end.
class TextPrinter {
 public:
  explicit TextPrinter(const GenerateOptions& options)
      : has_many_choices_(options.choice_count.value_or(1) > 1), quiet_(options.quiet) {}

  void Handle(const v1::GenerateResponse& response) {
    if (response.has_started()) {
      Write(response.started().prompt_text());
    } else if (response.has_delta()) {
      if (has_many_choices_) {
        texts_[response.delta().index()] += response.delta().text();
      } else {
        Write(response.delta().text());
      }
    } else if (response.has_completed()) {
      Complete(response.completed());
    }
  }

 private:
  static void Write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  void Complete(const v1::Completed& completed) {
    if (has_many_choices_) std::printf("--- choice %d\n", completed.index());
    Write(texts_[completed.index()] + completed.text() + "\n");
    if (!quiet_) PrintSummary(completed);
  }

  const bool has_many_choices_;
  const bool quiet_;
  std::map<std::int32_t, std::string> texts_;
};

// Reads the prompt from a file or standard input if the options name one. Returns an error if there
// is no prompt.
absl::Status ReadPrompt(GenerateOptions* options) {
  const std::string source = options->prompt == "-" ? "-" : options->prompt_file;
  if (!source.empty()) {
    QUIRE_ASSIGN_OR_RETURN(options->prompt, ReadInput(source));
  }
  if (!options->prompt.empty() || !options->token_ids.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the prompt is empty; give a text, --prompt-file FILE, --token-ids IDS, or - for standard "
      "input");
}

int RunGenerate(const CommonOptions& common, const GenerateOptions& options) {
  const auto stub = v1::GenerationService::NewStub(Connect(common, common.address));
  grpc::ClientContext context;
  ApplyDeadline(common, &context);
  InterruptGuard guard([&context] { context.TryCancel(); });
  const auto reader = stub->Generate(&context, ToRequest(options, common.json));
  TextPrinter printer(options);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (common.json) {
      PrintJson(response);
    } else {
      printer.Handle(response);
    }
  }
  const grpc::Status status = reader->Finish();
  return status.ok() ? kOk : Fail(common, status, common.address);
}

void AddDryOptions(CLI::App* cmd, GenerateOptions* options) {
  cmd->add_option("--dry-multiplier", options->dry_multiplier,
                  "DRY penalty of continuing a repetition; 0 is off");
  cmd->add_option("--dry-base", options->dry_base, "base of the DRY penalty, per repeated token");
  cmd->add_option("--dry-allowed-length", options->dry_allowed_length,
                  "shortest repetition that DRY penalizes, in tokens");
  cmd->add_option("--dry-window", options->dry_window_tokens,
                  "number of last tokens that DRY scans; 0 is all");
  cmd->add_option("--dry-sequence-breaker", options->dry_sequence_breakers,
                  "text that breaks DRY repetitions, repeatable");
}

}  // namespace

void AddGenerate(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* cmd = app->add_subcommand("generate", "generate text for a prompt and stream it");
  CLI::Option* const prompt =
      cmd->add_option("prompt", options->prompt, "the prompt; - reads standard input");
  CLI::Option* const file = cmd->add_option("--prompt-file", options->prompt_file,
                                            "file or pipe with the prompt; - reads standard input")
                                ->excludes(prompt);
  cmd->add_option("--token-ids", options->token_ids, "prompt as token ids")
      ->delimiter(',')
      ->excludes(prompt)
      ->excludes(file);
  cmd->add_option("--model", options->model, "model id (default: the server's default)");
  cmd->add_option("--request-id", options->request_id, "request id for logs and `cancel`");
  cmd->add_option("--max-tokens", options->max_tokens, "maximum output tokens");
  cmd->add_option("--min-tokens", options->min_tokens, "minimum output tokens");
  cmd->add_option("--temperature", options->temperature, "sampling temperature; 0 is greedy");
  cmd->add_option("--top-p", options->top_p, "nucleus sampling: total probability to keep");
  cmd->add_option("--top-k", options->top_k, "keep the k most likely tokens; 0 is off");
  cmd->add_option("--min-p", options->min_p,
                  "minimum probability relative to the most likely token; 0 is off");
  cmd->add_option("--top-n-sigma", options->top_n_sigma,
                  "keep logits within this many standard deviations of the highest; 0 is off");
  cmd->add_option(
      "--xtc-probability", options->xtc_probability,
      "probability of XTC, which removes all but the least likely of the top tokens; 0 is off");
  cmd->add_option("--xtc-threshold", options->xtc_threshold,
                  "minimum probability of top tokens for XTC");
  cmd->add_option("--repetition-penalty", options->repetition_penalty,
                  "penalty of tokens in prompt and output");
  cmd->add_option("--presence-penalty", options->presence_penalty,
                  "penalty of tokens in the output, once");
  cmd->add_option("--frequency-penalty", options->frequency_penalty,
                  "penalty of tokens in the output, per occurrence");
  cmd->add_option("--seed", options->seed, "seed; the same seed repeats the answer");
  cmd->add_option("-n,--choices", options->choice_count, "number of answers");
  cmd->add_option("--ban", options->banned_text,
                  "text that must not occur in the answer, repeatable");
  cmd->add_option("--stop", options->stop, "text that ends the answer, repeatable");
  cmd->add_option("--stop-token-ids", options->stop_token_ids, "token ids that end the answer")
      ->delimiter(',');
  cmd->add_flag("--ignore-eos", options->ignore_eos, "do not stop at end-of-sequence tokens");
  cmd->add_option("--logprobs", options->logprobs,
                  "return log-probabilities, also of the n most likely tokens (with --json)");
  cmd->add_option("--prompt-logprobs", options->prompt_logprobs,
                  "return log-probabilities of the prompt (with --json)");
  cmd->add_flag("--echo", options->echo, "print the prompt before the answer");
  cmd->add_flag("--no-stream", options->no_stream, "return the whole answer in one message");
  cmd->add_flag("--quiet", options->quiet, "print no summary to standard error");
  AddDryOptions(cmd, options.get());
  AddConstraintOptions(cmd, &options->constraint);
  cmd->add_option("--priority", options->priority, "priority from -100 (first) to 100");
  cmd->callback([=] {
    const absl::Status read = ReadPrompt(options.get());
    *exit_code = read.ok() ? RunGenerate(*common, *options) : FailWith(read, kWrongUsage);
  });
}

}  // namespace quire::client
