#pragma once

// Parser of server-sent events (WHATWG HTML, section 9.2). It returns only their data.
//
// Place:   used by `quire bench --peer`.
// Threads: one thread.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::client {

class SseParser {
 public:
  // Consumes the next bytes, which may be split anywhere. Returns the data of each completed event:
  // its "data" lines joined by line feeds. Skips comments, other fields, and events without data.
  // Lines end with LF or CRLF.
  std::vector<std::string> Feed(absl::string_view bytes);

 private:
  void EndLine(std::vector<std::string>* events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace quire::client
