#include "tools/gpu_run/bundle.h"

#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace quire::gpu_run {
namespace {

std::string FaultOf(const std::string& folder, const BundleFile& file) {
  const std::string bytes = ReadFile(folder + "/" + file.path);
  if (bytes.size() != file.size) {
    return "the bundle is truncated: " + file.path + " has " + std::to_string(bytes.size()) +
           " bytes of " + std::to_string(file.size);
  }
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (crc != file.crc) return "the bundle is damaged: " + file.path + " has a wrong checksum";
  return "";
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

Bundle ReadBundle(const std::string& folder, std::string* fault) {
  Bundle bundle{.folder = folder};
  bool is_whole = false;
  std::istringstream lines(ReadFile(folder + "/bundle.txt"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "quire") {
      std::getline(words >> std::ws, bundle.version);
    } else if (kind == "archs") {
      words >> bundle.archs;
    } else if (kind == "file") {
      BundleFile file;
      words >> std::hex >> file.crc >> std::dec >> file.size;
      std::getline(words >> std::ws, file.path);
      bundle.files.push_back(file);
    } else if (kind == "end") {
      is_whole = true;
    }
  }
  *fault = is_whole ? "" : "the bundle is truncated: bundle.txt has no end";
  for (const BundleFile& file : bundle.files) {
    if (!fault->empty()) break;
    *fault = FaultOf(folder, file);
  }
  return bundle;
}

bool RunsOn(const std::string& archs, int compute_capability) {
  std::istringstream list(archs);
  for (std::string arch; std::getline(list, arch, ',');) {
    const int oldest = std::atoi(arch.c_str());
    const bool is_newer = compute_capability >= oldest;
    const bool is_same_major = compute_capability / 10 == oldest / 10;
    // NOLINTNEXTLINE(abseil-string-find-str-contains): this program does not use Abseil.
    const bool has_ptx = arch.find("+ptx") != std::string::npos;
    if (has_ptx              ? is_newer
        : arch.back() == 'a' ? compute_capability == oldest
                             : is_newer && is_same_major) {
      return true;
    }
  }
  return false;
}

}  // namespace quire::gpu_run
