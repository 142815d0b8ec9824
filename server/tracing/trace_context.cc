#include "server/tracing/trace_context.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"

namespace quire::server {
namespace {

constexpr std::size_t kVersionEnd = 2, kTraceEnd = 35, kSpanEnd = 52, kFlagsEnd = 55;

bool IsLowerHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool IsZero(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view header) {
  if (header.size() < kFlagsEnd || header[kVersionEnd] != '-' || header[kTraceEnd] != '-' ||
      header[kSpanEnd] != '-') {
    return std::nullopt;
  }
  const absl::string_view version = header.substr(0, kVersionEnd);
  const absl::string_view trace = header.substr(kVersionEnd + 1, kTraceEnd - kVersionEnd - 1);
  const absl::string_view span = header.substr(kTraceEnd + 1, kSpanEnd - kTraceEnd - 1);
  const absl::string_view flags = header.substr(kSpanEnd + 1, kFlagsEnd - kSpanEnd - 1);
  if (!IsLowerHex(version) || !IsLowerHex(trace) || !IsLowerHex(span) || !IsLowerHex(flags) ||
      version == "ff") {
    return std::nullopt;
  }
  if (header.size() > kFlagsEnd && (version == "00" || header[kFlagsEnd] != '-')) {
    return std::nullopt;
  }
  TraceContext context = {.trace_id = absl::HexStringToBytes(trace),
                          .span_id = absl::HexStringToBytes(span),
                          .is_sampled = (absl::HexStringToBytes(flags)[0] & 1) != 0};
  if (IsZero(context.trace_id) || IsZero(context.span_id)) return std::nullopt;
  return context;
}

}  // namespace quire::server
