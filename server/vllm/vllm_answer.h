#pragma once

// Events of quire.v1 -> messages of vllm.grpc.engine, for one call.
//
//   Started, PromptLogprobs   kept
//   Delta                     a chunk: ids, how many of them, counts of the prompt
//   Completed                 a complete
//
// Place:      behind Generation, in front of the wire; the counterpart of vllm_request.h.
// Invariants: log-probabilities of the prompt are in the first message of every choice and in no
//             other.
// Threads:    one at a time.
// Lifetime:   of one call.

#include <cstdint>
#include <memory>
#include <set>

namespace quire::v1 {
class Completed;
class Delta;
class GenerateResponse;
class PromptLogprobs;
class Started;
}  // namespace quire::v1
namespace vllm::grpc::engine {
class GenerateResponse;
class InputLogProbs;
}  // namespace vllm::grpc::engine

namespace quire::server {

class VllmAnswer {
 public:
  VllmAnswer();
  ~VllmAnswer();
  VllmAnswer(const VllmAnswer&) = delete;
  VllmAnswer& operator=(const VllmAnswer&) = delete;

  // Fills `message`, which is empty; false when this event becomes no message.
  bool Take(const v1::GenerateResponse& event, ::vllm::grpc::engine::GenerateResponse* message);

 private:
  void Keep(const v1::Started& started);
  void Keep(const v1::PromptLogprobs& logprobs);
  void Write(const v1::Delta& delta, ::vllm::grpc::engine::GenerateResponse* message);
  void Write(const v1::Completed& completed, ::vllm::grpc::engine::GenerateResponse* message);
  // True once for each choice, where there is input_: the caller's message carries it.
  bool ClaimInput(int index);

  std::uint32_t prompt_tokens_ = 0;
  std::uint32_t cached_tokens_ = 0;
  std::unique_ptr<::vllm::grpc::engine::InputLogProbs> input_;  // empty: not asked for
  std::set<int> begun_;                                         // choices that have a message
};

}  // namespace quire::server
