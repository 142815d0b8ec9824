#include "server/build_info.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/version_info.h>

namespace quire::server {

const char* const kVersion = QUIRE_VERSION;
const char* const kGitCommit = QUIRE_GIT_COMMIT;
const char* const kBuildType = QUIRE_BUILD_TYPE " cpu";

std::string GrpcVersion() { return GRPC_CPP_VERSION_STRING; }

std::string ProtobufVersion() {
  return google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
}

}  // namespace quire::server
