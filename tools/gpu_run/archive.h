#pragma once

// Writes the results into one archive, on machines without tar and gzip.

#include <string>

namespace quire::gpu_run {

// Writes the files directly inside `folder` into a .tar.gz, under `prefix`/. Returns an error
// message, or "" on success.
std::string WriteArchive(const std::string& folder, const std::string& prefix,
                         const std::string& file);

}  // namespace quire::gpu_run
