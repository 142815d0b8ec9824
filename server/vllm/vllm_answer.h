#pragma once

// Converts the events of one call from quire.v1 to messages of vllm.grpc.engine.
//
//   Started, PromptLogprobs   stored
//   Delta                     becomes a chunk: token ids, their number, and the numbers of prompt
//                             tokens and cached prompt tokens
//   Completed                 becomes a GenerateComplete message
//
// Place:      between Generation and the wire; the counterpart of vllm_request.h.
// Invariants: the prompt's log-probabilities are only in the first message of each choice.
// Threads:    one thread at a time.
// Lifetime:   one call.

#include <cstdint>
#include <set>

#include "quire/v1/generation.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire::server {

class VllmAnswer {
 public:
  // Fills the empty `message`. Returns false if the event has no message.
  bool Take(const v1::GenerateResponse& event, ::vllm::grpc::engine::GenerateResponse* message);

 private:
  void Store(const v1::Started& started);
  void Store(const v1::PromptLogprobs& logprobs);
  void Write(const v1::Delta& delta, ::vllm::grpc::engine::GenerateResponse* message);
  void Write(const v1::Completed& completed, ::vllm::grpc::engine::GenerateResponse* message);
  // Returns true if the prompt's log-probabilities were requested and this is the choice's first
  // message, which must contain them.
  bool ClaimInput(int index);

  std::uint32_t prompt_tokens_ = 0;
  std::uint32_t cached_tokens_ = 0;
  ::vllm::grpc::engine::InputLogProbs input_;  // empty: not requested
  std::set<int> started_choices_;              // choices whose first message was written
};

}  // namespace quire::server
