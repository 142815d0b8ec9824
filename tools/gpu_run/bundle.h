#pragma once

// What a bundle says of itself: bundle.txt, which tools/bench/gpu_manifest.py writes.
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

// Reads bundle.txt and compares every file with it. What is wrong first goes to `fault`, in one
// line.
Bundle ReadBundle(const std::string& folder, std::string* fault);

// Whether machine code for `archs` runs on a device of this compute capability (90 for 9.0).
bool RunsOn(const std::string& archs, int compute_capability);

// The whole file; empty when there is none.
std::string ReadFile(const std::string& path);

}  // namespace quire::gpu_run
