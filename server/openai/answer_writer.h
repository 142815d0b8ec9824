#pragma once

// Writes the answer of one generation call in the format of one API.
//
//   stream:  for each message: writer.Take(prompt, message, &events); then AppendEnd(&events)
//            on an error: AppendError(body, &events) instead of AppendEnd
//   else:    for each message: writer.Take(prompt, message, nullptr); then TakeBody()
//
// Place:      OpenAiCall drives a writer and sends its bytes. OpenAiAnswer and the writers of
//             server/dialects implement it.
// Threads:    one thread at a time.

#include <cstddef>
#include <string>

#include "quire/v1/generation.pb.h"

namespace quire::server {

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Takes the next message of the prompt with the index `prompt`. With a stream, appends the
  // resulting events. Without a stream, `events` is null.
  virtual void Take(std::size_t prompt, const v1::GenerateResponse& message,
                    std::string* events) = 0;
  // Appends the events that end a stream.
  virtual void AppendEnd(std::string* events) = 0;
  // Appends the events that end a stream with an error. `error_body` has the format of the API.
  virtual void AppendError(const std::string& error_body, std::string* events) = 0;
  // Returns the whole answer. Called once, after the last Take. REQUIRES: the answer is not
  // streamed, and every choice is completed.
  virtual std::string TakeBody() = 0;
  // Returns the number of bytes of the answer so far; 0 with a stream.
  virtual std::size_t buffered_bytes() const = 0;
};

}  // namespace quire::server
