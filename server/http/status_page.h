#pragma once

// The status page, as the build embeds it.
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

// One entry: status_page.html.
std::vector<EmbeddedFile> StatusPageFiles();

}  // namespace quire::server
