#pragma once

// The results as one file, written where there is no tar and no gzip.

#include <string>

namespace quire::gpu_run {

// Writes the files directly inside `folder` into a .tar.gz, under `prefix`/. Returns what went
// wrong, nothing when all went well.
std::string WriteArchive(const std::string& folder, const std::string& prefix,
                         const std::string& file);

}  // namespace quire::gpu_run
