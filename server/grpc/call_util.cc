#include "server/grpc/call_util.h"

#include <google/protobuf/message.h>

#include <chrono>
#include <vector>

#include "absl/time/time.h"
#include "quire/v1/types.pb.h"
#include "server/api/response_translator.h"
#include "server/api/wire_check.h"

namespace quire::server {

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  const grpc::Status dumped = bytes.Dump(&slices);
  if (!dumped.ok()) return absl::InternalError(dumped.error_message());
  std::string flat;
  flat.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  if (message->ParseFromString(flat)) return absl::OkStatus();
  return ExplainParseFailure(message->GetDescriptor(), flat);
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::string MetadataValue(const grpc::CallbackServerContext& call, const char* key) {
  const auto entry = call.client_metadata().find(key);
  return entry == call.client_metadata().end()
             ? std::string()
             : std::string(entry->second.data(), entry->second.size());
}

CallInfo ReadCallInfo(const grpc::CallbackServerContext& call, absl::Time now) {
  CallInfo info;
  info.metadata_request_id = MetadataValue(call, "x-request-id");
  info.accept_time = now;
  const std::chrono::system_clock::time_point deadline = call.deadline();
  // gRPC writes "no deadline" as the greatest time.
  if (deadline != std::chrono::system_clock::time_point::max()) {
    info.grpc_deadline = absl::FromChrono(deadline);
  }
  return info;
}

void AddUsageTrailer(grpc::CallbackServerContext* call, const engine::Usage& usage) {
  v1::Usage message;
  ToProto(usage, &message);
  call->AddTrailingMetadata("quire-usage-bin", message.SerializeAsString());
}

}  // namespace quire::server
