// quire embed, quire score.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/client.h"
#include "tools/quire/unary_call.h"

namespace quire::client {
namespace {

struct EmbedOptions {
  std::vector<std::string> texts;
  std::string pooling;
  std::optional<std::int32_t> dimensions;
  std::optional<bool> normalize;
  bool truncate = false;
};

struct ScoreOptions {
  std::string context;
  std::vector<std::string> continuations;
  bool tokens = false;
};

v1::Pooling ParsePooling(const std::string& name) {
  if (name == "last") return v1::POOLING_LAST;
  if (name == "mean") return v1::POOLING_MEAN;
  return name == "cls" ? v1::POOLING_CLS : v1::POOLING_UNSPECIFIED;
}

int RunEmbed(const CommonOptions& common, const EmbedOptions& options) {
  v1::EmbedRequest request;
  for (const std::string& text : options.texts) request.add_inputs()->set_text(text);
  request.set_pooling(ParsePooling(options.pooling));
  if (options.dimensions) request.set_dimensions(*options.dimensions);
  if (options.normalize) request.set_normalize(*options.normalize);
  request.set_truncate(options.truncate);
  const auto print = [](const v1::EmbedResponse& response) {
    for (const v1::Embedding& embedding : response.embeddings()) {
      for (int i = 0; i < embedding.values_size(); ++i) {
        std::printf("%s%.9g", i == 0 ? "" : " ", static_cast<double>(embedding.values(i)));
      }
      std::printf("\n");
    }
  };
  return CallAndPrint(common, common.address, &v1::GenerationService::Stub::Embed, request, print);
}

int RunScore(const CommonOptions& common, const ScoreOptions& options) {
  v1::ScoreRequest request;
  request.set_return_token_logprobs(options.tokens);
  for (const std::string& text : options.continuations) {
    v1::ScoreItem* const item = request.add_items();
    if (!options.context.empty()) item->set_context_text(options.context);
    item->set_text(text);
  }
  const auto print = [&options](const v1::ScoreResponse& response) {
    for (int i = 0; i < response.results_size(); ++i) {
      const v1::ScoreResult& result = response.results(i);
      std::printf(
          "%12.6f  %4d tokens  %s  \"%s\"\n", result.total_logprob(), result.token_count(),
          result.is_greedy() ? "greedy" : "      ",
          absl::Utf8SafeCHexEscape(options.continuations[static_cast<std::size_t>(i)]).c_str());
      for (const v1::TokenLogprob& token : result.tokens()) {
        std::printf("%12.6f  rank %d  \"%s\"\n", static_cast<double>(token.logprob()), token.rank(),
                    absl::Utf8SafeCHexEscape(token.token_bytes()).c_str());
      }
    }
  };
  return CallAndPrint(common, common.address, &v1::GenerationService::Stub::Score, request, print);
}

}  // namespace

void AddEvaluate(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto embed_options = std::make_shared<EmbedOptions>();
  CLI::App* embed =
      app->add_subcommand("embed", "compute embedding vectors and print one per line");
  embed->add_option("texts", embed_options->texts, "the texts")->required();
  embed->add_option("--pooling", embed_options->pooling, "pooling (default: the model's)")
      ->check(CLI::IsMember({"last", "mean", "cls"}));
  embed->add_option("--dimensions", embed_options->dimensions, "number of values to keep");
  embed->add_flag("--normalize,!--no-normalize", embed_options->normalize,
                  "normalize to length 1 (default: the model's)");
  embed->add_flag("--truncate", embed_options->truncate, "truncate texts at the model's context");
  embed->callback([=] { *exit_code = RunEmbed(*common, *embed_options); });
  auto score_options = std::make_shared<ScoreOptions>();
  CLI::App* score =
      app->add_subcommand("score", "compute log-probabilities of continuations of a context");
  score->add_option("continuations", score_options->continuations, "the continuations")->required();
  score->add_option("--context", score_options->context,
                    "text before the continuations (default: none)");
  score->add_flag("--tokens", score_options->tokens, "also print one line per token");
  score->callback([=] { *exit_code = RunScore(*common, *score_options); });
}

}  // namespace quire::client
