#include "server/api/evaluation_translator.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "quire/v1/text.pb.h"
#include "server/api/response_translator.h"
#include "server/api/status_mapping.h"

namespace quire::server {
namespace {

constexpr int kMaxEmbedInputs = 2048;
constexpr int kMaxScoreItems = 256;

absl::Status CheckCount(absl::string_view field, int count, int most) {
  if (count == 0) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(field, " is empty")),
                      Reason::kPromptMissing, {{"field", std::string(field)}});
  }
  if (count <= most) return absl::OkStatus();
  return BadParameter(field, absl::StrCat(count, " entries long"),
                      absl::StrCat("1 to ", most, " entries"));
}

absl::Status MissingPrompt(absl::string_view field, int index, absl::string_view what) {
  const std::string path = absl::StrCat(field, "[", index, "]");
  return WithReason(absl::InvalidArgumentError(absl::StrCat(path, " ", what)),
                    Reason::kPromptMissing, {{"field", path}});
}

engine::TokenPrompt ToTokenPrompt(const v1::TokenIds& message) {
  return {message.ids().begin(), message.ids().end()};
}

absl::StatusOr<engine::Pooling> ToPooling(const ServedModel& served, v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
      return served.description.pooling;
    case v1::POOLING_LAST:
      return engine::Pooling::kLast;
    case v1::POOLING_MEAN:
      return engine::Pooling::kMean;
    case v1::POOLING_CLS:
      return engine::Pooling::kCls;
    default:
      return BadParameter("pooling", absl::StrCat(static_cast<int>(pooling)), "a value of Pooling");
  }
}

// Returns a key that is equal for equal contexts, or "" if the context is too short to fill a page.
std::string MakeContextKey(const ServedModel& served, const v1::ScoreItem& item) {
  const auto page = static_cast<std::size_t>(served.description.kv_page_size);
  if (item.has_context_text() && item.context_text().size() >= page) {
    return absl::StrCat("t", item.context_text());
  }
  if (!item.has_context_ids()) return "";
  const auto& ids = item.context_ids().ids();
  if (static_cast<std::size_t>(ids.size()) < page) return "";
  std::string key = "i";
  key.append(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::size_t>(ids.size()) * sizeof(std::int32_t));
  return key;
}

absl::StatusOr<engine::ScorePrompt> ToScorePrompt(const v1::ScoreItem& item, int index) {
  engine::ScorePrompt prompt;
  if (item.has_context_text()) prompt.context_text = item.context_text();
  if (item.has_context_ids()) prompt.context_ids = ToTokenPrompt(item.context_ids());
  switch (item.continuation_case()) {
    case v1::ScoreItem::kText:
      prompt.continuation_text = item.text();
      break;
    case v1::ScoreItem::kTokenIds:
      prompt.continuation_ids = ToTokenPrompt(item.token_ids());
      break;
    default:
      return MissingPrompt("items", index, "has no continuation; set one of text and token_ids");
  }
  if (prompt.continuation_text.empty() && prompt.continuation_ids.empty()) {
    return MissingPrompt("items", index, "has an empty continuation");
  }
  return prompt;
}

void AddUsage(const engine::Usage& usage, v1::Usage* sum) {
  sum->set_prompt_tokens(sum->prompt_tokens() + usage.prompt_tokens);
  sum->set_cached_tokens(sum->cached_tokens() + usage.cached_tokens);
}

// Scales the vector to length 1. Sums the squares in double, in index order.
absl::Status Normalize(std::vector<float>* values) {
  double squares = 0;
  for (const float value : *values) squares += double{value} * value;
  if (squares == 0) {
    return WithReason(absl::DataLossError("the vector is zero and cannot be normalized"),
                      Reason::kNonFiniteLogits);
  }
  const double length = std::sqrt(squares);
  for (float& value : *values) value = static_cast<float>(value / length);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<EvaluationItem>> ToEvaluationItems(const ServedModel& served,
                                                              const v1::EmbedRequest& message) {
  QUIRE_RETURN_IF_ERROR(served.translator.CheckModel(message.model()));
  if (served.description.embedding_width == 0) {
    return FeatureUnsupported("embedding on this device", "");
  }
  QUIRE_RETURN_IF_ERROR(CheckCount("inputs", message.inputs_size(), kMaxEmbedInputs));
  QUIRE_ASSIGN_OR_RETURN(const engine::Pooling pooling, ToPooling(served, message.pooling()));
  const std::int32_t width = served.description.embedding_width;
  if (message.has_dimensions() && (message.dimensions() < 1 || message.dimensions() > width)) {
    return BadParameter("dimensions", absl::StrCat(message.dimensions()),
                        absl::StrCat("1 to ", width));
  }
  std::vector<EvaluationItem> items(static_cast<std::size_t>(message.inputs_size()));
  for (int i = 0; i < message.inputs_size(); ++i) {
    const v1::EmbedInput& input = message.inputs(i);
    EvaluationItem& item = items[static_cast<std::size_t>(i)];
    item.field = absl::StrCat("inputs[", i, "]");
    engine::Request& request = item.request;
    request.task = engine::Task::kEmbed;
    request.pooling = pooling;
    request.truncate_prompt = message.truncate();
    if (input.has_text() && !input.text().empty()) {
      request.prompt = engine::TextPrompt{.text = input.text()};
    } else if (input.has_token_ids() && !input.token_ids().ids().empty()) {
      request.prompt = ToTokenPrompt(input.token_ids());
    } else {
      return MissingPrompt("inputs", i, "is empty; set one of text and token_ids");
    }
  }
  return items;
}

absl::Status ToProto(const ServedModel& served, const v1::EmbedRequest& message,
                     std::vector<EvaluationResult> results, v1::EmbedResponse* response) {
  const bool normalizes =
      message.has_normalize() ? message.normalize() : served.description.normalizes_embeddings;
  for (EvaluationResult& result : results) {
    if (message.has_dimensions()) {
      result.pooled.resize(static_cast<std::size_t>(message.dimensions()));
    }
    if (normalizes) QUIRE_RETURN_IF_ERROR(Normalize(&result.pooled));
    v1::Embedding* embedding = response->add_embeddings();
    embedding->mutable_values()->Assign(result.pooled.begin(), result.pooled.end());
    embedding->set_prompt_tokens(result.usage.prompt_tokens);
    AddUsage(result.usage, response->mutable_usage());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EvaluationItem>> ToEvaluationItems(const ServedModel& served,
                                                              const v1::ScoreRequest& message) {
  QUIRE_RETURN_IF_ERROR(served.translator.CheckModel(message.model()));
  QUIRE_RETURN_IF_ERROR(CheckCount("items", message.items_size(), kMaxScoreItems));
  std::vector<EvaluationItem> items(static_cast<std::size_t>(message.items_size()));
  absl::flat_hash_map<std::string, std::size_t> first_items;
  for (int i = 0; i < message.items_size(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    items[index].field = absl::StrCat("items[", i, "]");
    engine::Request& request = items[index].request;
    request.task = engine::Task::kScore;
    request.output.prompt_logprobs = 0;
    QUIRE_ASSIGN_OR_RETURN(request.prompt, ToScorePrompt(message.items(i), i));
    std::string key = MakeContextKey(served, message.items(i));
    if (key.empty()) continue;
    const auto [first, is_new] = first_items.try_emplace(std::move(key), index);
    if (!is_new) items[index].predecessor = first->second;
  }
  return items;
}

absl::Status ToProto(const ServedModel&, const v1::ScoreRequest& message,
                     std::vector<EvaluationResult> results, v1::ScoreResponse* response) {
  for (EvaluationResult& result : results) {
    v1::ScoreResult* score = response->add_results();
    double total = 0;
    bool is_greedy = true;
    for (const engine::TokenLogprob& token : result.logprobs) {
      total += token.logprob;
      is_greedy = is_greedy && token.rank == 1;
    }
    score->set_total_logprob(total);
    score->set_token_count(static_cast<std::int32_t>(result.logprobs.size()));
    score->set_is_greedy(is_greedy);
    if (message.return_token_logprobs()) {
      AddLogprobs(std::move(result.logprobs), score->mutable_tokens());
    }
    AddUsage(result.usage, response->mutable_usage());
  }
  return absl::OkStatus();
}

}  // namespace quire::server
