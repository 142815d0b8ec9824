#include "server/openai/generation_endpoint.h"

#include <utility>

namespace quire::server {
namespace {

std::unique_ptr<AnswerWriter> MakeOpenAiAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens tokens) {
  return std::make_unique<OpenAiAnswer>(request, std::move(head), std::move(tokens));
}

absl::StatusOr<OpenAiRequest> ReadCompletion(absl::string_view body, const OpenAiLimits& limits) {
  return ParseCompletionRequest(body, limits);
}

absl::StatusOr<OpenAiRequest> ReadChat(absl::string_view body, const OpenAiLimits& limits) {
  return ParseChatRequest(body, limits);
}

constexpr GenerationEndpoint kEndpoints[] = {
    {"/v1/completions", "Completions", "cmpl-", &ReadCompletion, &MakeOpenAiAnswer,
     &OpenAiErrorBody},
    {"/v1/chat/completions", "ChatCompletions", "chatcmpl-", &ReadChat, &MakeOpenAiAnswer,
     &OpenAiErrorBody}};

}  // namespace

std::span<const GenerationEndpoint> OpenAiEndpoints() {
  return kEndpoints;
}

}  // namespace quire::server
