// Fuzzes the bodies of unary calls, parsed as each of them, and the answers.

#include <string>
#include <utility>
#include <vector>

#include "server/openai/evaluation_bodies.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/prompt_reader.h"

namespace quire::server {
namespace {

constexpr std::int32_t kWidth = 4;

// A single-label classifier that embeds and scores pairs. Parsing a body tokenizes nothing.
const ServedModel& Model() {
  static const std::vector<float> kWeights(kWidth, 0.5f);
  static const ServedModel* const kModel = [] {
    ModelDescription description;
    description.embedding_width = kWidth;
    description.classifier = Classifier{{"fits"}, &kWeights};
    TranslatorOptions options;
    options.model_id = "m";
    return new ServedModel(RequestTranslator(std::move(options)), std::move(description), {},
                           /*the_tokenizer=*/nullptr, /*the_engine=*/nullptr);
  }();
  return *kModel;
}

void ReadAndAnswer(const EvaluationEndpoint& endpoint, absl::string_view body) {
  absl::StatusOr<EvaluationPlan> plan = endpoint.read(
      {.served = Model(), .limits = {}, .wall_now = absl::UnixEpoch(), .request_id = "r"}, body);
  if (!plan.ok()) return fuzz::CheckRefusal(plan.status());
  QUIRE_CHECK(!plan->items.empty());
  std::vector<EvaluationResult> results(plan->items.size());
  for (EvaluationResult& result : results) result.pooled.assign(kWidth, 1.0f);
  const absl::StatusOr<std::string> answer = plan->answer(std::move(results));
  QUIRE_CHECK(answer.ok() && !answer->empty());
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::string_view body = quire::fuzz::AsText(data, size);
  for (const quire::server::EvaluationEndpoint& endpoint : quire::server::EvaluationEndpoints()) {
    quire::server::ReadAndAnswer(endpoint, body);
  }
  return 0;
}
