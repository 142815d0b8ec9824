#include "text/tools/call_end.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "text/tools/call_reader.h"

namespace quire::text {

bool ObjectCallEnd::Push(absl::string_view call) {
  if (json_.Push(call.back())) {
    json_end_ = call.size();
    return format_->call_end.empty();
  }
  return !json_.is_inside() && !format_->call_end.empty() &&
         call.size() >= json_end_ + format_->call_end.size() &&
         absl::EndsWith(call, format_->call_end);
}

bool ObjectCallEnd::CannotBecomeCall(absl::string_view call) const {
  if (!format_->call_end.empty() || json_.is_inside()) return false;
  return call.back() == '\n' || call.size() > format_->call_begin[0].size() + kMaxNameBytes;
}

// A value may contain closing tags. Therefore the closing marker counts only after the end of the
// function, which itself counts only after the end of a parameter.
bool XmlCallEnd::Push(absl::string_view call) {
  has_function_ |= absl::EndsWith(call, format_->call_begin[1]);
  has_parameter_ |= absl::EndsWith(call, "<parameter=");
  const bool has_begin_marker = absl::StartsWith(call, format_->call_begin[0]);
  if (has_begin_marker) {
    if (!absl::ConsumeSuffix(&call, format_->call_end)) return false;
    if (!has_function_) return true;  // complete, but not a valid call
    call = absl::StripTrailingAsciiWhitespace(call);
  }
  if (!absl::ConsumeSuffix(&call, kEndFunction)) return false;
  return has_begin_marker || !has_parameter_ ||
         absl::EndsWith(absl::StripTrailingAsciiWhitespace(call), "</parameter>");
}

bool KeyValueCallEnd::Push(absl::string_view call) {
  if (in_value_) {
    in_value_ = !absl::EndsWith(call, "</arg_value>");
    return false;
  }
  in_value_ = absl::EndsWith(call, "<arg_value>");
  return absl::EndsWith(call, format_->call_end);
}

CallEnd MakeCallEnd(const ToolFormat& format, absl::string_view marker) {
  switch (format.shape) {
    case CallShape::kXmlParameters:
      return XmlCallEnd(format);
    case CallShape::kKeyValues:
      return KeyValueCallEnd(format);
    default:
      return ObjectCallEnd(format, marker);
  }
}

}  // namespace quire::text
