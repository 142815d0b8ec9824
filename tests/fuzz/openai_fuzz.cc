// Fuzzes bodies of the APIs over HTTP, each parsed as a completion, a chat call, a call of
// /v1/responses and one of /v1/messages.

#include "server/dialects/anthropic_request.h"
#include "server/dialects/responses_request.h"
#include "server/openai/openai_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/prompt_reader.h"

namespace quire::server {
namespace {

void Read(const absl::StatusOr<OpenAiRequest>& request) {
  if (!request.ok()) return fuzz::CheckRefusal(request.status());
  for (const v1::GenerateRequest& prompt : request->prompts) fuzz::ReadPrompt(prompt);
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::string_view body = quire::fuzz::AsText(data, size);
  quire::server::Read(quire::server::ParseCompletionRequest(body));
  quire::server::Read(quire::server::ParseChatRequest(body));
  quire::server::Read(quire::server::ParseResponsesRequest(body, {}));
  quire::server::Read(quire::server::ParseAnthropicRequest(body, {}));
  return 0;
}
