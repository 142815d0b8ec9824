#pragma once

// Markup around tool calls that becomes content if no call follows it.
//
//   "[TOOL_CALLS] [" {call} ", " {call} "]"      markup, with the calls
//   "[TOOL_CALLS] [" 1, 2]                       content: there is no call
//
// Place:      a member of the parsers of call_parsers.h.
// Invariants: text goes out in its order. An answer without calls loses none of its text here.
// Threads:    one.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/output_part.h"

namespace quire::text {

class HeldMarkup {
 public:
  // Holds a marker that begins a group of calls.
  void Open(absl::string_view marker);
  // Holds white space or a separator beside calls or markers.
  void Hold(absl::string_view text) { held_.append(text.data(), text.size()); }
  // Ends the group with a marker, which is markup if the group had a call.
  void Close(absl::string_view marker, PartSink& sink);
  // Emits a call. What is held is markup before a call, and part of the source of a failed one.
  void Call(absl::string_view source, ToolCall call, PartSink& sink);
  void Failed(absl::string_view source, absl::string_view error, PartSink& sink);
  // Emits what is held and `text` as content.
  void Content(absl::string_view text, PartSink& sink);
  // Ends the answer.
  void Finish(PartSink& sink);

  std::size_t size() const { return held_.size(); }

 private:
  std::string held_;
  bool is_open_ = false;         // held_ has a marker that begins a group
  bool group_has_call_ = false;  // since the last Open
  bool follows_call_ = false;    // nothing but markup has come since the last call
};

}  // namespace quire::text
