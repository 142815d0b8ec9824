#include "server/openai/openai_answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "server/openai/field_names.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;
using TokenLogprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprob>;

// Reported as the log-probability of probability 0, since JSON has no infinity.
constexpr double kNoLogprob = -9999.0;

double FiniteOrMin(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kNoLogprob;
}

// Returns the text of a token, or its bytes if it is not valid UTF-8, as OpenAI's completions do.
std::string TokenText(const std::string& bytes) {
  if (!FirstInvalidUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(c));
  return text;
}

// `has_calls` is false if tool_choice named the call, because OpenAI reports "stop" for this case.
const char* FinishReasonName(v1::FinishReason reason, bool has_calls, bool uses_functions) {
  if (reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_CONTEXT_FULL) {
    return "length";
  }
  if (!has_calls) return "stop";
  return uses_functions ? "function_call" : "tool_calls";
}

template <typename Call>
ordered_json MakeFunction(const Call& call) {
  return {{"name", call.name()}, {"arguments", call.arguments_json()}};
}

// Converts a v1::ToolCall or v1::ToolCallDelta.
template <typename Call>
ordered_json MakeCall(const Call& call) {
  return {{"id", call.id()}, {"type", "function"}, {"function", MakeFunction(call)}};
}

ordered_json MakeMessage(const v1::Completed& completed, bool uses_functions) {
  const bool has_calls = completed.tool_calls_size() > 0;
  const bool has_content = !completed.text().empty() || !has_calls;
  ordered_json message = {{"role", "assistant"},
                          {"content", has_content ? ordered_json(completed.text()) : nullptr},
                          {"refusal", nullptr}};
  if (!completed.reasoning_text().empty()) {
    message["reasoning_content"] = completed.reasoning_text();
  }
  if (uses_functions && has_calls) {
    message["function_call"] = MakeFunction(completed.tool_calls(0));
    return message;
  }
  for (const v1::ToolCall& call : completed.tool_calls()) {
    message["tool_calls"].push_back(MakeCall(call));
  }
  return message;
}

// Converts a Delta to the `delta` of a chat chunk.
ordered_json MakeDelta(const v1::Delta& delta, const std::string& text, bool uses_functions) {
  ordered_json content = ordered_json::object();
  if (!delta.reasoning_text().empty()) content["reasoning_content"] = delta.reasoning_text();
  if (!text.empty() || (delta.reasoning_text().empty() && delta.tool_calls().empty())) {
    content["content"] = text;
  }
  for (const v1::ToolCallDelta& call : delta.tool_calls()) {
    if (uses_functions) {
      content["function_call"] = MakeFunction(call);
      break;
    }
    ordered_json entry = {{"index", call.call_index()}};
    entry.update(MakeCall(call));
    content["tool_calls"].push_back(std::move(entry));
  }
  return content;
}

// Computes the offsets of prompt tokens in the echoed text, in characters.
class PromptOffsetCounter {
 public:
  // `is_decoded` is true if `text` was decoded from the prompt's tokens. Otherwise `text` was sent
  // by the client. It then lacks special tokens that the tokenizer adds, and its spaces may differ
  // from the spaces in the tokens.
  PromptOffsetCounter(absl::string_view text, const OpenAiTokens& tokens, bool is_decoded,
                      bool skips_special)
      : rest_(text),
        tokens_(tokens),
        is_decoded_(is_decoded),
        detokenizer_(tokens.detokenizer(!is_decoded || skips_special)) {}

  // Returns the offset of the next token.
  std::int64_t Next(std::int32_t id) {
    const std::int64_t offset = offset_ + detokenizer_.open_characters();
    if (!is_decoded_ && tokens_.is_special(id)) {
      const std::string bytes = tokens_.bytes(id);
      if (absl::StartsWith(rest_, bytes)) Advance(bytes.size());
      return offset;
    }
    const std::string piece = detokenizer_.Push(id);
    if (absl::StartsWith(rest_, piece)) {
      Advance(piece.size());
      return offset;
    }
    const absl::string_view text = StripLeadingSpaces(rest_);
    const absl::string_view bare = StripLeadingSpaces(piece);
    if (absl::StartsWith(text, bare)) {
      Advance(rest_.size() - text.size() + bare.size());
    } else {  // the tokenizer changed the text
      Advance(CountBytes(CountUtf8Characters(piece)));
    }
    return offset;
  }

 private:
  static absl::string_view StripLeadingSpaces(absl::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    return text;
  }

  // Returns the size in bytes of the next `characters` characters, or of the rest if it has fewer.
  std::size_t CountBytes(std::int64_t characters) const {
    std::size_t size = 0;
    for (; characters > 0 && size < rest_.size(); --characters) size += Utf8Length(rest_[size]);
    return size;
  }

  void Advance(std::size_t bytes) {
    offset_ += CountUtf8Characters(rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
  }

  absl::string_view rest_;  // text after the tokens so far
  const OpenAiTokens& tokens_;
  const bool is_decoded_;
  text::Detokenizer detokenizer_;
  std::int64_t offset_ = 0;
};

// The four lists of log-probabilities of a completion.
class CompletionLogprobs {
 public:
  // Adds the first token of a prompt, which has no probability.
  void AddFirst(const std::string& bytes, std::int64_t offset) {
    AddText(bytes, offset);
    lists_["token_logprobs"].push_back(nullptr);
    lists_["top_logprobs"].push_back(nullptr);
  }

  void Add(const v1::TokenLogprob& token, std::int64_t offset) {
    AddText(token.token_bytes(), offset);
    lists_["token_logprobs"].push_back(FiniteOrMin(token.logprob()));
    ordered_json best = ordered_json::object();
    for (const v1::TopLogprob& top : token.top()) {
      // If two tokens have the same text, the more likely one is kept.
      best.emplace(TokenText(top.token_bytes()), FiniteOrMin(top.logprob()));
    }
    best.emplace(TokenText(token.token_bytes()), FiniteOrMin(token.logprob()));
    lists_["top_logprobs"].push_back(std::move(best));
  }

  // Returns the entries since the last call, or null if there are none.
  ordered_json Take() {
    if (lists_["tokens"].empty()) return nullptr;
    return std::exchange(lists_, Empty());
  }

 private:
  static ordered_json Empty() {
    return {{"tokens", ordered_json::array()},
            {"token_logprobs", ordered_json::array()},
            {"top_logprobs", ordered_json::array()},
            {"text_offset", ordered_json::array()}};
  }

  void AddText(const std::string& bytes, std::int64_t offset) {
    lists_["tokens"].push_back(TokenText(bytes));
    lists_["text_offset"].push_back(offset);
  }

  ordered_json lists_ = Empty();
};

template <typename Token>
ordered_json ChatToken(const Token& token) {
  ordered_json bytes = ordered_json::array();
  for (const char c : token.token_bytes()) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.token_bytes()},
          {"logprob", FiniteOrMin(token.logprob())},
          {"bytes", std::move(bytes)}};
}

// Returns one element of prompt_logprobs in vLLM's form, as JSON text. The element is an object
// whose keys are token ids. The prompt's own token comes first.
std::string PromptLogprob(const v1::TokenLogprob& token) {
  ordered_json entries = ordered_json::object();
  const auto add = [&entries](const auto& candidate, std::int32_t rank) {
    entries.emplace(absl::StrCat(candidate.token_id()),
                    ordered_json{{"logprob", FiniteOrMin(candidate.logprob())},
                                 {"rank", rank},
                                 {"decoded_token", candidate.token_bytes()}});
  };
  add(token, token.rank());
  for (int i = 0; i < token.top_size(); ++i) add(token.top(i), i + 1);
  return JsonText(entries);
}

ordered_json IdList(const google::protobuf::RepeatedField<std::int32_t>& ids) {
  return std::vector<std::int32_t>(ids.begin(), ids.end());
}

// Returns the mean log-probability of the tokens of a choice, by which choices are ranked for
// best_of. A choice without tokens ranks lowest.
double MeanLogprob(const TokenLogprobs& tokens) {
  if (tokens.empty()) return kNoLogprob;
  double sum = 0;
  for (const v1::TokenLogprob& token : tokens) sum += FiniteOrMin(token.logprob());
  return sum / tokens.size();
}

// Returns the keyword FIELD#POINTER with FIELD renamed to the client's name.
std::string RenameKeyword(absl::string_view keyword, const FieldNames& names) {
  const std::size_t pointer = std::min(keyword.find('#'), keyword.size());
  return absl::StrCat(names.Rename(keyword.substr(0, pointer)), keyword.substr(pointer));
}

struct Choice {
  bool is_open = false;  // its first chunk was sent
  bool has_calls = false;
  CompletionLogprobs logprobs;
  std::string json;  // JSON of the completed choice without its index; empty with a stream
  double mean_logprob = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t reasoning_tokens = 0;
};

struct Prompt {
  std::int32_t tokens = 0;
  std::int32_t cached_tokens = 0;
  std::string text;                        // set with echo
  std::int64_t characters = 0;             // length of text in code points
  bool is_decoded = false;                 // the text was decoded from the prompt's tokens
  std::int32_t first_id = -1;              // set with echo and logprobs
  ordered_json ids;                        // set with return_token_ids
  std::vector<v1::TokenLogprob> logprobs;  // set with echo; cleared when all choices are completed
  std::string logprobs_json;               // elements of prompt_logprobs, each after a comma
  std::size_t num_completed = 0;           // number of completed choices
};

class OpenAiAnswer final : public AnswerWriter {
 public:
  OpenAiAnswer(const OpenAiRequest& request, OpenAiAnswerHead head, OpenAiTokens tokens)
      : is_chat_(request.is_chat),
        stream_(request.stream),
        include_usage_(request.include_usage),
        continuous_usage_(request.continuous_usage),
        echo_(request.echo),
        with_logprobs_(request.logprobs),
        hides_output_(request.hides_output),
        with_prompt_logprobs_(request.prompt_logprobs),
        with_ids_(request.token_ids),
        uses_functions_(request.uses_functions),
        has_named_tool_(!request.prompts.empty() &&
                        request.prompts[0].chat().tool_choice() == v1::TOOL_CHOICE_NAMED),
        skips_special_(request.prompts.empty() ||
                       !request.prompts[0].output().has_skip_special_tokens() ||
                       request.prompts[0].output().skip_special_tokens()),
        choices_per_prompt_(static_cast<std::size_t>(request.choices)),
        returned_per_prompt_(static_cast<std::size_t>(request.returned_choices)),
        names_(request.names),
        head_(std::move(head)),
        vocabulary_(std::move(tokens)),
        prompts_(request.prompts.size()),
        choices_(prompts_.size() * choices_per_prompt_) {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      prompts_[i].is_decoded = request.prompts[i].has_token_ids();
    }
  }

  void Take(std::size_t prompt, const v1::GenerateResponse& message, std::string* events) override {
    const std::size_t first = prompt * choices_per_prompt_;
    switch (message.event_case()) {
      case v1::GenerateResponse::kStarted:
        return Start(prompt, message.started(), events);
      case v1::GenerateResponse::kPromptLogprobs:
        return AddPromptLogprobs(message.prompt_logprobs().tokens(), &prompts_[prompt]);
      case v1::GenerateResponse::kDelta: {
        const v1::Delta& delta = message.delta();
        return AddDelta(first + static_cast<std::size_t>(delta.index()), delta, events);
      }
      case v1::GenerateResponse::kCompleted: {
        const v1::Completed& completed = message.completed();
        Complete(first + static_cast<std::size_t>(completed.index()), completed, events);
        Prompt& state = prompts_[prompt];
        if (++state.num_completed == choices_per_prompt_) state.logprobs = {};
        return;
      }
      default:
        return;
    }
  }

  // Appends the usage if requested, and [DONE].
  void AppendEnd(std::string* events) override {
    if (include_usage_) {
      ordered_json chunk = Envelope(is_chat_ ? "chat.completion.chunk" : "text_completion");
      chunk["choices"] = ordered_json::array();
      chunk["usage"] = Usage();
      absl::StrAppend(events, SseEvent(JsonText(chunk)));
    }
    absl::StrAppend(events, SseEvent("[DONE]"));
  }

  // Omits [DONE], so that the client does not mistake the answer for a complete one.
  void AppendError(const std::string& error_body, std::string* events) override {
    absl::StrAppend(events, SseEvent(error_body));
  }

  // Concatenates text instead of JSON values, since choices may be large.
  std::string TakeBody() override {
    std::string body = JsonText(Envelope(is_chat_ ? "chat.completion" : "text_completion"));
    body.pop_back();
    if (!unenforced_.empty()) {
      absl::StrAppend(&body, ",\"unenforced_keywords\":", JsonText(unenforced_));
    }
    body.reserve(body.size() + buffered_bytes_ + choices_.size() + 256);
    body += ",\"choices\":[";
    std::size_t returned = 0;
    for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      for (const std::size_t index : ReturnedChoices(prompt)) {
        const std::string json = std::exchange(choices_[index].json, "");
        absl::StrAppend(&body, "{\"index\":", returned++, ",", absl::string_view(json).substr(1));
        if (!is_chat_ && with_prompt_logprobs_) {
          body.pop_back();
          AppendPromptLogprobs(prompts_[prompt], &body);
          body += '}';
        }
        body += ',';
      }
    }
    body.back() = ']';
    if (is_chat_ && with_prompt_logprobs_) {
      AppendPromptLogprobs(prompts_.front(), &body);
    }
    if (is_chat_ && with_ids_) {
      absl::StrAppend(&body, ",\"prompt_token_ids\":", JsonText(prompts_.front().ids));
    }
    absl::StrAppend(&body, ",\"usage\":", JsonText(Usage()), "}");
    return body;
  }

  std::size_t buffered_bytes() const override { return buffered_bytes_; }

 private:
  void Start(std::size_t prompt, const v1::Started& started, std::string* events) {
    Prompt& state = prompts_[prompt];
    state.tokens = started.prompt_tokens();
    state.cached_tokens = started.cached_tokens();
    state.text = started.prompt_text();
    // If the prompt ends within a character, the output usually completes the character. Hidden
    // output cannot complete it, so a replacement character is added here.
    if (hides_output_ && state.is_decoded && EndsInsideCharacter(started.prompt_token_ids())) {
      absl::StrAppend(&state.text, kReplacementCharacter);
    }
    state.characters = CountUtf8Characters(state.text);
    if (echo_ && with_logprobs_ && started.prompt_token_ids_size() > 0) {
      state.first_id = started.prompt_token_ids(0);
    }
    if (with_ids_) state.ids = IdList(started.prompt_token_ids());
    if (unenforced_.empty()) {
      for (const std::string& keyword : started.unenforced_keywords()) {
        unenforced_.push_back(RenameKeyword(keyword, names_));
      }
    }
    if (!is_chat_ || !stream_) return;
    for (std::size_t c = 0; c < choices_per_prompt_; ++c) {
      const ordered_json role = {{"role", "assistant"}, {"content", ""}};
      const std::size_t index = prompt * choices_per_prompt_ + c;
      AppendChunk(index, ChunkChoice(index, role, nullptr, nullptr), events, /*is_first=*/true);
    }
  }

  // Converts the log-probabilities to JSON at once, so that buffered_bytes counts them before
  // memory is exhausted. The body of a chat contains the list once. The body of a completion
  // contains the list once per choice.
  void AddPromptLogprobs(const TokenLogprobs& tokens, Prompt* prompt) {
    if (echo_) prompt->logprobs.insert(prompt->logprobs.end(), tokens.begin(), tokens.end());
    if (!with_prompt_logprobs_) return;
    const std::size_t before = prompt->logprobs_json.size();
    for (const v1::TokenLogprob& token : tokens) {
      absl::StrAppend(&prompt->logprobs_json, ",", PromptLogprob(token));
    }
    const std::size_t copies = is_chat_ ? 1 : returned_per_prompt_;
    buffered_bytes_ += copies * (prompt->logprobs_json.size() - before);
  }

  void AddDelta(std::size_t index, const v1::Delta& delta, std::string* events) {
    const bool is_first = !std::exchange(choices_[index].is_open, true);
    if (delta.has_usage() && !hides_output_) {
      choices_[index].completion_tokens = delta.usage().completion_tokens();
      choices_[index].reasoning_tokens = delta.usage().reasoning_tokens();
    }
    std::string shown = is_first && echo_ ? PromptOfChoice(index).text : "";
    if (!hides_output_) shown += delta.text();
    ordered_json logprobs = MakeLogprobs(index, delta.logprobs(), is_first);
    const bool is_parsed = !delta.reasoning_text().empty() || !delta.tool_calls().empty();
    if (!delta.tool_calls().empty()) choices_[index].has_calls = true;
    const bool has_ids = with_ids_ && (is_first || !delta.token_ids().empty());
    if (shown.empty() && !is_parsed && logprobs.is_null() && !has_ids) return;
    ordered_json content =
        is_chat_ ? MakeDelta(delta, shown, uses_functions_) : ordered_json(shown);
    ordered_json choice = ChunkChoice(index, std::move(content), std::move(logprobs), nullptr);
    AddIds(index, delta.token_ids(), is_first, &choice);
    AppendChunk(index, std::move(choice), events);
  }

  void Complete(std::size_t index, const v1::Completed& completed, std::string* events) {
    Choice& choice = choices_[index];
    choice.completion_tokens = hides_output_ ? 0 : completed.usage().completion_tokens();
    choice.reasoning_tokens = completed.usage().reasoning_tokens();
    const bool has_calls = choice.has_calls || !completed.tool_calls().empty();
    const char* const finish_reason =
        hides_output_ ? "length"
                      : FinishReasonName(completed.finish_reason(), has_calls && !has_named_tool_,
                                         uses_functions_);
    if (stream_) {
      // If the choice has no output, the prompt has not been sent yet.
      if (!choice.is_open && (echo_ || with_ids_)) AddDelta(index, v1::Delta(), events);
      ordered_json nothing = is_chat_ ? ordered_json::object() : ordered_json("");
      AppendChunk(index, ChunkChoice(index, std::move(nothing), nullptr, finish_reason), events);
      return;
    }
    std::string shown = echo_ ? PromptOfChoice(index).text : "";
    if (!hides_output_) shown += completed.text();
    ordered_json logprobs = MakeLogprobs(index, completed.logprobs(), /*is_first=*/true);
    ordered_json json;
    if (is_chat_) {
      json["message"] = MakeMessage(completed, uses_functions_);
    } else {
      json["text"] = shown;
    }
    json["logprobs"] = std::move(logprobs);
    json["finish_reason"] = finish_reason;
    AddIds(index, completed.token_ids(), /*is_first=*/true, &json);
    choice.mean_logprob = MeanLogprob(completed.logprobs());
    choice.json = JsonText(json);
    buffered_bytes_ += choice.json.size();
  }

  ordered_json Envelope(const char* object) const {
    return {{"id", head_.id},
            {"object", object},
            {"created", head_.created},
            {"model", head_.model},
            {"system_fingerprint", head_.system_fingerprint}};
  }

  ordered_json Usage() const {
    std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
    for (const Prompt& prompt : prompts_) {
      prompt_tokens += prompt.tokens;
      cached_tokens += prompt.cached_tokens;
    }
    for (const Choice& choice : choices_) {
      completion_tokens += choice.completion_tokens;
      reasoning_tokens += choice.reasoning_tokens;
    }
    return UsageObject(prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens);
  }

  // Returns the usage of a choice so far, and of its prompt.
  ordered_json UsageOfChoice(std::size_t index) const {
    const Prompt& prompt = PromptOfChoice(index);
    const Choice& choice = choices_[index];
    return UsageObject(prompt.tokens, prompt.cached_tokens, choice.completion_tokens,
                       choice.reasoning_tokens);
  }

  ordered_json UsageObject(std::int64_t prompt_tokens, std::int64_t cached_tokens,
                           std::int64_t completion_tokens, std::int64_t reasoning_tokens) const {
    ordered_json usage = {{"prompt_tokens", prompt_tokens},
                          {"completion_tokens", completion_tokens},
                          {"total_tokens", prompt_tokens + completion_tokens},
                          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
    if (is_chat_) usage["completion_tokens_details"] = {{"reasoning_tokens", reasoning_tokens}};
    return usage;
  }

  // `is_first` is true for the first log-probabilities of a choice. The log-probabilities of an
  // echoed prompt are placed before them.
  ordered_json MakeLogprobs(std::size_t index, const TokenLogprobs& tokens, bool is_first) {
    if (!with_logprobs_) return nullptr;
    if (is_chat_) return {{"content", ChatLogprobs(tokens)}, {"refusal", nullptr}};
    CompletionLogprobs& lists = choices_[index].logprobs;
    if (is_first && echo_) AddPrompt(PromptOfChoice(index), &lists);
    if (!hides_output_) {
      const std::int64_t echoed = echo_ ? PromptOfChoice(index).characters : 0;
      for (const v1::TokenLogprob& token : tokens) lists.Add(token, echoed + token.text_offset());
    }
    return lists.Take();
  }

  bool EndsInsideCharacter(const google::protobuf::RepeatedField<std::int32_t>& ids) const {
    text::Detokenizer detokenizer = vocabulary_.detokenizer(skips_special_);
    for (const std::int32_t id : ids) detokenizer.Push(id);
    return detokenizer.open_characters() > 0;
  }

  void AddPrompt(const Prompt& prompt, CompletionLogprobs* lists) const {
    PromptOffsetCounter offsets(prompt.text, vocabulary_, prompt.is_decoded, skips_special_);
    const bool has_first = prompt.first_id >= 0;
    lists->AddFirst(has_first ? vocabulary_.bytes(prompt.first_id) : "",
                    has_first ? offsets.Next(prompt.first_id) : 0);
    for (const v1::TokenLogprob& token : prompt.logprobs) {
      lists->Add(token, offsets.Next(token.token_id()));
    }
  }

  // Appends the member prompt_logprobs. The first token has no probability.
  static void AppendPromptLogprobs(const Prompt& prompt, std::string* body) {
    absl::StrAppend(body, ",\"prompt_logprobs\":[null", prompt.logprobs_json, "]");
  }

  // `is_first` is true for the first chunk of a choice of a chat.
  void AppendChunk(std::size_t index, ordered_json choice, std::string* events,
                   bool is_first = false) {
    ordered_json chunk = Envelope(is_chat_ ? "chat.completion.chunk" : "text_completion");
    if (!std::exchange(has_sent_unenforced_, true) && !unenforced_.empty()) {
      chunk["unenforced_keywords"] = unenforced_;
    }
    chunk["choices"] = ordered_json::array({std::move(choice)});
    if (is_first && is_chat_ && with_ids_) chunk["prompt_token_ids"] = PromptOfChoice(index).ids;
    if (include_usage_) chunk["usage"] = continuous_usage_ ? UsageOfChoice(index) : ordered_json();
    absl::StrAppend(events, SseEvent(JsonText(chunk)));
  }

  // Adds the ids of the output to a choice. For a completion, also adds the ids of the prompt if
  // `is_first` is true.
  void AddIds(std::size_t index, const google::protobuf::RepeatedField<std::int32_t>& ids,
              bool is_first, ordered_json* choice) const {
    if (!with_ids_) return;
    if (is_first && !is_chat_) (*choice)["prompt_token_ids"] = PromptOfChoice(index).ids;
    (*choice)["token_ids"] = hides_output_ ? ordered_json::array() : IdList(ids);
  }

  // Returns the indexes of the prompt's choices that the answer contains, best first if best_of is
  // above n.
  std::vector<std::size_t> ReturnedChoices(std::size_t prompt) const {
    std::vector<std::size_t> indexes(choices_per_prompt_);
    std::iota(indexes.begin(), indexes.end(), prompt * choices_per_prompt_);
    if (returned_per_prompt_ == choices_per_prompt_) return indexes;
    std::ranges::stable_sort(indexes, std::greater<>(),
                             [&](std::size_t index) { return choices_[index].mean_logprob; });
    indexes.resize(returned_per_prompt_);
    return indexes;
  }

  // Returns the choice of a chunk. `finish_reason` is null except in the last chunk of the choice.
  ordered_json ChunkChoice(std::size_t index, ordered_json content, ordered_json logprobs,
                           const char* finish_reason) const {
    ordered_json choice = {{"index", index}};
    choice[is_chat_ ? "delta" : "text"] = std::move(content);
    choice["logprobs"] = std::move(logprobs);
    choice["finish_reason"] =
        finish_reason == nullptr ? ordered_json() : ordered_json(finish_reason);
    return choice;
  }

  const Prompt& PromptOfChoice(std::size_t index) const {
    return prompts_[index / choices_per_prompt_];
  }

  const bool is_chat_, stream_, include_usage_, continuous_usage_, echo_, with_logprobs_,
      hides_output_, with_prompt_logprobs_, with_ids_, uses_functions_, has_named_tool_,
      skips_special_;
  const std::size_t choices_per_prompt_, returned_per_prompt_;
  const FieldNames names_;
  OpenAiAnswerHead head_;
  const OpenAiTokens vocabulary_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;
  // Schema keywords that the constraint does not enforce. All prompts have the same keywords.
  ordered_json unenforced_ = ordered_json::array();
  bool has_sent_unenforced_ = false;  // a chunk with these keywords was sent
  // Total size of the choices' `json` and the prompts' `logprobs_json`. Each copy of
  // `logprobs_json` in the body counts.
  std::size_t buffered_bytes_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeOpenAiAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens tokens) {
  return std::make_unique<OpenAiAnswer>(request, std::move(head), std::move(tokens));
}

ordered_json ChatLogprobs(const TokenLogprobs& tokens) {
  ordered_json list = ordered_json::array();
  for (const v1::TokenLogprob& token : tokens) {
    ordered_json entry = ChatToken(token);
    ordered_json best = ordered_json::array();
    for (const v1::TopLogprob& top : token.top()) best.push_back(ChatToken(top));
    entry["top_logprobs"] = std::move(best);
    list.push_back(std::move(entry));
  }
  return list;
}

std::string SseEvent(const std::string& data) {
  return absl::StrCat("data: ", data, "\n\n");
}

}  // namespace quire::server
