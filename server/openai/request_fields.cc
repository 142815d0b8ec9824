#include "server/openai/request_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/closest_name.h"
#include "base/status.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;

constexpr std::uint32_t kGenerationBodies = kCompletionBody | kChatBody;
constexpr std::uint32_t kEvaluationBodies =
    kEmbeddingBody | kScoreBody | kRerankBody | kClassifyBody;
constexpr std::uint32_t kAllBodies = kGenerationBodies | kEvaluationBodies;

// Longer field names are truncated in messages.
constexpr std::size_t kMaxNameBytes = 64;
constexpr absl::string_view kTextOnly = "the model reads and writes text only";
constexpr absl::string_view kUseConstraint = "use response_format or structured_outputs";
constexpr absl::string_view kFixedSamplers =
    "remove it; top_k, top_p, min_p, top_n_sigma, xtc_probability and dry_multiplier are supported";
constexpr absl::string_view kNoBeams = "use best_of, or n with a temperature";
constexpr absl::string_view kNoTransfer = "KV cache pages are not exchanged with other servers";
constexpr absl::string_view kUseHeader = "send it as the header x-request-id";
constexpr absl::string_view kNoBudget = "set chat_template_kwargs if the template has a budget";
constexpr absl::string_view kNoAdapters = "merge the adapter into the model";
constexpr absl::string_view kNoTimings = "read the metrics or the access log";
constexpr absl::string_view kInputOnly = "send the text as input";

constexpr RequestField kFields[] = {
    Supported("model", kAllBodies),
    NoMeaning("user", kEvaluationBodies, kString),
    // Prompts.
    Supported("prompt", kCompletionBody),
    Supported("echo", kCompletionBody),
    Supported("add_special_tokens", kCompletionBody),
    Supported("messages", kChatBody, kMessage),
    Supported("add_generation_prompt", kChatBody),
    Supported("continue_final_message", kChatBody),
    Supported("chat_template", kChatBody),
    Supported("chat_template_kwargs", kChatBody),
    Supported("documents", kChatBody),
    Supported("reasoning_effort", kChatBody),
    Supported("enable_thinking", kChatBody),
    Supported("tools", kChatBody, kTool),
    Supported("tool_choice", kChatBody, kToolChoice),
    Supported("parallel_tool_calls", kChatBody),
    Supported("functions", kChatBody, kFunction),
    Supported("function_call", kChatBody, kName),
    Supported("truncate_prompt_tokens", kGenerationBodies | kEmbeddingBody | kClassifyBody),
    // Sampling.
    Supported("temperature", kGenerationBodies),
    Supported("top_p", kGenerationBodies),
    Supported("top_k", kGenerationBodies),
    Supported("min_p", kGenerationBodies),
    Supported("top_n_sigma", kGenerationBodies),
    Supported("xtc_probability", kGenerationBodies),
    Supported("xtc_threshold", kGenerationBodies),
    Supported("repetition_penalty", kGenerationBodies),
    Supported("presence_penalty", kGenerationBodies),
    Supported("frequency_penalty", kGenerationBodies),
    Supported("dry_multiplier", kGenerationBodies),
    Supported("dry_base", kGenerationBodies),
    Supported("dry_allowed_length", kGenerationBodies),
    Supported("dry_penalty_last_n", kGenerationBodies),
    Supported("dry_sequence_breakers", kGenerationBodies),
    Supported("logit_bias", kGenerationBodies),
    Supported("bad_words", kGenerationBodies),
    Supported("allowed_token_ids", kGenerationBodies),
    Supported("seed", kGenerationBodies),
    Supported("n", kGenerationBodies),
    Supported("best_of", kCompletionBody),
    // Stopping.
    Supported("max_tokens", kGenerationBodies),
    Supported("max_completion_tokens", kGenerationBodies),
    Supported("min_tokens", kGenerationBodies),
    Supported("stop", kGenerationBodies),
    Supported("stop_token_ids", kGenerationBodies),
    Supported("ignore_eos", kGenerationBodies),
    Supported("include_stop_str_in_output", kGenerationBodies),
    // Constraints.
    Supported("response_format", kGenerationBodies, kResponseFormat),
    Supported("structured_outputs", kGenerationBodies, kStructuredOutputs),
    Supported("guided_json", kGenerationBodies),
    Supported("guided_regex", kGenerationBodies),
    Supported("guided_choice", kGenerationBodies),
    Supported("guided_grammar", kGenerationBodies),
    Supported("guided_json_object", kGenerationBodies),
    Supported("constraint_start", kGenerationBodies),
    Supported("constraint_whitespace", kGenerationBodies),
    Supported("constraint_unenforced", kGenerationBodies),
    // Output.
    Supported("logprobs", kGenerationBodies),
    Supported("top_logprobs", kChatBody),
    Supported("prompt_logprobs", kGenerationBodies),
    Supported("return_token_ids", kGenerationBodies),
    Supported("stream", kGenerationBodies),
    Supported("stream_options", kGenerationBodies, kStreamOptions),
    Supported("stream_interval", kGenerationBodies),
    Supported("skip_special_tokens", kGenerationBodies),
    // Scheduling.
    Supported("priority", kGenerationBodies),
    Supported("cache_salt", kGenerationBodies),
    Supported("user", kGenerationBodies),
    // Embeddings, scores and labels.
    Supported("input", kEmbeddingBody | kClassifyBody),
    Supported("encoding_format", kEmbeddingBody),
    Supported("dimensions", kEmbeddingBody),
    Supported("normalize", kEmbeddingBody),
    Supported("text_1", kScoreBody, kDocument),
    Supported("text_2", kScoreBody, kDocument),
    Supported("queries", kScoreBody, kDocument),
    Supported("items", kScoreBody, kDocument),
    Supported("data_1", kScoreBody, kDocument),
    Supported("data_2", kScoreBody, kDocument),
    Supported("query", kRerankBody, kDocument),
    Supported("documents", kScoreBody | kRerankBody, kDocument),
    Supported("top_n", kRerankBody),
    Supported("return_documents", kRerankBody),

    // Fields without meaning: the answer is the same with and without them.
    NoMeaning("store", kChatBody, kBoolean),
    NoMeaning("metadata", kChatBody, kObject),
    NoMeaning("service_tier", kChatBody, kString),
    NoMeaning("safety_identifier", kChatBody, kString),
    NoMeaning("prompt_cache_key", kChatBody, kString),
    NoMeaning("prompt_cache_options", kChatBody, kObject),
    NoMeaning("prompt_cache_retention", kChatBody, kString),
    NoMeaning("prediction", kChatBody, kObject),
    NoMeaning("session_id", kGenerationBodies, kString),
    NoMeaning("spaces_between_special_tokens", kGenerationBodies, kBoolean),
    NoMeaning("guided_decoding_backend", kGenerationBodies, kString),
    NoMeaning("return_mm_kwargs", kGenerationBodies, kBoolean),
    NoMeaning("mm_processor_kwargs", kAllBodies, kObject),
    NoMeaning("media_io_kwargs", kChatBody | kEmbeddingBody | kClassifyBody, kObject),
    NoMeaning("sse_ping_interval", kGenerationBodies, kNumber),
    NoMeaning("backend_sampling", kGenerationBodies, kBoolean),
    NoMeaning("n_cache_reuse", kGenerationBodies, kNumber),
    NoMeaning("id_slot", kGenerationBodies, kNumber),
    NoMeaning("log_metrics", kGenerationBodies, kBoolean),

    // Refused fields of OpenAI.
    Refused("suffix", kCompletionBody, "write the insertion format of the model as the prompt",
            R"([""])"),
    Refused("audio", kChatBody, kTextOnly),
    Refused("modalities", kChatBody, kTextOnly, R"([["text"]])"),
    Refused("moderation", kChatBody, "moderate prompts and answers before and after the call"),
    Refused("verbosity", kChatBody, "ask for short or long answers in a message", R"(["medium"])"),
    Refused("web_search_options", kChatBody, "search in the client and send the results"),
    // Refused fields of vLLM.
    Refused("use_beam_search", kGenerationBodies, kNoBeams, "[false]"),
    Refused("length_penalty", kGenerationBodies, kNoBeams, "[1]"),
    Refused("watermarking", kGenerationBodies, "remove it", "[false]"),
    Refused("truncation_side", kGenerationBodies, "the last prompt tokens are kept", R"(["left"])"),
    Refused("logprob_token_ids", kGenerationBodies, "use logprobs"),
    Refused("prompt_embeds", kCompletionBody, "send a text or token ids as prompt"),
    Refused("echo", kChatBody, "use continue_final_message", "[false]"),
    Refused("best_of", kChatBody, "use n", "[1]"),
    Refused("add_special_tokens", kChatBody, "the chat template writes the special tokens",
            "[false]"),
    Refused("include_reasoning", kChatBody, "ignore reasoning_content in the answer", "[true]"),
    Refused("thinking_token_budget", kGenerationBodies, kNoBudget, "[-1]"),
    Refused("request_id", kAllBodies, kUseHeader),
    Refused("return_tokens_as_token_ids", kGenerationBodies, "use return_token_ids", "[false]"),
    Refused("return_token_offsets", kGenerationBodies, "use logprobs, which have text_offset",
            "[false]"),
    Refused("return_prompt_text", kChatBody, "use the method RenderChat of the gRPC API",
            "[false]"),
    Refused("routed_experts_prompt_start", kGenerationBodies, "remove it", "[0]"),
    Refused("kv_transfer_params", kGenerationBodies, kNoTransfer, "[{}]"),
    Refused("ec_transfer_params", kGenerationBodies, kNoTransfer, "[{}]"),
    Refused("vllm_xargs", kGenerationBodies, "send the fields at the top level", "[{}]"),
    Refused("repetition_detection", kGenerationBodies, "use dry_multiplier or repetition_penalty"),
    Refused("logits_processors", kGenerationBodies,
            "use logit_bias, bad_words, allowed_token_ids or a constraint", "[[]]"),
    Refused("structural_tag", kGenerationBodies, "use structured_outputs.structural_tag"),
    Refused("guided_whitespace_pattern", kGenerationBodies, "use constraint_whitespace"),
    Refused("padding", kEvaluationBodies, "inputs are never padded", R"(["do_not_pad"])"),
    Refused("truncation_side", kEvaluationBodies, "the first tokens of an input are kept",
            R"(["right"])"),
    Refused("truncate_prompt_tokens", kScoreBody | kRerankBody, "shorten the texts"),
    Refused("priority", kEvaluationBodies, "remove it", "[0]"),
    Refused("cache_salt", kEvaluationBodies, "use a separate tenant for isolation"),
    Refused("use_activation", kEmbeddingBody, "use normalize"),
    Refused("use_activation", kScoreBody | kRerankBody | kClassifyBody,
            "scores are always probabilities", "[true]"),
    Refused("embed_dtype", kEmbeddingBody, "vectors are f32", R"(["float32"])"),
    Refused("endianness", kEmbeddingBody, "bytes of base64 vectors are little-endian",
            R"(["native", "little"])"),
    Refused("add_special_tokens", kEmbeddingBody | kClassifyBody,
            "send token ids to leave out the special tokens", "[true]"),
    Refused("messages", kEmbeddingBody | kClassifyBody, kInputOnly),
    Refused("chat_template", kEmbeddingBody | kClassifyBody, kInputOnly),
    Refused("chat_template_kwargs", kEmbeddingBody | kClassifyBody, kInputOnly),
    Refused("add_generation_prompt", kEmbeddingBody | kClassifyBody, kInputOnly, "[false]"),
    Refused("continue_final_message", kEmbeddingBody | kClassifyBody, kInputOnly, "[false]"),
    // Refused fields of SGLang. SGLang's gateways send some of these fields in every call.
    Refused("no_stop_trim", kGenerationBodies, "use include_stop_str_in_output", "[false]"),
    Refused("stop_regex", kGenerationBodies, "use stop", "[[]]"),
    Refused("lora_path", kGenerationBodies, kNoAdapters),
    Refused("session_params", kGenerationBodies, "send the whole prompt"),
    Refused("separate_reasoning", kGenerationBodies, "read reasoning_content of the answer",
            "[true]"),
    Refused("stream_reasoning", kGenerationBodies, "read reasoning_content of the answer",
            "[true]"),
    Refused("return_hidden_states", kGenerationBodies, "use /v1/embeddings", "[false]"),
    Refused("custom_logit_processor", kGenerationBodies,
            "use logit_bias, bad_words, allowed_token_ids or a constraint"),
    Refused("custom_params", kGenerationBodies, "send the fields at the top level"),
    Refused("rid", kGenerationBodies, kUseHeader),
    Refused("extra_key", kGenerationBodies, "use cache_salt"),
    Refused("input_ids", kGenerationBodies, "send token ids as prompt"),
    Refused("sampling_seed", kGenerationBodies, "use seed"),
    Refused("return_routed_experts", kGenerationBodies, "remove it", "[false]"),
    Refused("routed_experts_start_len", kGenerationBodies, "remove it", "[0]"),
    Refused("return_cached_tokens_details", kGenerationBodies,
            "read prompt_tokens_details of the usage", "[false]"),
    Refused("images_config", kGenerationBodies, kTextOnly),
    Refused("routed_dp_rank", kGenerationBodies, "remove it"),
    Refused("disagg_prefill_dp_rank", kGenerationBodies, "remove it"),
    Refused("data_parallel_rank", kGenerationBodies, "remove it"),
    Refused("ngram_corpus_id", kGenerationBodies, "remove it"),
    Refused("custom_labels", kGenerationBodies, "use user, which is in the access log"),
    Refused("bootstrap_host", kGenerationBodies, kNoTransfer),
    Refused("bootstrap_port", kGenerationBodies, kNoTransfer),
    Refused("bootstrap_room", kGenerationBodies, kNoTransfer),
    // Refused fields of llama.cpp.
    Refused("grammar", kGenerationBodies, kUseConstraint),
    Refused("json_schema", kGenerationBodies, kUseConstraint),
    Refused("grammar_lazy", kGenerationBodies, kUseConstraint, "[false]"),
    Refused("grammar_triggers", kGenerationBodies, kUseConstraint, "[[]]"),
    Refused("preserved_tokens", kGenerationBodies, kUseConstraint, "[[]]"),
    Refused("verbose", kGenerationBodies, kNoTimings, "[false]"),
    Refused("timings_per_token", kGenerationBodies, kNoTimings, "[false]"),
    Refused("return_progress", kGenerationBodies, kNoTimings, "[false]"),
    Refused("cache_prompt", kGenerationBodies, "use cache_salt to isolate a prompt", "[true]"),
    Refused("return_tokens", kGenerationBodies, "use return_token_ids", "[false]"),
    Refused("n_predict", kGenerationBodies, "use max_tokens"),
    Refused("n_cmpl", kGenerationBodies, "use n"),
    Refused("n_probs", kGenerationBodies, "use logprobs", "[0]"),
    Refused("post_sampling_probs", kGenerationBodies, "use logprobs", "[false]"),
    Refused("n_indent", kGenerationBodies, kUseConstraint, "[0]"),
    Refused("n_keep", kGenerationBodies, "a full context ends the answer", "[0, -1]"),
    Refused("n_discard", kGenerationBodies, "a full context ends the answer", "[0]"),
    Refused("t_max_predict_ms", kGenerationBodies, "end the call in the client", "[-1, 0]"),
    Refused("response_fields", kGenerationBodies, "select the fields in the client", "[[]]"),
    Refused("typical_p", kGenerationBodies, kFixedSamplers, "[1]"),
    Refused("dynatemp_range", kGenerationBodies, kFixedSamplers, "[0]"),
    Refused("dynatemp_exponent", kGenerationBodies, kFixedSamplers, "[1]"),
    Refused("mirostat", kGenerationBodies, kFixedSamplers, "[0]"),
    Refused("mirostat_tau", kGenerationBodies, kFixedSamplers, "[5]"),
    Refused("mirostat_eta", kGenerationBodies, kFixedSamplers, "[0.1]"),
    Refused("adaptive_target", kGenerationBodies, kFixedSamplers, "[-1]"),
    Refused("adaptive_decay", kGenerationBodies, kFixedSamplers),
    Refused("min_keep", kGenerationBodies, kFixedSamplers, "[0]"),
    Refused("samplers", kGenerationBodies, kFixedSamplers),
    Refused("repeat_penalty", kGenerationBodies, "use repetition_penalty", "[1]"),
    Refused("repeat_last_n", kGenerationBodies, "repetition_penalty reads all tokens", "[-1]"),
    Refused("lora", kGenerationBodies, kNoAdapters, "[[]]"),
    Refused("chat_format", kGenerationBodies, "set chat.tool_format of the configuration"),
    Refused("chat_parser", kGenerationBodies, "set chat.tool_format of the configuration"),
    Refused("reasoning_format", kGenerationBodies, "read reasoning_content of the answer",
            R"(["auto", "deepseek"])"),
    Refused("generation_prompt", kGenerationBodies, "use continue_final_message"),
    Refused("parse_tool_calls", kGenerationBodies, "use tool_choice none", "[true]"),
    Refused("continue_final_message", kCompletionBody, "the prompt is always continued as it is",
            "[false]"),
    Refused("reasoning_control", kGenerationBodies, kNoBudget, "[false]"),
    Refused("reasoning_budget_tokens", kGenerationBodies, kNoBudget, "[-1]"),
    Refused("reasoning_budget_start_tag", kGenerationBodies, kNoBudget, R"([""])"),
    Refused("reasoning_budget_end_tag", kGenerationBodies, kNoBudget, R"([""])"),
    Refused("reasoning_budget_end_tags", kGenerationBodies, kNoBudget, "[[]]"),
    Refused("reasoning_budget_message", kGenerationBodies, kNoBudget, R"([""])"),
    // Refused fields of Ollama and others.
    Refused("reasoning", kChatBody, "use reasoning_effort", "[{}]"),
    Refused("think", kChatBody, "use enable_thinking or reasoning_effort"),
    Refused("options", kGenerationBodies, "send its members at the top level", "[{}]"),
    Refused("format", kGenerationBodies, "use response_format", R"([""])"),
    Refused("keep_alive", kGenerationBodies, "the model stays loaded"),
    Refused("_debug_render_only", kGenerationBodies, "use the method RenderChat of the gRPC API",
            "[false]"),
    Refused("regex", kGenerationBodies, kUseConstraint),
    Refused("ebnf", kGenerationBodies, kUseConstraint),

    // Members of objects.
    Supported("include_usage", kStreamOptions),
    Supported("continuous_usage_stats", kStreamOptions),
    NoMeaning("include_obfuscation", kStreamOptions, kBoolean),

    Supported("type",
              kResponseFormat | kContentPart | kToolCall | kTool | kToolChoice | kNamedTool),
    // Without the member schema, json_schema is the schema itself.
    Supported("json_schema", kResponseFormat, kSchemaWrapper, "schema"),
    Supported("schema", kResponseFormat | kSchemaWrapper),
    Supported("triggers", kResponseFormat),
    Supported("structures", kResponseFormat),
    Supported("format", kResponseFormat),
    NoMeaning("name", kSchemaWrapper, kString),
    NoMeaning("description", kSchemaWrapper, kString),
    NoMeaning("strict", kSchemaWrapper, kBoolean),

    Supported("json", kStructuredOutputs),
    Supported("regex", kStructuredOutputs),
    Supported("choice", kStructuredOutputs),
    Supported("grammar", kStructuredOutputs),
    Supported("json_object", kStructuredOutputs),
    Supported("structural_tag", kStructuredOutputs),
    Supported("disable_any_whitespace", kStructuredOutputs),
    NoMeaning("disable_fallback", kStructuredOutputs, kBoolean),
    Refused("whitespace_pattern", kStructuredOutputs, "use constraint_whitespace", "[false]"),
    Refused("disable_additional_properties", kStructuredOutputs,
            "write additionalProperties into the schema", "[false]"),

    Supported("role", kMessage),
    Supported("content", kMessage, kContentPart),
    Supported("name", kMessage | kCalledFunction | kFunction | kName),
    Supported("tool_calls", kMessage, kToolCall),
    Supported("tool_call_id", kMessage),
    Supported("function_call", kMessage, kCalledFunction),
    Supported("reasoning_content", kMessage),
    Supported("reasoning", kMessage),
    Supported("thinking", kMessage),
    NoMeaning("annotations", kMessage, kArray),
    Refused("refusal", kMessage, "send the text as content", R"([""])"),
    Refused("audio", kMessage, kTextOnly),

    Supported("text", kContentPart | kDocument),
    NoMeaning("cache_control", kMessage | kContentPart | kTool, kObject),
    NoMeaning("prompt_cache_breakpoint", kContentPart, kObject),
    Refused("image_url", kContentPart, kTextOnly),
    Refused("input_audio", kContentPart, kTextOnly),
    Refused("audio_url", kContentPart, kTextOnly),
    Refused("video_url", kContentPart, kTextOnly),
    Refused("file", kContentPart, kTextOnly),
    Refused("refusal", kContentPart, "send the text as a part of type text"),

    Supported("id", kToolCall),
    Supported("function", kToolCall, kCalledFunction),
    NoMeaning("index", kToolCall, kNumber),
    Refused("custom", kToolCall | kTool | kToolChoice | kNamedTool, "use a tool of type function"),
    Supported("arguments", kCalledFunction),

    Supported("function", kTool, kFunction),
    Refused("defer_loading", kTool | kFunction, "send only the tools of this turn", "[false]"),
    Supported("description", kFunction),
    Supported("parameters", kFunction),
    Supported("strict", kFunction),
    // The transformers library writes this member, and the template gets the tool unchanged.
    Supported("return", kFunction),

    Supported("function", kToolChoice | kNamedTool, kName),
    Supported("allowed_tools", kToolChoice, kAllowedTools),
    Supported("mode", kAllowedTools),
    Supported("tools", kAllowedTools, kNamedTool),
};

// Returns the supported field of `owner` with the most similar name, or "" if none is similar.
absl::string_view SuggestField(const FieldTable& table, std::uint32_t owner,
                               absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const RequestField& field : table) {
    if ((field.owners & owner) != 0 && field.outcome == FieldOutcome::kSupported) {
      names.push_back(field.name);
    }
  }
  return ClosestName(name, names);
}

absl::Status UnknownField(const FieldTable& table, const JsonValue& value, std::uint32_t owner,
                          absl::string_view name) {
  const absl::string_view similar = SuggestField(table, owner, name);
  if (!similar.empty()) {
    return BadField(value, absl::StrCat("is not a known field; did you mean ", similar, "?"));
  }
  return BadField(value,
                  "is not a known field; remove it, or set openai.unknown_fields to warn in the "
                  "server's configuration");
}

std::uint8_t TypeOf(const nlohmann::json& value) {
  if (value.is_boolean()) return kBoolean;
  if (value.is_number()) return kNumber;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

std::string TypeNames(std::uint8_t types) {
  std::vector<absl::string_view> names;
  for (const auto& [type, name] : {std::pair(kBoolean, "a boolean"), std::pair(kNumber, "a number"),
                                   std::pair(kString, "a string"), std::pair(kArray, "a list"),
                                   std::pair(kObject, "an object")}) {
    if ((types & type) != 0) names.emplace_back(name);
  }
  return absl::StrJoin(names, " or ");
}

bool IsNeutral(const RequestField& field, const nlohmann::json& value) {
  if (field.neutral == "[]") return false;
  const nlohmann::json accepted = nlohmann::json::parse(field.neutral);
  return std::ranges::find(accepted, value) != accepted.end();
}

absl::Status CheckValue(const RequestField& field, const JsonValue& value) {
  if (field.outcome == FieldOutcome::kRefused && !IsNeutral(field, value.raw())) {
    return BadField(value, absl::StrCat("is not supported; ", field.remedy));
  }
  if (field.outcome == FieldOutcome::kNoMeaning && (TypeOf(value.raw()) & field.types) == 0) {
    return BadField(value, absl::StrCat("must be ", TypeNames(field.types)));
  }
  return absl::OkStatus();
}

absl::Status CheckMembers(const FieldTable& table, const JsonValue& value,
                          const RequestField& field, const UnknownFieldHandler& on_unknown) {
  if (field.members == 0) return absl::OkStatus();
  if (value.is_object()) {
    if (!field.members_if.empty() && !value.FindNonNull(field.members_if)) return absl::OkStatus();
    return CheckFields(table, value, field.members, on_unknown);
  }
  if (!value.is_array()) return absl::OkStatus();
  for (std::size_t i = 0; i < value.size(); ++i) {
    const JsonValue element = value.At(i);
    if (!element.is_object()) continue;
    QUIRE_RETURN_IF_ERROR(CheckFields(table, element, field.members, on_unknown));
  }
  return absl::OkStatus();
}

}  // namespace

FieldTable::FieldTable(std::span<const RequestField> fields) : fields_(fields) {
  for (const RequestField& field : fields) by_name_[field.name].push_back(&field);
}

const RequestField* FieldTable::Find(std::uint32_t owner, absl::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  for (const RequestField* field : found->second) {
    if ((field->owners & owner) != 0) return field;
  }
  return nullptr;
}

const FieldTable& RequestFields() {
  static const auto* const kTable = new FieldTable(kFields);
  return *kTable;
}

absl::Status CheckFields(const FieldTable& table, const JsonValue& object, std::uint32_t owner,
                         const UnknownFieldHandler& on_unknown) {
  for (const auto& [name, raw] : object.raw().get_ref<const nlohmann::json::object_t&>()) {
    if (raw.is_null()) continue;
    // An empty name would not be visible in the path.
    const JsonValue value(raw,
                          object.PathOf(name.empty() ? R"("")" : name.substr(0, kMaxNameBytes)));
    const RequestField* const field = table.Find(owner, name);
    if (field != nullptr) {
      QUIRE_RETURN_IF_ERROR(CheckValue(*field, value));
      QUIRE_RETURN_IF_ERROR(CheckMembers(table, value, *field, on_unknown));
    } else if (on_unknown) {
      on_unknown(value.path());
    } else {
      return UnknownField(table, value, owner, name);
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::server
