// Fuzzes serialized messages of the gRPC services. The first byte selects the message type.

#include <grpcpp/support/slice.h>

#include "quire/v1/chat.pb.h"
#include "quire/v1/generation.pb.h"
#include "quire/v1/text.pb.h"
#include "server/api/chat_translator.h"
#include "server/grpc/call_util.h"
#include "server/vllm/vllm_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/prompt_reader.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire::server {
namespace {

// Returns false for bytes that are not such a message.
bool Parse(absl::string_view bytes, google::protobuf::Message* message) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  const absl::Status status = ParseMessage(grpc::ByteBuffer(&slice, 1), message);
  if (!status.ok()) fuzz::CheckRefusal(status);
  return status.ok();
}

void ReadVllm(absl::string_view bytes) {
  ::vllm::grpc::engine::GenerateRequest message;
  if (!Parse(bytes, &message)) return;
  v1::GenerateRequest request;
  const absl::Status status = ToGenerateRequest(message, &request);
  if (!status.ok()) return fuzz::CheckRefusal(NameVllmFields(status));
  fuzz::ReadPrompt(request);
}

void Read(unsigned kind, absl::string_view bytes) {
  v1::GenerateRequest generate;
  v1::BatchGenerateRequest batch;
  v1::TokenizeRequest tokenize;
  switch (kind % 4) {
    case 0:
      if (Parse(bytes, &generate)) fuzz::ReadPrompt(generate);
      return;
    case 1:
      if (Parse(bytes, &batch)) fuzz::ReadPrompt(batch.generate());
      return;
    case 2:
      if (Parse(bytes, &tokenize)) (void)ToChatInput(tokenize.chat(), {});
      return;
    default:
      return ReadVllm(bytes);
  }
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0) quire::server::Read(data[0], quire::fuzz::AsText(data, size).substr(1));
  return 0;
}
