#pragma once

// Structural tags as vLLM and its library spell them in JSON -> quire.v1.StructuralTags.
//
//   {"type": "structural_tag", "structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}
//   {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags":
//     [{"begin", "content", "end"}, ...], "at_least_one": BOOL, "stop_after_first": BOOL}}
//
// Place:      for the transports whose clients send such a text.
// Invariants: schemas keep the order of their keys. Members that are not known are refused: they
//             would change what the answer may be.
// Threads:    pure.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "quire/v1/sampling.pb.h"

namespace quire::server {

// Errors: INVALID_ARGUMENT / BAD_PARAMETER with metadata `field`, a path that begins with the one
// given.
absl::Status ReadStructuralTagJson(absl::string_view text, absl::string_view field,
                                   v1::StructuralTags* tags);

}  // namespace quire::server
