#include "server/dialects/dialect_endpoints.h"

#include "server/dialects/anthropic_answer.h"
#include "server/dialects/anthropic_request.h"
#include "server/dialects/responses_answer.h"
#include "server/dialects/responses_request.h"

namespace quire::server {
namespace {

constexpr GenerationEndpoint kEndpoints[] = {{.path = "/v1/responses",
                                              .method = "Responses",
                                              .id_prefix = "resp_",
                                              .read = &ParseResponsesRequest,
                                              .make_writer = &MakeResponsesAnswer,
                                              .write_error = &OpenAiErrorBody,
                                              .body = {&ResponsesFields, kResponsesBody}},
                                             {.path = "/v1/messages",
                                              .method = "Messages",
                                              .id_prefix = "msg_",
                                              .read = &ParseAnthropicRequest,
                                              .make_writer = &MakeAnthropicAnswer,
                                              .write_error = &AnthropicErrorBody,
                                              .body = {&AnthropicFields, kAnthropicBody},
                                              .id_header = "request-id"}};

constexpr EvaluationEndpoint kEvaluations[] = {{"/v1/messages/count_tokens",
                                                "CountTokens",
                                                &ReadAnthropicTokenCount,
                                                {&AnthropicFields, kAnthropicBody},
                                                &AnthropicErrorBody,
                                                "request-id"}};

constexpr RefusedPath kRefused[] = {{"/v1/responses", "; responses are not stored"},
                                    {"/v1/messages", "; use /v1/messages", &AnthropicErrorBody}};

}  // namespace

std::vector<EndpointTables> DialectTables() {
  return {{.generation = kEndpoints, .evaluation = kEvaluations, .refused = kRefused},
          OllamaTables(),
          VllmTables(),
          SglangTables()};
}

}  // namespace quire::server
