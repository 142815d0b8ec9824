#include "server/openai/openai_answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

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

}  // namespace

struct OpenAiAnswer::Impl {
  Impl(const OpenAiRequest& request, OpenAiAnswerHead the_head, OpenAiTokens the_tokens)
      : is_chat(request.is_chat),
        stream(request.stream),
        include_usage(request.include_usage),
        continuous_usage(request.continuous_usage),
        echo(request.echo),
        with_logprobs(request.logprobs),
        hides_output(request.hides_output),
        with_prompt_logprobs(request.prompt_logprobs),
        with_ids(request.token_ids),
        uses_functions(request.uses_functions),
        has_named_tool(!request.prompts.empty() &&
                       request.prompts[0].chat().tool_choice() == v1::TOOL_CHOICE_NAMED),
        skips_special(request.prompts.empty() ||
                      !request.prompts[0].output().has_skip_special_tokens() ||
                      request.prompts[0].output().skip_special_tokens()),
        choices_per_prompt(static_cast<std::size_t>(request.choices)),
        returned_per_prompt(static_cast<std::size_t>(request.returned_choices)),
        names(request.names),
        head(std::move(the_head)),
        vocabulary(std::move(the_tokens)),
        prompts(request.prompts.size()),
        choices(prompts.size() * choices_per_prompt) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      prompts[i].is_decoded = request.prompts[i].has_token_ids();
    }
  }

  void Start(std::size_t prompt, const v1::Started& started, std::string* events);
  void AddPromptLogprobs(const TokenLogprobs& tokens, Prompt* prompt);
  void AddDelta(std::size_t index, const v1::Delta& delta, std::string* events);
  void Complete(std::size_t index, const v1::Completed& completed, std::string* events);

  ordered_json Envelope(const char* object) const {
    return {{"id", head.id},
            {"object", object},
            {"created", head.created},
            {"model", head.model},
            {"system_fingerprint", head.system_fingerprint}};
  }
  ordered_json Usage() const;
  // Returns the usage of a choice so far, and of its prompt.
  ordered_json UsageOfChoice(std::size_t index) const;
  ordered_json UsageObject(std::int64_t prompt_tokens, std::int64_t cached_tokens,
                           std::int64_t completion_tokens, std::int64_t reasoning_tokens) const;
  ordered_json MakeLogprobs(std::size_t index, const TokenLogprobs& tokens, bool is_first);
  bool EndsInsideCharacter(const google::protobuf::RepeatedField<std::int32_t>& ids) const;
  void AddPrompt(const Prompt& prompt, CompletionLogprobs* lists) const;
  // Appends the member prompt_logprobs. The first token has no probability.
  static void AppendPromptLogprobs(const Prompt& prompt, std::string* body) {
    absl::StrAppend(body, ",\"prompt_logprobs\":[null", prompt.logprobs_json, "]");
  }
  // `is_first` is true for the first chunk of a choice of a chat.
  void AppendChunk(std::size_t index, ordered_json choice, std::string* events,
                   bool is_first = false);
  // Adds the ids of the output to a choice. For a completion, also adds the ids of the prompt if
  // `is_first` is true.
  void AddIds(std::size_t index, const google::protobuf::RepeatedField<std::int32_t>& ids,
              bool is_first, ordered_json* choice) const;
  // Returns the indexes of the prompt's choices that the answer contains, best first if best_of is
  // above n.
  std::vector<std::size_t> ReturnedChoices(std::size_t prompt) const;
  // Returns the choice of a chunk. `finish_reason` is null except in the last chunk of the choice.
  ordered_json ChunkChoice(std::size_t index, ordered_json content, ordered_json logprobs,
                           const char* finish_reason) const;
  const Prompt& PromptOfChoice(std::size_t index) const {
    return prompts[index / choices_per_prompt];
  }

  const bool is_chat, stream, include_usage, continuous_usage, echo, with_logprobs, hides_output,
      with_prompt_logprobs, with_ids, uses_functions, has_named_tool, skips_special;
  const std::size_t choices_per_prompt, returned_per_prompt;
  const FieldNames names;
  OpenAiAnswerHead head;
  const OpenAiTokens vocabulary;
  std::vector<Prompt> prompts;
  std::vector<Choice> choices;
  // Schema keywords that the constraint does not enforce. All prompts have the same keywords.
  ordered_json unenforced = ordered_json::array();
  bool has_sent_unenforced = false;  // a chunk with these keywords was sent
  // Total size of the choices' `json` and the prompts' `logprobs_json`. Each copy of
  // `logprobs_json` in the body counts.
  std::size_t buffered_bytes = 0;
};

ordered_json OpenAiAnswer::Impl::Usage() const {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  for (const Prompt& prompt : prompts) {
    prompt_tokens += prompt.tokens;
    cached_tokens += prompt.cached_tokens;
  }
  for (const Choice& choice : choices) {
    completion_tokens += choice.completion_tokens;
    reasoning_tokens += choice.reasoning_tokens;
  }
  return UsageObject(prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens);
}

ordered_json OpenAiAnswer::Impl::UsageOfChoice(std::size_t index) const {
  const Prompt& prompt = PromptOfChoice(index);
  const Choice& choice = choices[index];
  return UsageObject(prompt.tokens, prompt.cached_tokens, choice.completion_tokens,
                     choice.reasoning_tokens);
}

ordered_json OpenAiAnswer::Impl::UsageObject(std::int64_t prompt_tokens, std::int64_t cached_tokens,
                                             std::int64_t completion_tokens,
                                             std::int64_t reasoning_tokens) const {
  ordered_json usage = {{"prompt_tokens", prompt_tokens},
                        {"completion_tokens", completion_tokens},
                        {"total_tokens", prompt_tokens + completion_tokens},
                        {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
  if (is_chat) usage["completion_tokens_details"] = {{"reasoning_tokens", reasoning_tokens}};
  return usage;
}

ordered_json OpenAiAnswer::Impl::ChunkChoice(std::size_t index, ordered_json content,
                                             ordered_json logprobs,
                                             const char* finish_reason) const {
  ordered_json choice = {{"index", index}};
  choice[is_chat ? "delta" : "text"] = std::move(content);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = finish_reason == nullptr ? ordered_json() : ordered_json(finish_reason);
  return choice;
}

void OpenAiAnswer::Impl::AppendChunk(std::size_t index, ordered_json choice, std::string* events,
                                     bool is_first) {
  ordered_json chunk = Envelope(is_chat ? "chat.completion.chunk" : "text_completion");
  if (!std::exchange(has_sent_unenforced, true) && !unenforced.empty()) {
    chunk["unenforced_keywords"] = unenforced;
  }
  chunk["choices"] = ordered_json::array({std::move(choice)});
  if (is_first && is_chat && with_ids) chunk["prompt_token_ids"] = PromptOfChoice(index).ids;
  if (include_usage) chunk["usage"] = continuous_usage ? UsageOfChoice(index) : ordered_json();
  absl::StrAppend(events, SseEvent(JsonText(chunk)));
}

void OpenAiAnswer::Impl::Start(std::size_t prompt, const v1::Started& started,
                               std::string* events) {
  Prompt& state = prompts[prompt];
  state.tokens = started.prompt_tokens();
  state.cached_tokens = started.cached_tokens();
  state.text = started.prompt_text();
  // If the prompt ends within a character, the output usually completes the character. Hidden
  // output cannot complete it, so a replacement character is added here.
  if (hides_output && state.is_decoded && EndsInsideCharacter(started.prompt_token_ids())) {
    absl::StrAppend(&state.text, kReplacementCharacter);
  }
  state.characters = CountUtf8Characters(state.text);
  if (echo && with_logprobs && started.prompt_token_ids_size() > 0) {
    state.first_id = started.prompt_token_ids(0);
  }
  if (with_ids) state.ids = IdList(started.prompt_token_ids());
  if (unenforced.empty()) {
    for (const std::string& keyword : started.unenforced_keywords()) {
      unenforced.push_back(RenameKeyword(keyword, names));
    }
  }
  if (!is_chat || !stream) return;
  for (std::size_t c = 0; c < choices_per_prompt; ++c) {
    const ordered_json role = {{"role", "assistant"}, {"content", ""}};
    const std::size_t index = prompt * choices_per_prompt + c;
    AppendChunk(index, ChunkChoice(index, role, nullptr, nullptr), events, /*is_first=*/true);
  }
}

// Converts the log-probabilities to JSON at once, so that buffered_bytes counts them before memory
// is exhausted. The body of a chat contains the list once. The body of a completion contains the
// list once per choice.
void OpenAiAnswer::Impl::AddPromptLogprobs(const TokenLogprobs& tokens, Prompt* prompt) {
  if (echo) prompt->logprobs.insert(prompt->logprobs.end(), tokens.begin(), tokens.end());
  if (!with_prompt_logprobs) return;
  const std::size_t before = prompt->logprobs_json.size();
  for (const v1::TokenLogprob& token : tokens) {
    absl::StrAppend(&prompt->logprobs_json, ",", PromptLogprob(token));
  }
  const std::size_t copies = is_chat ? 1 : returned_per_prompt;
  buffered_bytes += copies * (prompt->logprobs_json.size() - before);
}

bool OpenAiAnswer::Impl::EndsInsideCharacter(
    const google::protobuf::RepeatedField<std::int32_t>& ids) const {
  text::Detokenizer detokenizer = vocabulary.detokenizer(skips_special);
  for (const std::int32_t id : ids) detokenizer.Push(id);
  return detokenizer.open_characters() > 0;
}

void OpenAiAnswer::Impl::AddPrompt(const Prompt& prompt, CompletionLogprobs* lists) const {
  PromptOffsetCounter offsets(prompt.text, vocabulary, prompt.is_decoded, skips_special);
  const bool has_first = prompt.first_id >= 0;
  lists->AddFirst(has_first ? vocabulary.bytes(prompt.first_id) : "",
                  has_first ? offsets.Next(prompt.first_id) : 0);
  for (const v1::TokenLogprob& token : prompt.logprobs) {
    lists->Add(token, offsets.Next(token.token_id()));
  }
}

// `is_first` is true for the first log-probabilities of a choice. The log-probabilities of an
// echoed prompt are placed before them.
ordered_json OpenAiAnswer::Impl::MakeLogprobs(std::size_t index, const TokenLogprobs& tokens,
                                              bool is_first) {
  if (!with_logprobs) return nullptr;
  if (is_chat) return {{"content", ChatLogprobs(tokens)}, {"refusal", nullptr}};
  CompletionLogprobs& lists = choices[index].logprobs;
  if (is_first && echo) AddPrompt(PromptOfChoice(index), &lists);
  if (!hides_output) {
    const std::int64_t echoed = echo ? PromptOfChoice(index).characters : 0;
    for (const v1::TokenLogprob& token : tokens) lists.Add(token, echoed + token.text_offset());
  }
  return lists.Take();
}

void OpenAiAnswer::Impl::AddIds(std::size_t index,
                                const google::protobuf::RepeatedField<std::int32_t>& ids,
                                bool is_first, ordered_json* choice) const {
  if (!with_ids) return;
  if (is_first && !is_chat) (*choice)["prompt_token_ids"] = PromptOfChoice(index).ids;
  (*choice)["token_ids"] = hides_output ? ordered_json::array() : IdList(ids);
}

std::vector<std::size_t> OpenAiAnswer::Impl::ReturnedChoices(std::size_t prompt) const {
  std::vector<std::size_t> indexes(choices_per_prompt);
  std::iota(indexes.begin(), indexes.end(), prompt * choices_per_prompt);
  if (returned_per_prompt == choices_per_prompt) return indexes;
  std::ranges::stable_sort(indexes, std::greater<>(),
                           [&](std::size_t index) { return choices[index].mean_logprob; });
  indexes.resize(returned_per_prompt);
  return indexes;
}

void OpenAiAnswer::Impl::AddDelta(std::size_t index, const v1::Delta& delta, std::string* events) {
  const bool is_first = !std::exchange(choices[index].is_open, true);
  if (delta.has_usage() && !hides_output) {
    choices[index].completion_tokens = delta.usage().completion_tokens();
    choices[index].reasoning_tokens = delta.usage().reasoning_tokens();
  }
  std::string shown = is_first && echo ? PromptOfChoice(index).text : "";
  if (!hides_output) shown += delta.text();
  ordered_json logprobs = MakeLogprobs(index, delta.logprobs(), is_first);
  const bool is_parsed = !delta.reasoning_text().empty() || !delta.tool_calls().empty();
  if (!delta.tool_calls().empty()) choices[index].has_calls = true;
  const bool has_ids = with_ids && (is_first || !delta.token_ids().empty());
  if (shown.empty() && !is_parsed && logprobs.is_null() && !has_ids) return;
  ordered_json content = is_chat ? MakeDelta(delta, shown, uses_functions) : ordered_json(shown);
  ordered_json choice = ChunkChoice(index, std::move(content), std::move(logprobs), nullptr);
  AddIds(index, delta.token_ids(), is_first, &choice);
  AppendChunk(index, std::move(choice), events);
}

void OpenAiAnswer::Impl::Complete(std::size_t index, const v1::Completed& completed,
                                  std::string* events) {
  Choice& choice = choices[index];
  choice.completion_tokens = hides_output ? 0 : completed.usage().completion_tokens();
  choice.reasoning_tokens = completed.usage().reasoning_tokens();
  const bool has_calls = choice.has_calls || !completed.tool_calls().empty();
  const char* const finish_reason =
      hides_output ? "length"
                   : FinishReasonName(completed.finish_reason(), has_calls && !has_named_tool,
                                      uses_functions);
  if (stream) {
    // If the choice has no output, the prompt has not been sent yet.
    if (!choice.is_open && (echo || with_ids)) AddDelta(index, v1::Delta(), events);
    ordered_json nothing = is_chat ? ordered_json::object() : ordered_json("");
    AppendChunk(index, ChunkChoice(index, std::move(nothing), nullptr, finish_reason), events);
    return;
  }
  std::string shown = echo ? PromptOfChoice(index).text : "";
  if (!hides_output) shown += completed.text();
  ordered_json logprobs = MakeLogprobs(index, completed.logprobs(), /*is_first=*/true);
  ordered_json json;
  if (is_chat) {
    json["message"] = MakeMessage(completed, uses_functions);
  } else {
    json["text"] = shown;
  }
  json["logprobs"] = std::move(logprobs);
  json["finish_reason"] = finish_reason;
  AddIds(index, completed.token_ids(), /*is_first=*/true, &json);
  choice.mean_logprob = MeanLogprob(completed.logprobs());
  choice.json = JsonText(json);
  buffered_bytes += choice.json.size();
}

OpenAiAnswer::OpenAiAnswer(const OpenAiRequest& request, OpenAiAnswerHead head, OpenAiTokens tokens)
    : impl_(std::make_unique<Impl>(request, std::move(head), std::move(tokens))) {}

OpenAiAnswer::~OpenAiAnswer() = default;

void OpenAiAnswer::Take(std::size_t prompt, const v1::GenerateResponse& message,
                        std::string* events) {
  const std::size_t first = prompt * impl_->choices_per_prompt;
  switch (message.event_case()) {
    case v1::GenerateResponse::kStarted:
      return impl_->Start(prompt, message.started(), events);
    case v1::GenerateResponse::kPromptLogprobs: {
      return impl_->AddPromptLogprobs(message.prompt_logprobs().tokens(), &impl_->prompts[prompt]);
    }
    case v1::GenerateResponse::kDelta: {
      const v1::Delta& delta = message.delta();
      return impl_->AddDelta(first + static_cast<std::size_t>(delta.index()), delta, events);
    }
    case v1::GenerateResponse::kCompleted: {
      const v1::Completed& completed = message.completed();
      impl_->Complete(first + static_cast<std::size_t>(completed.index()), completed, events);
      Prompt& state = impl_->prompts[prompt];
      if (++state.num_completed == impl_->choices_per_prompt) state.logprobs = {};
      return;
    }
    default:
      return;
  }
}

void OpenAiAnswer::AppendEnd(std::string* events) {
  if (impl_->include_usage) {
    ordered_json chunk =
        impl_->Envelope(impl_->is_chat ? "chat.completion.chunk" : "text_completion");
    chunk["choices"] = ordered_json::array();
    chunk["usage"] = impl_->Usage();
    absl::StrAppend(events, SseEvent(JsonText(chunk)));
  }
  absl::StrAppend(events, SseEvent("[DONE]"));
}

// Omits [DONE], so that the client does not mistake the answer for a complete one.
void OpenAiAnswer::AppendError(const std::string& error_body, std::string* events) {
  absl::StrAppend(events, SseEvent(error_body));
}

std::size_t OpenAiAnswer::buffered_bytes() const {
  return impl_->buffered_bytes;
}

// Concatenates text instead of JSON values, since choices may be large.
std::string OpenAiAnswer::TakeBody() {
  std::string body =
      JsonText(impl_->Envelope(impl_->is_chat ? "chat.completion" : "text_completion"));
  body.pop_back();
  if (!impl_->unenforced.empty()) {
    absl::StrAppend(&body, ",\"unenforced_keywords\":", JsonText(impl_->unenforced));
  }
  body.reserve(body.size() + impl_->buffered_bytes + impl_->choices.size() + 256);
  body += ",\"choices\":[";
  std::size_t returned = 0;
  for (std::size_t prompt = 0; prompt < impl_->prompts.size(); ++prompt) {
    for (const std::size_t index : impl_->ReturnedChoices(prompt)) {
      const std::string json = std::exchange(impl_->choices[index].json, "");
      absl::StrAppend(&body, "{\"index\":", returned++, ",", absl::string_view(json).substr(1));
      if (!impl_->is_chat && impl_->with_prompt_logprobs) {
        body.pop_back();
        impl_->AppendPromptLogprobs(impl_->prompts[prompt], &body);
        body += '}';
      }
      body += ',';
    }
  }
  body.back() = ']';
  if (impl_->is_chat && impl_->with_prompt_logprobs) {
    impl_->AppendPromptLogprobs(impl_->prompts.front(), &body);
  }
  if (impl_->is_chat && impl_->with_ids) {
    absl::StrAppend(&body, ",\"prompt_token_ids\":", JsonText(impl_->prompts.front().ids));
  }
  absl::StrAppend(&body, ",\"usage\":", JsonText(impl_->Usage()), "}");
  return body;
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
