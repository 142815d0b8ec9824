#include "server/vllm/vllm_request.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "quire/v1/generation.pb.h"
#include "server/api/status_mapping.h"
#include "server/api/structural_tag_json.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire::server {
namespace {

namespace wire = ::vllm::grpc::engine;

constexpr std::uint32_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

absl::Status Refuse(absl::string_view field, absl::string_view value, absl::string_view why) {
  return BadParameter(field, value, absl::StrCat("absent; ", why));
}

// Refuses unknown fields, because their meaning in a later protocol version is not known. `where`
// is "" or a path with a final dot.
absl::Status CheckKnown(const google::protobuf::Message& message, absl::string_view where) {
  const google::protobuf::UnknownFieldSet& unknown =
      message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return Refuse(absl::StrCat(where, "#", unknown.field(0).number()), "set",
                absl::StrCat("it is an unknown field of ", message.GetDescriptor()->full_name()));
}

absl::StatusOr<std::int32_t> ToInt32(std::uint32_t value, absl::string_view field) {
  if (value <= kMaxInt32) return static_cast<std::int32_t>(value);
  return BadParameter(field, absl::StrCat(value), absl::StrCat("0 to ", kMaxInt32));
}

absl::Status BadTokenId(absl::string_view field, int position, std::uint32_t id) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(field, "[", position, "] is token id ", id,
                                              ", which is larger than any vocabulary")),
      Reason::kBadTokenId,
      {{"field", std::string(field)},
       {"token_id", absl::StrCat(id)},
       {"position", absl::StrCat(position)}});
}

absl::Status ReadConstraint(const wire::SamplingParams& params, v1::GenerateRequest* request) {
  if (params.grammar_from_first_token()) {
    return Refuse("sampling_params.grammar_from_first_token", "true",
                  "this option is not supported");
  }
  switch (params.constraint_case()) {
    case wire::SamplingParams::kJsonSchema:
      request->mutable_constraint()->set_json_schema(params.json_schema());
      break;
    case wire::SamplingParams::kRegex:
      request->mutable_constraint()->set_regex(params.regex());
      break;
    case wire::SamplingParams::kGrammar:
      request->mutable_constraint()->set_ebnf_grammar(params.grammar());
      break;
    case wire::SamplingParams::kStructuralTag:
      QUIRE_RETURN_IF_ERROR(
          ReadStructuralTagJson(params.structural_tag(), "sampling_params.structural_tag",
                                request->mutable_constraint()->mutable_structural_tags()));
      break;
    case wire::SamplingParams::kJsonObject:
      if (params.json_object()) request->mutable_constraint()->mutable_json_object();
      break;
    case wire::SamplingParams::kChoice:
      *request->mutable_constraint()->mutable_choice()->mutable_values() =
          params.choice().choices();
      break;
    case wire::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const wire::SamplingParams& params, v1::SamplingParams* sampling) {
  sampling->set_temperature(params.has_temperature() ? params.temperature() : 1);
  sampling->set_top_p(params.top_p() == 0 ? 1 : params.top_p());
  QUIRE_ASSIGN_OR_RETURN(const std::int32_t top_k,
                         ToInt32(params.top_k(), "sampling_params.top_k"));
  sampling->set_top_k(top_k);
  sampling->set_min_p(params.min_p());
  sampling->set_frequency_penalty(params.frequency_penalty());
  sampling->set_presence_penalty(params.presence_penalty());
  sampling->set_repetition_penalty(params.repetition_penalty() == 0 ? 1
                                                                    : params.repetition_penalty());
  QUIRE_ASSIGN_OR_RETURN(const std::int32_t choices, ToInt32(params.n(), "sampling_params.n"));
  sampling->set_choice_count(choices == 0 ? 1 : choices);
  if (params.has_seed()) sampling->set_seed(params.seed());
  *sampling->mutable_logit_bias() = params.logit_bias();
  return absl::OkStatus();
}

absl::Status ReadStopping(const wire::SamplingParams& params, v1::StoppingParams* stopping) {
  if (params.has_max_tokens()) {
    QUIRE_ASSIGN_OR_RETURN(const std::int32_t max_tokens,
                           ToInt32(params.max_tokens(), "sampling_params.max_tokens"));
    stopping->set_max_tokens(max_tokens);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::int32_t min_tokens,
                         ToInt32(params.min_tokens(), "sampling_params.min_tokens"));
  stopping->set_min_tokens(min_tokens);
  *stopping->mutable_stop() = params.stop();
  for (int i = 0; i < params.stop_token_ids_size(); ++i) {
    const std::uint32_t id = params.stop_token_ids(i);
    if (id > kMaxInt32) return BadTokenId("sampling_params.stop_token_ids", i, id);
    stopping->add_stop_token_ids(static_cast<std::int32_t>(id));
  }
  stopping->set_ignore_eos(params.ignore_eos());
  stopping->set_include_stop_text(params.include_stop_str_in_output());
  return absl::OkStatus();
}

void ReadOutput(const wire::GenerateRequest& message, v1::OutputOptions* output) {
  const wire::SamplingParams& params = message.sampling_params();
  output->set_stream(message.stream());
  output->set_token_ids(true);
  output->set_skip_special_tokens(params.skip_special_tokens());
  if (params.has_logprobs()) output->set_logprobs(params.logprobs());
  if (!params.has_prompt_logprobs()) return;
  output->set_prompt_logprobs(params.prompt_logprobs());
  output->set_echo_prompt(true);  // for the id of the first token, which has no log-probability
}

absl::Status ReadTokens(const wire::GenerateRequest& message, v1::TokenIds* tokens) {
  QUIRE_RETURN_IF_ERROR(CheckKnown(message.tokenized(), "tokenized."));
  const auto& ids = message.tokenized().input_ids();
  const wire::SamplingParams& params = message.sampling_params();
  int begin = 0;
  if (params.has_truncate_prompt_tokens()) {
    const std::int32_t kept = params.truncate_prompt_tokens();
    if (kept < 1) {
      return BadParameter("sampling_params.truncate_prompt_tokens", absl::StrCat(kept),
                          absl::StrCat("1 to ", kMaxInt32));
    }
    begin = std::max(0, ids.size() - kept);
  }
  for (int i = begin; i < ids.size(); ++i) {
    if (ids[i] > kMaxInt32) return BadTokenId("tokenized.input_ids", i, ids[i]);
    tokens->add_ids(static_cast<std::int32_t>(ids[i]));
  }
  return absl::OkStatus();
}

absl::Status ReadPrompt(const wire::GenerateRequest& message, v1::GenerateRequest* request) {
  switch (message.input_case()) {
    case wire::GenerateRequest::kTokenized:
      return ReadTokens(message, request->mutable_token_ids());
    case wire::GenerateRequest::kText:
      if (message.sampling_params().has_truncate_prompt_tokens()) {
        return Refuse("sampling_params.truncate_prompt_tokens",
                      absl::StrCat(message.sampling_params().truncate_prompt_tokens()),
                      "only tokenized input can be truncated");
      }
      request->set_text(message.text());
      return absl::OkStatus();
    case wire::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return WithReason(absl::InvalidArgumentError("input is missing; set one of tokenized and text"),
                    Reason::kPromptMissing, {{"field", "input"}});
}

// Refuses unsupported features: media, and KV transfer from other workers.
absl::Status RefuseUnsupported(const wire::GenerateRequest& message) {
  constexpr absl::string_view kNoMedia = "the model reads text only";
  constexpr absl::string_view kNoTransfer = "KV cache transfer from other workers is not supported";
  if (message.has_mm_inputs()) return Refuse("mm_inputs", "set", kNoMedia);
  if (message.extra_mm_inputs_size() > 0) {
    return Refuse("extra_mm_inputs", absl::StrCat(message.extra_mm_inputs_size(), " entries long"),
                  kNoMedia);
  }
  if (message.has_media_refs()) return Refuse("media_refs", "set", kNoMedia);
  if (message.has_kv_transfer_params()) return Refuse("kv_transfer_params", "set", kNoTransfer);
  if (message.has_kv_transfer_params_json()) {
    return Refuse("kv_transfer_params_json", message.kv_transfer_params_json(), kNoTransfer);
  }
  if (message.has_data_parallel_rank() && message.data_parallel_rank() != 0) {
    return BadParameter("data_parallel_rank", absl::StrCat(message.data_parallel_rank()),
                        "0; there is one rank");
  }
  return absl::OkStatus();
}

// Renames the field path that `text` begins with.
std::string Rename(absl::string_view text) {
  constexpr std::pair<absl::string_view, absl::string_view> kPrefixes[] = {
      {"sampling.choice_count", "sampling_params.n"},
      {"sampling.", "sampling_params."},
      {"stopping.", "sampling_params."},
      {"output.", "sampling_params."}};
  for (const auto& [ours, theirs] : kPrefixes) {
    if (absl::ConsumePrefix(&text, ours)) return absl::StrCat(theirs, text);
  }
  return text == "prompt" ? "input" : std::string(text);
}

}  // namespace

absl::Status ToGenerateRequest(const wire::GenerateRequest& message, v1::GenerateRequest* request) {
  QUIRE_RETURN_IF_ERROR(CheckKnown(message, ""));
  QUIRE_RETURN_IF_ERROR(CheckKnown(message.sampling_params(), "sampling_params."));
  request->set_request_id(message.request_id());
  QUIRE_RETURN_IF_ERROR(RefuseUnsupported(message));
  QUIRE_RETURN_IF_ERROR(ReadConstraint(message.sampling_params(), request));
  QUIRE_RETURN_IF_ERROR(ReadPrompt(message, request));
  QUIRE_RETURN_IF_ERROR(ReadSampling(message.sampling_params(), request->mutable_sampling()));
  QUIRE_RETURN_IF_ERROR(ReadStopping(message.sampling_params(), request->mutable_stopping()));
  ReadOutput(message, request->mutable_output());
  return absl::OkStatus();
}

absl::Status NameVllmFields(const absl::Status& status) {
  std::optional<ErrorReason> reason = GetErrorReason(status);
  if (!reason) return status;
  for (auto& [key, value] : reason->metadata) {
    if (key == "field") value = Rename(value);
  }
  return WithReason(absl::Status(status.code(), Rename(status.message())), reason->reason,
                    reason->metadata, reason->retry_delay);
}

}  // namespace quire::server
