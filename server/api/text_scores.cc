#include "server/api/text_scores.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/api/status_mapping.h"
#include "text/chat/chat_template.h"

namespace quire::server {
namespace {

text::ChatInput MakeChat(const TextPair& pair) {
  return {.messages = {{.role = "query", .content = std::string(pair.query)},
                       {.role = "document", .content = std::string(pair.document)}}};
}

// Adds the two continuations of one prompt. The second one reuses the pages of the first.
void AddYesNo(const ServedModel& served, const TextPair& pair, std::vector<EvaluationItem>* items) {
  engine::ScorePrompt prompt;
  prompt.context_chat =
      engine::ChatPrompt{.chat = MakeChat(pair), .templates = served.translator.options()->chat};
  const YesNoTokens& tokens = *served.description.yes_no;
  const std::size_t first = items->size();
  for (const std::int32_t token : {tokens.yes, tokens.no}) {
    prompt.continuation_ids = {token};
    EvaluationItem& item = items->emplace_back();
    item.request.task = engine::Task::kScore;
    item.request.output.prompt_logprobs = 0;
    item.request.prompt = prompt;
  }
  EvaluationItem& yes = (*items)[first];
  yes.request.output.echo_prompt = yes.request.output.token_ids = true;
  yes.request.output.text = false;
  EvaluationItem& no = items->back();
  no.predecessor = first;
  no.copies_context = true;
  std::get<engine::ScorePrompt>(no.request.prompt).context_chat.reset();
}

void AddLabelPair(const ServedModel& served, const TextPair& pair,
                  std::vector<EvaluationItem>* items) {
  const auto options = served.translator.options();
  EvaluationItem& item = items->emplace_back();
  item.request.task = engine::Task::kEmbed;
  item.request.pooling = engine::Pooling::kLast;
  if (options->chat != nullptr && options->chat->has_default()) {
    item.request.prompt = engine::ChatPrompt{.chat = MakeChat(pair), .templates = options->chat};
  } else {
    item.request.prompt = engine::ScorePrompt{.context_text = std::string(pair.query),
                                              .context_ids = {},
                                              .continuation_text = std::string(pair.document),
                                              .continuation_ids = {}};
  }
}

absl::Status EmptyText(const std::string& field) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(field, " is empty")),
                    Reason::kPromptMissing, {{"field", field}});
}

}  // namespace

absl::StatusOr<std::vector<EvaluationItem>> ToPairItems(const ServedModel& served,
                                                        const std::vector<TextPair>& pairs) {
  const ModelDescription& model = served.description;
  const bool is_yes_no = model.yes_no.has_value();
  if (!is_yes_no && (!model.classifier || model.classifier->labels.size() != 1)) {
    return FeatureUnsupported(
        "scoring pairs with a model that has neither a one-label head nor a LogitScore module",
        "model");
  }
  std::size_t bytes = 0;
  for (const TextPair& pair : pairs) {
    if (pair.query.empty()) return EmptyText(pair.query_field);
    if (pair.document.empty()) return EmptyText(pair.document_field);
    bytes += pair.query.size() + pair.document.size();
  }
  if (bytes > kMaxPairBytes) {
    const std::string& first = pairs.front().document_field;
    return BadParameter(first.substr(0, first.find('[')),
                        absl::StrCat(bytes, " bytes, counting the query per document"),
                        absl::StrCat("at most ", kMaxPairBytes, " bytes"));
  }
  std::vector<EvaluationItem> items;
  std::size_t num_named = 0;  // number of items whose field is set
  for (const TextPair& pair : pairs) {
    if (is_yes_no) {
      AddYesNo(served, pair, &items);
    } else {
      AddLabelPair(served, pair, &items);
    }
    for (; num_named < items.size(); ++num_named) items[num_named].field = pair.document_field;
  }
  return items;
}

std::vector<double> ComputePairScores(const ServedModel& served,
                                      const std::vector<EvaluationResult>& results) {
  std::vector<double> scores;
  if (!served.description.yes_no) {
    for (const EvaluationResult& result : results) {
      scores.push_back(
          ComputeLabelProbabilities(*served.description.classifier, result.pooled).front());
    }
    return scores;
  }
  for (std::size_t i = 0; i + 1 < results.size(); i += 2) {
    const double yes = results[i].logprobs.front().logprob;
    const double no = results[i + 1].logprobs.front().logprob;
    scores.push_back(1 / (1 + std::exp(no - yes)));
  }
  return scores;
}

absl::Status CheckIsClassifier(const ServedModel& served) {
  if (served.description.classifier) return absl::OkStatus();
  return FeatureUnsupported("classification with a model without labels", "model");
}

std::vector<double> ComputeLabelProbabilities(const Classifier& classifier,
                                              const std::vector<float>& hidden) {
  const std::vector<float>& weights = *classifier.weights;
  std::vector<double> values(classifier.labels.size());
  for (std::size_t label = 0; label < values.size(); ++label) {
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      values[label] += double{weights[label * hidden.size() + i]} * hidden[i];
    }
  }
  if (values.size() == 1) return {1 / (1 + std::exp(-values.front()))};
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - largest);
  for (double& value : values) value /= sum;
  return values;
}

engine::Usage SumUsage(const std::vector<EvaluationResult>& results) {
  engine::Usage sum;
  for (const EvaluationResult& result : results) {
    sum.prompt_tokens += result.usage.prompt_tokens;
    sum.cached_tokens += result.usage.cached_tokens;
  }
  return sum;
}

}  // namespace quire::server
