// Fuzzes foreign JSON with both readers: that of files and requests, and that of chat templates.

#include <nlohmann/json.hpp>

#include "formats/json_value.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/chat/jinja/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::string_view text = quire::fuzz::AsText(data, size);
  quire::text::jinja::JsonBudget budget{quire::text::jinja::JsonLimits{}};
  const auto value = quire::text::jinja::FromJson(text, {}, &budget);
  const auto document = quire::formats::JsonDocument::Parse(text);
  if (!document.ok()) return 0;
  // A printed document parses to the same document.
  const std::string printed = document->root().raw().dump();
  const auto again = quire::formats::JsonDocument::Parse(printed);
  QUIRE_CHECK(again.ok() && again->root().raw().dump() == printed);
  if (!value.ok()) return 0;
  quire::text::jinja::Runtime runtime({}, absl::UnixEpoch());
  (void)quire::text::jinja::ToJson(*value, {.ascii_only = true, .sort_keys = true, .indent = ""},
                                   runtime);
  return 0;
}
