// Fuzzes chat templates: the source up to the first NUL, then the variables as a JSON object.

#include "base/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/chat/jinja/interpreter.h"
#include "text/chat/jinja/json.h"
#include "text/chat/jinja/parser.h"

namespace quire::text::jinja {
namespace {

constexpr absl::string_view kVariables = R"({
  "messages": [{"role": "system", "content": "Be <brief>."},
               {"role": "user", "content": "Hi \u00e9"},
               {"role": "assistant", "content": "", "tool_calls": [{"type": "function",
                "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]}],
  "tools": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
  "numbers": [3, -1, 2], "text": "a b", "nested": {"k": {"k": [[]]}}})";

void Run(absl::string_view source, absl::string_view variables_json) {
  if (FirstInvalidUtf8(source).has_value()) return;  // chat templates reject it as well
  const absl::StatusOr<ParsedTemplate> parsed = Parse(source);
  const absl::StatusOr<Value> values = FromJson(variables_json);
  if (!parsed.ok() || !values.ok() || !values->is_map()) return;
  Variables variables;
  for (const auto& [key, entry] : values->as_map()->entries) {
    variables.emplace_back(key.as_string(), entry);
  }
  const RenderLimits limits{.max_bytes = 1 << 16, .max_steps = 20'000};
  const RenderResult result =
      Render(parsed->body, variables, limits, absl::FromUnixSeconds(1'700'000'000));
  if (!result.text.ok()) {
    QUIRE_CHECK(result.error_position.line > 0);
    return;
  }
  QUIRE_CHECK(static_cast<std::int64_t>(result.text->size()) <= limits.max_bytes);
  QUIRE_CHECK(!FirstInvalidUtf8(*result.text).has_value());
}

}  // namespace
}  // namespace quire::text::jinja

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  absl::string_view rest = quire::fuzz::AsText(data, size);
  const absl::string_view source = quire::fuzz::TakePart(&rest, '\0');
  quire::text::jinja::Run(source, rest.empty() ? quire::text::jinja::kVariables : rest);
  return 0;
}
