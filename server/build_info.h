#pragma once

#include <string>

namespace quire::server {

extern const char* const kVersion;      // "0.1.0"
extern const char* const kGitCommit;    // commit of the source tree, or "unknown"
extern const char* const kBackends;     // "cpu", or "cpu cuda"
extern const char* const kCudaVersion;  // CUDA version of the build, such as "13.0", or "none"
extern const char* const kBuildType;    // CMake build type and backends, such as "Release cpu"

// Versions of the libraries that this process is linked with.
std::string GrpcVersion();
std::string ProtobufVersion();

}  // namespace quire::server
