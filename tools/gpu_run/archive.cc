#include "tools/gpu_run/archive.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace quire::gpu_run {
namespace {

constexpr std::size_t kBlock = 512;

// Returns a ustar header: name, mode, size, time and a checksum, numbers in octal.
std::array<char, kBlock> Header(const std::string& name, std::size_t size, std::time_t time) {
  std::array<char, kBlock> header{};
  std::snprintf(header.data(), 100, "%s", name.c_str());
  std::snprintf(&header[100], 8, "%07o", 0644u);
  std::snprintf(&header[108], 8, "%07o", 0u);
  std::snprintf(&header[116], 8, "%07o", 0u);
  std::snprintf(&header[124], 12, "%011zo", size);
  std::snprintf(&header[136], 12, "%011lo", static_cast<unsigned long>(time));
  std::memset(&header[148], ' ', 8);
  header[156] = '0';
  std::memcpy(&header[257], "ustar\00000", 8);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(&header[148], 8, "%06o", sum);
  return header;
}

bool Append(gzFile out, const char* bytes, std::size_t size) {
  return size == 0 || gzwrite(out, bytes, static_cast<unsigned>(size)) == static_cast<int>(size);
}

}  // namespace

std::string WriteArchive(const std::string& folder, const std::string& prefix,
                         const std::string& file) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  gzFile const out = gzopen(file.c_str(), "wb6");
  if (out == nullptr) return file + " cannot be written";
  bool is_good = true;
  const std::array<char, 2 * kBlock> zeros{};
  for (const auto& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
    const std::string name = prefix + "/" + path.filename().string();
    const auto header = Header(name, bytes.size(), std::time(nullptr));
    is_good = is_good && Append(out, header.data(), kBlock) &&
              Append(out, bytes.data(), bytes.size()) &&
              Append(out, zeros.data(), (kBlock - bytes.size() % kBlock) % kBlock);
  }
  is_good = is_good && Append(out, zeros.data(), zeros.size());
  is_good = gzclose(out) == Z_OK && is_good;
  return is_good ? "" : file + " cannot be written completely";
}

}  // namespace quire::gpu_run
