#pragma once

// The status page, which the build embeds.
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

// Returns one entry, status_page.html.
std::vector<EmbeddedFile> StatusPageFiles();

}  // namespace quire::server
