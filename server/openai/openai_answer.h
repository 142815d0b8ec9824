#pragma once

// Converts quire.v1.GenerateResponse to the body or the server-sent events of one completions or
// chat call.
//
//   for each message: answer.Take(prompt, message, &events); answer.AppendEnd(&events)   stream
//   for each message: answer.Take(prompt, message, nullptr); answer.TakeBody()           else
//
// Place:      pure conversion; OpenAiCall sends the bytes.
// Invariants: choice c of prompt p has the index p * choices + c. text_offset of a token is the
//             number of characters (code points) of the choice's text, the echoed prompt included,
//             that begin before the token. A character made of several tokens begins in the first
//             one. U+FFFD replaces invalid bytes.
// Threads:    one thread at a time.
// Lifetime:   the objects that OpenAiTokens refers to outlive it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quire/v1/generation.pb.h"
#include "server/openai/openai_request.h"
#include "text/detokenizer.h"

namespace quire::server {

struct OpenAiAnswerHead {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
};

// Functions of the tokenizer.
struct OpenAiTokens {
  std::function<std::string(std::int32_t)> bytes;  // same as TokenLogprob.token_bytes
  std::function<bool(std::int32_t)> is_special;
  std::function<text::Detokenizer(bool skip_special_tokens)> detokenizer;
};

class OpenAiAnswer {
 public:
  OpenAiAnswer(const OpenAiRequest& request, OpenAiAnswerHead head, OpenAiTokens tokens);
  ~OpenAiAnswer();

  // Takes the next message of a prompt. With a stream, appends the resulting events.
  void Take(std::size_t prompt, const v1::GenerateResponse& message, std::string* events);
  // Appends the end of a stream: the usage if requested, and [DONE].
  void AppendEnd(std::string* events) const;
  // Returns the whole answer. REQUIRES: no stream; every choice is completed; the last call.
  std::string TakeBody();
  // Returns the bytes of completed choices that are buffered; 0 with a stream.
  std::size_t buffered_bytes() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Returns "data: JSON" and an empty line.
std::string SseEvent(const std::string& data);

}  // namespace quire::server
