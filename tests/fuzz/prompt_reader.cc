#include "tests/fuzz/prompt_reader.h"

#include <memory>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error_reason.h"
#include "engine/request/request.h"
#include "server/api/request_translator.h"
#include "tests/testing/paths.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::fuzz {
namespace {

constexpr absl::string_view kTemplate =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

struct Reader {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<server::RequestTranslator> translator;
};

Reader MakeReader() {
  auto tokenizer = text::Tokenizer::Load(paths::TestData("tokenizers/malformed/base"));
  QUIRE_CHECK(tokenizer.ok());
  auto chat = text::ChatTemplates::Create(
      {.templates = {{"default", std::string(kTemplate)}}, .origin = "fuzz", .problem = ""},
      **tokenizer, {.escape_special_in_content = true});
  QUIRE_CHECK(chat.ok());
  server::TranslatorOptions options;
  options.model_id = "model";
  options.limits.vocab_size = (*tokenizer)->vocab_size();
  options.limits.max_tokens_per_request = 512;
  options.default_max_tokens = 64;
  options.chat = *std::move(chat);
  return {*std::move(tokenizer), std::make_unique<server::RequestTranslator>(std::move(options))};
}

}  // namespace

void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(GetErrorReason(status).has_value());
  QUIRE_CHECK(status.code() != absl::StatusCode::kInternal);
}

void ReadPrompt(const v1::GenerateRequest& message) {
  static const Reader& reader = *new Reader(MakeReader());
  server::CallInfo call;
  call.accept_time = absl::FromUnixSeconds(1000);
  const auto request = reader.translator->ToRequest(message, call);
  if (!request.ok()) return CheckRefusal(request.status());
  if (const auto* prompt = std::get_if<engine::TextPrompt>(&request->prompt)) {
    (void)reader.tokenizer->Encode(prompt->text,
                                   {.add_special_tokens = prompt->add_special_tokens});
  } else if (const auto* chat = std::get_if<engine::ChatPrompt>(&request->prompt)) {
    const auto rendered = chat->templates->Render(chat->chat, request->accept_time);
    if (!rendered.ok()) return CheckRefusal(rendered.status());
    const auto ids = reader.tokenizer->Encode(
        rendered->text,
        {.add_special_tokens = false, .from_template = true, .literal = rendered->literal});
    QUIRE_CHECK(ids.ok());
  }
}

}  // namespace quire::fuzz
