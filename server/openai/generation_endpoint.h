#pragma once

// The endpoints that generate text. Each has functions that read the body and write the answer and
// the errors in the format of one API. Every call runs as one or more v1::GenerateRequests in
// OpenAiCall.
//
// Place:   OpenAiService finds the endpoint of a path; server/dialects adds the endpoints of other
//          APIs.
// Threads: any; the functions have no state.

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_error.h"
#include "server/openai/openai_request.h"

namespace quire::server {

constexpr absl::string_view kServerSentEvents = "text/event-stream; charset=utf-8";

struct GenerationEndpoint {
  absl::string_view path;
  absl::string_view method;     // a constant, as used in metrics and the access log
  absl::string_view id_prefix;  // prefix of the answer's id: "chatcmpl-"
  // Reads a body into requests without ids. Errors name fields of the body.
  absl::StatusOr<OpenAiRequest> (*read)(absl::string_view body, const OpenAiLimits& limits);
  std::unique_ptr<AnswerWriter> (*make_writer)(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens tokens);
  WriteErrorBody write_error;
  absl::string_view stream_type = kServerSentEvents;  // Content-Type of streams
  BodyFields body = {};                               // for /openapi.json
  absl::string_view id_header = "";  // name of a second header with the request id; empty: none
};

// /v1/completions and /v1/chat/completions.
std::span<const GenerationEndpoint> OpenAiEndpoints();

}  // namespace quire::server
