#pragma once

// Finds where a call between markers ends, with one class for each way to write the call.
//
// Place:      inside MarkedParser, which passes on each byte after the first marker of a call.
// Threads:    one thread.

#include <cstddef>
#include <variant>

#include "absl/strings/string_view.h"
#include "text/tools/json_tracker.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// Maximum size of a tool name; longer text is not a call.
inline constexpr std::size_t kMaxNameBytes = 256;

// In the classes below, `call` is the text of the call so far, from its first marker on.

// kObject and kNameThenJson: a JSON object, then the closing marker if the format has one.
class ObjectCallEnd {
 public:
  ObjectCallEnd(const ToolFormat& format, absl::string_view marker)
      : format_(&format), json_end_(marker.size()) {}

  // Processes the last byte of `call`. Returns true if it ends the call.
  bool Push(absl::string_view call);
  // Returns whether `call` cannot become a call. Returns false if the format has a closing marker.
  // Otherwise returns true if the text before any JSON is too long for a name or has a newline.
  bool CannotBecomeCall(absl::string_view call) const;

 private:
  const ToolFormat* format_;
  JsonTracker json_;
  std::size_t json_end_;  // offset in the call after its last JSON object
};

// kXmlParameters: <function=NAME> <parameter=KEY> value </parameter> </function>, with or without
// markers around it.
class XmlCallEnd {
 public:
  explicit XmlCallEnd(const ToolFormat& format) : format_(&format) {}

  bool Push(absl::string_view call);

 private:
  const ToolFormat* format_;
  // Whether the call has had the opening tag of a function, and of a parameter.
  bool has_function_ = false, has_parameter_ = false;
};

// kKeyValues: a name, keys and values, then the closing marker, which values may contain.
class KeyValueCallEnd {
 public:
  explicit KeyValueCallEnd(const ToolFormat& format) : format_(&format) {}

  bool Push(absl::string_view call);

 private:
  const ToolFormat* format_;
  bool in_value_ = false;
};

using CallEnd = std::variant<ObjectCallEnd, XmlCallEnd, KeyValueCallEnd>;

// Returns an object that finds the end of a call that begins with `marker`. REQUIRES: a class above
// handles the shape of the format.
CallEnd MakeCallEnd(const ToolFormat& format, absl::string_view marker);

}  // namespace quire::text
