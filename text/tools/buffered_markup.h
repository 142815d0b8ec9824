#pragma once

// Buffers markup around tool calls. If no call follows, the markup becomes content.
//
//   "[TOOL_CALLS] [" {call} ", " {call} "]"      markup, because there are calls
//   "[TOOL_CALLS] [" 1, 2]                       content, because there is no call
//
// Place:      a member of the parsers of call_parsers.h.
// Invariants: text is emitted in order. If there are no calls, all text becomes content.
// Threads:    one thread.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/output_part.h"

namespace quire::text {

class BufferedMarkup {
 public:
  // Buffers a marker that begins a group of calls.
  void Open(absl::string_view marker);
  // Buffers white space or a separator next to calls or markers.
  void Hold(absl::string_view text) { buffered_.append(text.data(), text.size()); }
  // Ends the group with a marker, which becomes markup if the group had a call, else content.
  void Close(absl::string_view marker, PartSink& sink);
  // Emits a call. Buffered text becomes markup before a valid call, and part of the source of a
  // failed call.
  void Call(absl::string_view source, ToolCall call, PartSink& sink);
  void Failed(absl::string_view source, absl::string_view error, PartSink& sink);
  // Emits the buffered text and `text` as content.
  void Content(absl::string_view text, PartSink& sink);
  // Ends the output.
  void Finish(PartSink& sink);

  std::size_t size() const { return buffered_.size(); }

 private:
  std::string buffered_;
  bool is_open_ = false;         // buffered_ has a marker that begins a group
  bool group_has_call_ = false;  // there was a call since the last Open
  bool follows_call_ = false;    // there was only markup since the last call
};

}  // namespace quire::text
