#include "server/build_info.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/version_info.h>

namespace quire::server {

const char* const kVersion = QUIRE_VERSION;
const char* const kGitCommit = QUIRE_GIT_COMMIT;
#ifdef QUIRE_HAS_CUDA
const char* const kBackends = "cpu cuda";
const char* const kCudaVersion = QUIRE_CUDA_VERSION;
const char* const kBuildType = QUIRE_BUILD_TYPE " cpu cuda";
#else
const char* const kBackends = "cpu";
const char* const kCudaVersion = "none";
const char* const kBuildType = QUIRE_BUILD_TYPE " cpu";
#endif

std::string GrpcVersion() {
  return GRPC_CPP_VERSION_STRING;
}

std::string ProtobufVersion() {
  return google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
}

}  // namespace quire::server
