#pragma once

// Converts quire.v1.GenerateResponse to the body or the server-sent events of one completions or
// chat call.
//
// Place:      pure conversion; see AnswerWriter.
// Invariants: choice c of prompt p has the index p * choices + c. text_offset of a token is the
//             number of code points that begin before the token in the choice's text, including an
//             echoed prompt. A character made of several tokens begins in the first one. U+FFFD
//             replaces invalid bytes.
// Threads:    one thread at a time.
// Lifetime:   the objects that OpenAiTokens refers to outlive the answer.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "quire/v1/generation.pb.h"
#include "server/openai/answer_writer.h"
#include "server/openai/openai_request.h"
#include "text/detokenizer.h"

namespace quire::server {

struct OpenAiAnswerHead {
  std::string id;  // the endpoint's id_prefix followed by the request id
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
  // Equal fingerprints mean equal weights, numeric types and build.
  std::string system_fingerprint;
};

// Functions of the tokenizer.
struct OpenAiTokens {
  std::function<std::string(std::int32_t)> bytes;  // same as TokenLogprob.token_bytes
  std::function<bool(std::int32_t)> is_special;
  std::function<text::Detokenizer(bool skip_special_tokens)> detokenizer;
};

std::unique_ptr<AnswerWriter> MakeOpenAiAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens tokens);

// Returns a list of {"token", "logprob", "bytes", "top_logprobs"}.
nlohmann::ordered_json ChatLogprobs(
    const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens);

// Returns "data: JSON" and an empty line.
std::string SseEvent(const std::string& data);

}  // namespace quire::server
