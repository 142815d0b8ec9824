#pragma once

// The manifest of a bundle: bundle.txt, written by tools/bench/gpu_manifest.py.
//
//   quire 0.1.0 ed3403d
//   archs 80+ptx,90a
//   file 9bd366ae 1204 testdata/kv_cache/tma_tables.jsonl
//   end

#include <cstdint>
#include <string>
#include <vector>

namespace quire::gpu_run {

struct BundleFile {
  std::uint32_t crc = 0;
  std::uint64_t size = 0;
  std::string path;
};

struct Bundle {
  std::string folder;
  std::string version{};
  std::string archs{};
  std::vector<BundleFile> files{};
};

// Reads bundle.txt and compares every file with it. Stores a one-line description of the first
// error in `fault`.
Bundle ReadBundle(const std::string& folder, std::string* fault);

// Returns true if machine code for `archs` runs on a device of this compute capability (90 for
// 9.0).
bool RunsOn(const std::string& archs, int compute_capability);

// Returns the contents of a file, or "" if it does not exist.
std::string ReadFile(const std::string& path);

}  // namespace quire::gpu_run
