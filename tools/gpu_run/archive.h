#pragma once

// Writes the results into one archive. Needs no tar or gzip program on the machine.

#include <string>

namespace quire::gpu_run {

// Archives the regular files of `folder`, without its subfolders, into the .tar.gz `file`, with
// names under `prefix`/. Returns an error message, or "" on success.
std::string WriteArchive(const std::string& folder, const std::string& prefix,
                         const std::string& file);

}  // namespace quire::gpu_run
