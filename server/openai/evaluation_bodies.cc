#include "server/openai/evaluation_bodies.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "quire/v1/text.pb.h"
#include "server/api/evaluation_translator.h"
#include "server/api/status_mapping.h"
#include "server/api/text_scores.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;
using nlohmann::ordered_json;

constexpr std::size_t kMaxTexts = 2048;

absl::Status EmptyField(const JsonValue& value) {
  return WithReason(value.Error("is empty"), Reason::kPromptMissing, {{"field", value.path()}});
}

absl::Status CheckLength(const JsonValue& list) {
  if (list.size() > 0 && list.size() <= kMaxTexts) return absl::OkStatus();
  return BadField(list,
                  absl::StrCat("has ", list.size(), " entries, it must have 1 to ", kMaxTexts));
}

absl::Status ReadModel(const JsonFields& body, const ServedModel& served) {
  std::string model;
  QUIRE_RETURN_IF_ERROR(body.Text("model", &model));
  return served.translator.CheckModel(model);
}

ordered_json UsageObject(std::int32_t tokens) {
  return {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
}

// Reads a text or a list of token ids.
absl::Status ReadInput(const JsonValue& value, v1::EmbedInput* input,
                       std::vector<std::string>* fields) {
  fields->push_back(value.path());
  if (value.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(*input->mutable_text(), value.AsString());
    if (!input->text().empty()) return absl::OkStatus();
    return EmptyField(value);
  }
  if (!value.is_array()) return BadField(value, "must be a string or a list of token ids");
  if (value.size() == 0) return EmptyField(value);
  return ReadTokenIds(value, /*min=*/0,
                      [&](std::int32_t id) { input->mutable_token_ids()->add_ids(id); });
}

// Appends the path of each input to `fields`.
absl::Status ReadInputs(const JsonFields& body, v1::EmbedRequest* request,
                        std::vector<std::string>* fields) {
  const auto input = body.Find("input");
  if (!input) return MissingInput("input");
  const bool is_list = input->is_array() && (input->size() == 0 || !input->At(0).is_number());
  if (!is_list) return ReadInput(*input, request->add_inputs(), fields);
  QUIRE_RETURN_IF_ERROR(CheckLength(*input));
  for (std::size_t i = 0; i < input->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ReadInput(input->At(i), request->add_inputs(), fields));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EvaluationItem>> ReadItems(const ServedModel& served,
                                                      const JsonFields& body,
                                                      v1::EmbedRequest* request) {
  std::vector<std::string> fields;
  std::int32_t kept = -1;
  QUIRE_RETURN_IF_ERROR(body.Int32("truncate_prompt_tokens", &kept));
  if (kept != -1) {
    return BadField(*body.Find("truncate_prompt_tokens"),
                    absl::StrCat("is ", kept,
                                 ", it must be -1, which keeps what fits into the "
                                 "context of the model"));
  }
  request->set_truncate(body.Find("truncate_prompt_tokens").has_value());
  QUIRE_RETURN_IF_ERROR(ReadInputs(body, request, &fields));
  QUIRE_ASSIGN_OR_RETURN(std::vector<EvaluationItem> items, ToEvaluationItems(served, *request));
  for (std::size_t i = 0; i < items.size(); ++i) items[i].field = std::move(fields[i]);
  return items;
}

// Encodes the values as little-endian f32, which numpy.frombuffer reads.
std::string EncodeBase64(const google::protobuf::RepeatedField<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(values.data()),
                        static_cast<std::size_t>(values.size()) * sizeof(float)));
}

absl::StatusOr<std::string> WriteEmbeddings(const ServedModel& served,
                                            const v1::EmbedRequest& request, bool as_base64,
                                            std::vector<EvaluationResult> results) {
  v1::EmbedResponse response;
  QUIRE_RETURN_IF_ERROR(ToProto(served, request, std::move(results), &response));
  ordered_json data = ordered_json::array();
  for (int i = 0; i < response.embeddings_size(); ++i) {
    const auto& values = response.embeddings(i).values();
    ordered_json vector = as_base64
                              ? ordered_json(EncodeBase64(values))
                              : ordered_json(std::vector<float>(values.begin(), values.end()));
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(vector)}});
  }
  return JsonText(ordered_json{{"object", "list"},
                               {"data", std::move(data)},
                               {"model", served.id()},
                               {"usage", UsageObject(response.usage().prompt_tokens())}});
}

absl::StatusOr<EvaluationPlan> ReadEmbeddings(const EvaluationBodyContext& context,
                                              absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, RequestFields(), kEmbeddingBody, context.limits));
  const JsonFields body(document.root());
  v1::EmbedRequest request;
  QUIRE_RETURN_IF_ERROR(body.Text("model", request.mutable_model()));
  QUIRE_RETURN_IF_ERROR(
      body.Int32("dimensions", [&](std::int32_t v) { request.set_dimensions(v); }));
  QUIRE_RETURN_IF_ERROR(body.Bool("normalize", [&](bool v) { request.set_normalize(v); }));
  std::string format = "float";
  QUIRE_RETURN_IF_ERROR(body.Text("encoding_format", &format));
  if (format != "float" && format != "base64") {
    return BadField(*body.Find("encoding_format"), "must be float or base64");
  }
  EvaluationPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.items, ReadItems(context.served, body, &request));
  request.clear_inputs();
  plan.answer = [&served = context.served, request = std::move(request),
                 as_base64 = format == "base64"](std::vector<EvaluationResult> results) {
    return WriteEmbeddings(served, request, as_base64, std::move(results));
  };
  return plan;
}

// Reads a text, or an object with the member "text" (documents of Jina and Cohere).
absl::StatusOr<std::string> ReadDocument(const JsonValue& value) {
  const bool is_object = value.is_object();
  absl::StatusOr<std::string> text = is_object ? value.GetString("text") : value.AsString();
  if (text.ok()) return text;
  return WithReason(text.status(), Reason::kBadParameter,
                    {{"field", is_object ? value.PathOf("text") : value.path()}});
}

// The texts of a field, and the path of each text.
struct Texts {
  std::string name;
  std::vector<std::string> texts;
  std::vector<std::string> fields;
};

// Reads a field that has several spellings, `names`. Only one of them may be set.
absl::StatusOr<Texts> ReadTexts(const JsonFields& body, std::initializer_list<const char*> names) {
  Texts result;
  std::optional<JsonValue> value;
  for (const char* name : names) {
    const auto member = body.Find(name);
    if (!member) continue;
    if (value) return BadField(*member, absl::StrCat("cannot be combined with ", result.name));
    value = member;
    result.name = name;
  }
  if (!value) return MissingInput(*names.begin());
  const auto add = [&result](const JsonValue& text) -> absl::Status {
    result.fields.push_back(text.path());
    QUIRE_ASSIGN_OR_RETURN(result.texts.emplace_back(), ReadDocument(text));
    return absl::OkStatus();
  };
  if (!value->is_array()) {
    QUIRE_RETURN_IF_ERROR(add(*value));
    return result;
  }
  QUIRE_RETURN_IF_ERROR(CheckLength(*value));
  for (std::size_t i = 0; i < value->size(); ++i) QUIRE_RETURN_IF_ERROR(add(value->At(i)));
  return result;
}

absl::StatusOr<EvaluationPlan> ReadScore(const EvaluationBodyContext& context,
                                         absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, RequestFields(), kScoreBody, context.limits));
  const JsonFields body(document.root());
  const ServedModel& served = context.served;
  QUIRE_RETURN_IF_ERROR(ReadModel(body, served));
  QUIRE_ASSIGN_OR_RETURN(const Texts first, ReadTexts(body, {"text_1", "queries", "data_1"}));
  QUIRE_ASSIGN_OR_RETURN(const Texts second,
                         ReadTexts(body, {"text_2", "documents", "items", "data_2"}));
  const std::size_t count = first.texts.size();
  if (count != 1 && count != second.texts.size()) {
    return BadParameter(
        first.name, absl::StrCat(count, " entries long"),
        absl::StrCat("1 entry or as many as ", second.name, ", which has ", second.texts.size()));
  }
  std::vector<TextPair> pairs;
  for (std::size_t i = 0; i < second.texts.size(); ++i) {
    const std::size_t query = count == 1 ? 0 : i;
    pairs.push_back({.query = first.texts[query],
                     .document = second.texts[i],
                     .query_field = first.fields[query],
                     .document_field = second.fields[i]});
  }
  EvaluationPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.items, ToPairItems(served, pairs));
  plan.answer = [&served, id = context.request_id, created = absl::ToUnixSeconds(context.wall_now)](
                    std::vector<EvaluationResult> results) -> absl::StatusOr<std::string> {
    ordered_json data = ordered_json::array();
    for (const double score : ComputePairScores(served, results)) {
      data.push_back({{"index", data.size()}, {"object", "score"}, {"score", score}});
    }
    return JsonText(ordered_json{{"id", absl::StrCat("score-", id)},
                                 {"object", "list"},
                                 {"created", created},
                                 {"model", served.id()},
                                 {"data", std::move(data)},
                                 {"usage", UsageObject(SumUsage(results).prompt_tokens)}});
  };
  return plan;
}

// Returns the best documents by descending score, at most `max_documents`. Documents with equal
// scores keep their order.
ordered_json RankDocuments(const std::vector<double>& scores, std::size_t max_documents,
                           const std::vector<std::string>& documents) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  if (order.size() > max_documents) order.resize(max_documents);
  ordered_json list = ordered_json::array();
  for (const std::size_t index : order) {
    ordered_json entry{{"index", index}, {"relevance_score", scores[index]}};
    if (!documents.empty()) entry["document"] = {{"text", documents[index]}};
    list.push_back(std::move(entry));
  }
  return list;
}

absl::StatusOr<EvaluationPlan> ReadRerank(const EvaluationBodyContext& context,
                                          absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, RequestFields(), kRerankBody, context.limits));
  const JsonFields body(document.root());
  const ServedModel& served = context.served;
  QUIRE_RETURN_IF_ERROR(ReadModel(body, served));
  QUIRE_ASSIGN_OR_RETURN(const Texts query, ReadTexts(body, {"query"}));
  if (query.texts.size() != 1) return BadField(*body.Find("query"), "must be one text");
  QUIRE_ASSIGN_OR_RETURN(Texts document_texts, ReadTexts(body, {"documents"}));
  std::vector<std::string>& documents = document_texts.texts;
  std::int32_t top_n = std::numeric_limits<std::int32_t>::max();
  QUIRE_RETURN_IF_ERROR(body.Int32("top_n", &top_n));
  if (top_n < 1) return BadField(*body.Find("top_n"), "must be above 0");
  bool returns_documents = true;
  QUIRE_RETURN_IF_ERROR(body.Bool("return_documents", &returns_documents));
  std::vector<TextPair> pairs;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    pairs.push_back({.query = query.texts.front(),
                     .document = documents[i],
                     .query_field = query.fields.front(),
                     .document_field = document_texts.fields[i]});
  }
  EvaluationPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.items, ToPairItems(served, pairs));
  if (!returns_documents) documents.clear();
  plan.answer = [&served, id = context.request_id, top_n, documents = std::move(documents)](
                    std::vector<EvaluationResult> results) -> absl::StatusOr<std::string> {
    ordered_json list = RankDocuments(ComputePairScores(served, results),
                                      static_cast<std::size_t>(top_n), documents);
    return JsonText(ordered_json{{"id", absl::StrCat("rerank-", id)},
                                 {"model", served.id()},
                                 {"usage", UsageObject(SumUsage(results).prompt_tokens)},
                                 {"results", std::move(list)}});
  };
  return plan;
}

std::string WriteClasses(const ServedModel& served, const std::string& id, std::int64_t created,
                         const std::vector<EvaluationResult>& results) {
  const Classifier& classifier = *served.description.classifier;
  ordered_json data = ordered_json::array();
  for (const EvaluationResult& result : results) {
    const std::vector<double> probabilities = ComputeLabelProbabilities(classifier, result.pooled);
    const auto best = std::max_element(probabilities.begin(), probabilities.end());
    const auto index = static_cast<std::size_t>(best - probabilities.begin());
    data.push_back({{"index", data.size()},
                    {"label", classifier.labels[index]},
                    {"probs", probabilities},
                    {"num_classes", probabilities.size()}});
  }
  return JsonText(ordered_json{{"id", absl::StrCat("classify-", id)},
                               {"object", "list"},
                               {"created", created},
                               {"model", served.id()},
                               {"data", std::move(data)},
                               {"usage", UsageObject(SumUsage(results).prompt_tokens)}});
}

absl::StatusOr<EvaluationPlan> ReadClassify(const EvaluationBodyContext& context,
                                            absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, RequestFields(), kClassifyBody, context.limits));
  const JsonFields body(document.root());
  const ServedModel& served = context.served;
  QUIRE_RETURN_IF_ERROR(CheckIsClassifier(served));
  v1::EmbedRequest request;
  request.set_pooling(v1::POOLING_LAST);
  QUIRE_RETURN_IF_ERROR(body.Text("model", request.mutable_model()));
  EvaluationPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.items, ReadItems(served, body, &request));
  plan.answer = [&served, id = context.request_id, created = absl::ToUnixSeconds(context.wall_now)](
                    std::vector<EvaluationResult> results) -> absl::StatusOr<std::string> {
    return WriteClasses(served, id, created, results);
  };
  return plan;
}

}  // namespace

std::span<const EvaluationEndpoint> EvaluationEndpoints() {
  static constexpr EvaluationEndpoint kEndpoints[] = {
      {"/v1/embeddings", "Embeddings", &ReadEmbeddings, {&RequestFields, kEmbeddingBody}},
      {"/v1/score", "TextScore", &ReadScore, {&RequestFields, kScoreBody}},
      {"/v1/rerank", "Rerank", &ReadRerank, {&RequestFields, kRerankBody}},
      {"/v2/rerank", "Rerank", &ReadRerank, {&RequestFields, kRerankBody}},
      {"/rerank", "Rerank", &ReadRerank, {&RequestFields, kRerankBody}},
      {"/v1/classify", "Classify", &ReadClassify, {&RequestFields, kClassifyBody}}};
  return kEndpoints;
}

}  // namespace quire::server
