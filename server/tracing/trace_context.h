#pragma once

// The header `traceparent` of W3C Trace Context (https://www.w3.org/TR/trace-context/).
//
//   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//      trace id                         span id          flags
//
// Place:   below TraceExporter.
// Threads: any.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire::server {

struct TraceContext {
  std::string trace_id;  // 16 bytes, not all zero
  std::string span_id;   // 8 bytes of the caller's span, not all zero
  bool is_sampled = false;
};

// Returns the context of a header of version 00, or of a later version that begins with the same
// fields. Returns nullopt for any other value, which must be ignored (W3C Trace Context).
std::optional<TraceContext> ParseTraceparent(absl::string_view header);

}  // namespace quire::server
