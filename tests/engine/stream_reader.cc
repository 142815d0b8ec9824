#include "tests/engine/stream_reader.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "base/utf8.h"

namespace quire::engine {
namespace {

void AddOutput(Reading::Choice& choice, const std::string& text,
               const std::vector<std::int32_t>& token_ids,
               const std::vector<TokenLogprob>& logprobs, std::string* errors) {
  if (FirstInvalidUtf8(text).has_value()) absl::StrAppend(errors, "text is not UTF-8; ");
  choice.text += text;
  choice.token_ids.insert(choice.token_ids.end(), token_ids.begin(), token_ids.end());
  for (const TokenLogprob& logprob : logprobs) {
    choice.logprobs.push_back(logprob.logprob);
    for (const TopToken& top : logprob.top) choice.logprobs.push_back(top.logprob);
  }
}

}  // namespace

void Reading::Add(OutputEvent event) {
  if (auto* event_started = std::get_if<StartedEvent>(&event)) {
    if (got_started) absl::StrAppend(&order_errors, "second started; ");
    got_started = true;
    started = std::move(*event_started);
    return;
  }
  if (!got_started) absl::StrAppend(&order_errors, "event before started; ");
  if (const auto* prompt = std::get_if<PromptLogprobsEvent>(&event)) {
    if (!choices.empty()) absl::StrAppend(&order_errors, "prompt log-probabilities after output; ");
    if (prompt->start_position != prompt_positions + 1) absl::StrAppend(&order_errors, "gap; ");
    prompt_positions += static_cast<std::int32_t>(prompt->tokens.size());
    for (const TokenLogprob& token : prompt->tokens) {
      prompt_bytes += token.bytes;
      prompt_logprobs.push_back(token.logprob);
    }
  } else if (const auto* delta = std::get_if<DeltaEvent>(&event)) {
    ++num_deltas;
    Choice& choice = choices[delta->index];
    if (choice.completed) absl::StrAppend(&order_errors, "delta after completed; ");
    AddOutput(choice, delta->text, delta->token_ids, delta->logprobs, &order_errors);
  } else if (const auto* completed = std::get_if<CompletedEvent>(&event)) {
    Choice& choice = choices[completed->index];
    if (choice.completed) absl::StrAppend(&order_errors, "second completed; ");
    choice.completed = true;
    AddOutput(choice, completed->text, completed->token_ids, completed->logprobs, &order_errors);
    choice.finish = completed->finish_reason;
    choice.stop_text = completed->stop_text.value_or("");
    choice.usage = completed->usage;
  }
}

Reading ReadAll(TokenStream& stream) {
  Reading reading;
  Mutex mutex;
  CondVar ready;
  bool is_ready = false;
  stream.SetReadyCallback([&] {
    MutexLock lock(&mutex);
    is_ready = true;
    ready.NotifyOne();
  });
  while (true) {
    while (std::optional<OutputEvent> event = stream.Take()) reading.Add(*std::move(event));
    if (stream.finished()) break;
    MutexLock lock(&mutex);
    while (!is_ready) ready.Wait(&mutex);
    is_ready = false;
  }
  stream.SetReadyCallback(nullptr);
  reading.status = stream.status();
  reading.usage = stream.usage();
  return reading;
}

double SumOfFamily(const std::string& exposition, const std::string& family,
                   absl::string_view label) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(exposition, '\n')) {
    const std::size_t end = line.find_first_of(" {");
    if (end == absl::string_view::npos || line.substr(0, end) != family) continue;
    if (!absl::StrContains(line, label)) continue;
    double value = 0;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

}  // namespace quire::engine
