#pragma once

// Reader of a stream of server-sent events (WHATWG HTML, section 9.2), of which only the data
// matters.
//
// Place:   behind `quire bench --peer`.
// Threads: one.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::client {

class SseParser {
 public:
  // Takes the next bytes, cut anywhere, and returns the data of each event that they end: its
  // "data" lines joined by line feeds. Events without data, comments and other fields are skipped.
  // Lines end with LF or CRLF.
  std::vector<std::string> Feed(absl::string_view bytes);

 private:
  void EndLine(std::vector<std::string>* events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace quire::client
