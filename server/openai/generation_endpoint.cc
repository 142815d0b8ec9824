#include "server/openai/generation_endpoint.h"

namespace quire::server {
namespace {

constexpr GenerationEndpoint kEndpoints[] = {{.path = "/v1/completions",
                                              .method = "Completions",
                                              .id_prefix = "cmpl-",
                                              .read = &ParseCompletionRequest,
                                              .make_writer = &MakeOpenAiAnswer,
                                              .write_error = &OpenAiErrorBody,
                                              .body = {&RequestFields, kCompletionBody}},
                                             {.path = "/v1/chat/completions",
                                              .method = "ChatCompletions",
                                              .id_prefix = "chatcmpl-",
                                              .read = &ParseChatRequest,
                                              .make_writer = &MakeOpenAiAnswer,
                                              .write_error = &OpenAiErrorBody,
                                              .body = {&RequestFields, kChatBody}}};

}  // namespace

std::span<const GenerationEndpoint> OpenAiEndpoints() {
  return kEndpoints;
}

}  // namespace quire::server
