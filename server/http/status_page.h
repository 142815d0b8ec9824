#pragma once

// The files of the status page, which the build embeds in the binary.
//
// Threads:    any.
// Lifetime:   static.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace quire::server {

struct EmbeddedFile {
  std::string name;
  std::span<const std::byte> bytes;
};

// Returns status_page.html, status_page.css, status_page.js and status_chat.js, in this order.
std::vector<EmbeddedFile> StatusPageFiles();

}  // namespace quire::server
