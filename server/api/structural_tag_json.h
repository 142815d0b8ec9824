#pragma once

// Converts structural tags in the JSON format of vLLM and xgrammar to quire.v1.StructuralTags.
//
//   {"type": "structural_tag", "structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}
//   {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags":
//     [{"begin", "content", "end"}, ...], "at_least_one": BOOL, "stop_after_first": BOOL}}
//
// Place:      for transports whose clients send this format.
// Invariants: schemas keep the order of their keys. Unknown members are refused, because ignoring
//             them would change the allowed answers.
// Threads:    any; no state.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "quire/v1/sampling.pb.h"

namespace quire::server {

// Errors are INVALID_ARGUMENT / BAD_PARAMETER. The path in the metadata `field` begins with
// `field`.
absl::Status ReadStructuralTagJson(absl::string_view text, absl::string_view field,
                                   v1::StructuralTags* tags);

}  // namespace quire::server
