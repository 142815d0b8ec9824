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

constexpr GenerationEndpoint kEndpoints[] = {{.path = "/v1/completions",
                                              .method = "Completions",
                                              .id_prefix = "cmpl-",
                                              .read = &ReadCompletion,
                                              .make_writer = &MakeOpenAiAnswer,
                                              .write_error = &OpenAiErrorBody,
                                              .body = {&RequestFields, kCompletionBody}},
                                             {.path = "/v1/chat/completions",
                                              .method = "ChatCompletions",
                                              .id_prefix = "chatcmpl-",
                                              .read = &ReadChat,
                                              .make_writer = &MakeOpenAiAnswer,
                                              .write_error = &OpenAiErrorBody,
                                              .body = {&RequestFields, kChatBody}}};

}  // namespace

std::span<const GenerationEndpoint> OpenAiEndpoints() {
  return kEndpoints;
}

}  // namespace quire::server
