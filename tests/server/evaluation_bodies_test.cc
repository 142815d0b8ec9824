// Tests of the bodies of evaluation calls, and of the work that they cause before the engine is
// called.

#include "server/openai/evaluation_bodies.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "text/chat/chat_template.h"

namespace quire::server {
namespace {

// Returns a classifier of one label if `weights` is set, else a model that cannot score pairs.
ServedModel ModelWith(const std::vector<float>* weights) {
  ModelDescription description;
  description.embedding_width = 1;
  if (weights != nullptr) description.classifier = Classifier{{"fits"}, weights};
  TranslatorOptions options;
  options.model_id = "m";
  return {RequestTranslator(std::move(options)), std::move(description), {}, nullptr, nullptr};
}

std::string RerankBody(std::size_t query_bytes, int documents) {
  std::string body =
      absl::StrCat("{\"query\": \"", std::string(query_bytes, 'q'), "\", \"documents\": [\"d\"");
  for (int i = 1; i < documents; ++i) body += ", \"d\"";
  return body + "]}";
}

absl::StatusOr<EvaluationPlan> ReadRerank(const ServedModel& model, absl::string_view body) {
  const std::span<const EvaluationEndpoint> all = EvaluationEndpoints();
  const auto rerank = std::find_if(all.begin(), all.end(), [](const EvaluationEndpoint& endpoint) {
    return endpoint.path == "/v1/rerank";
  });
  return rerank->read(
      {.served = model, .limits = {}, .wall_now = absl::UnixEpoch(), .request_id = "r"}, body);
}

TEST(EvaluationBodiesTest, QueryRepeatedByEveryPairIsBounded) {
  const std::vector<float> weights(1, 0.5f);
  const ServedModel model = ModelWith(&weights);
  constexpr std::size_t kQueryBytes = std::size_t{1} << 20;
  const auto fits = ReadRerank(model, RerankBody(kQueryBytes, 63));
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->items.size(), 63u);

  const absl::Status refused = ReadRerank(model, RerankBody(kQueryBytes, 64)).status();
  EXPECT_TRUE(HasReason(refused, Reason::kBadParameter)) << refused;
  EXPECT_NE(refused.message().find("67108928 bytes"), std::string::npos) << refused;
  EXPECT_NE(refused.message().find("at most 67108864 bytes"), std::string::npos) << refused;

  const ServedModel other = ModelWith(nullptr);
  EXPECT_TRUE(absl::IsUnimplemented(ReadRerank(other, RerankBody(kQueryBytes, 2048)).status()));
}

// There is no tokenizer, so parsing cannot tokenize.
TEST(EvaluationBodiesTest, PairsOfARerankerAreLeftToTheTextWorkers) {
  const auto tokenizer = engine::MakeByteTokenizer();
  auto templates = text::ChatTemplates::Create(
      text::FindTemplates({.template_file = "{{ messages[1].content }}"}), *tokenizer, {});
  ASSERT_TRUE(templates.ok()) << templates.status();
  ModelDescription description;
  description.yes_no = YesNoTokens{.yes = 7, .no = 8};
  TranslatorOptions options;
  options.model_id = "m";
  options.chat = *templates;
  const ServedModel model(RequestTranslator(std::move(options)), std::move(description), {},
                          nullptr, nullptr);
  const auto plan = ReadRerank(model, RerankBody(3, 2));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->items.size(), 4u);
  for (std::size_t i = 0; i < plan->items.size(); ++i) {
    const auto& prompt = std::get<engine::ScorePrompt>(plan->items[i].request.prompt);
    const bool is_second = i % 2 == 1;
    EXPECT_EQ(prompt.continuation_ids, engine::TokenPrompt{is_second ? 8 : 7});
    EXPECT_EQ(plan->items[i].predecessor.has_value(), is_second);
    // A pair is rendered and tokenized once.
    EXPECT_EQ(plan->items[i].copies_context, is_second);
    ASSERT_EQ(prompt.context_chat.has_value(), !is_second);
    if (is_second) continue;
    EXPECT_EQ(prompt.context_chat->templates, *templates);
    EXPECT_EQ(prompt.context_chat->chat.messages.at(0).content, "qqq");
    EXPECT_EQ(prompt.context_chat->chat.messages.at(1).content, "d");
  }
}

}  // namespace
}  // namespace quire::server
