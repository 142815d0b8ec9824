#pragma once

// Helpers of the readers and writers of this folder. Their errors are those of openai_request.h.
//
// Place:   above server/openai/json_fields.h.
// Threads: pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "quire/v1/generation.pb.h"
#include "server/openai/field_names.h"

namespace quire::server {

// Returns the member `type` of an item, block or tool, or `absent` if that member is missing.
absl::StatusOr<std::string> TypeOf(const formats::JsonValue& object, absl::string_view absent = "");
// Returns the error of a `type` that is not supported. `remedy` ends the message.
absl::Status UnsupportedType(const formats::JsonValue& object, absl::string_view type,
                             absl::string_view remedy);

// Sets the constraint to a JSON schema, whose keys keep their order. `raw` is the schema's text in
// the body.
absl::Status SetSchema(const formats::JsonValue& schema, absl::string_view raw,
                       v1::GenerateRequest* request, FieldNames* names);

// Passes a reasoning effort to the chat template as reasoning_effort. Effort "none" also sets
// enable_thinking to false, and is refused if enable_thinking is already true.
absl::Status SetReasoningEffort(const formats::JsonValue& effort, v1::ChatPrompt* chat);

// Returns the JSON on one line. Keys keep their order. REQUIRES: `raw` is valid JSON.
std::string CompactJson(absl::string_view raw);

// Returns a server-sent event: "event: NAME", "data: JSON" and an empty line.
std::string NamedEvent(absl::string_view name, absl::string_view json);

// Moves the text of each message with a single part from `parts` to `content`. All chat templates
// read `content`.
void MoveSinglePartsToContent(v1::ChatPrompt* chat);

}  // namespace quire::server
