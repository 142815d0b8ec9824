#include "server/grpc/call_util.h"

#include <google/protobuf/message.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <vector>

#include "absl/time/time.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "quire/v1/types.pb.h"
#include "server/api/response_translator.h"
#include "server/api/wire_check.h"
#include "server/edge/peer_table.h"

namespace quire::server {
namespace {

Credentials ReadCredentials(const grpc::CallbackServerContext& call, const Peer& peer) {
  return {.bearer_token = std::string(BearerToken(MetadataValue(call, "authorization"))),
          .certificate_name = peer.certificate_name,
          .tenant_metadata = MetadataValue(call, "quire-tenant"),
          .is_local_socket = peer.is_local_socket};
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  // The client half-closed or reset the call before it sent a message.
  if (!bytes.Valid()) {
    return WithReason(absl::InvalidArgumentError("the call has no request message"),
                      Reason::kPromptMissing, {{"field", "request"}});
  }
  {
    grpc::ByteBuffer unread = bytes;  // shares the bytes; the reader needs a mutable ByteBuffer
    grpc::ProtoBufferReader reader(&unread);
    if (!reader.status().ok()) return absl::InternalError(reader.status().error_message());
    if (message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  }
  std::vector<grpc::Slice> slices;
  const grpc::Status dumped = bytes.Dump(&slices);
  if (!dumped.ok()) return absl::InternalError(dumped.error_message());
  std::string flat;
  flat.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return ExplainParseFailure(message->GetDescriptor(), flat);
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  // gRPC's own serialization would copy the bytes.
  auto bytes = std::make_unique<std::string>(message.SerializeAsString());
  char* const data = bytes->data();
  const std::size_t size = bytes->size();
  const grpc::Slice slice(
      data, size, [](void* owner) { delete static_cast<std::string*>(owner); }, bytes.release());
  return grpc::ByteBuffer(&slice, 1);
}

std::string MetadataValue(const grpc::CallbackServerContext& call, const char* key) {
  const auto entry = call.client_metadata().find(key);
  return entry == call.client_metadata().end()
             ? std::string()
             : std::string(entry->second.data(), entry->second.size());
}

absl::StatusOr<Identity> Authorize(const HandlerContext& context,
                                   const grpc::CallbackServerContext& call,
                                   absl::string_view method, Scope scope) {
  const Peer peer = context.peers->Find(call.peer());
  absl::StatusOr<Identity> caller =
      context.authenticator->Authenticate(ReadCredentials(call, peer), scope);
  if (!caller.ok()) {
    log::Info("auth", "call refused",
              {{"method", method}, {"peer", peer.address}, {"why", caller.status().message()}});
  }
  return caller;
}

CallInfo ReadCallInfo(const grpc::CallbackServerContext& call, const Identity& caller,
                      const Clock& clock) {
  CallInfo info;
  info.principal = caller.principal;
  info.tenant = caller.tenant;
  info.metadata_request_id = MetadataValue(call, "x-request-id");
  info.accept_time = clock.Now();
  const std::chrono::system_clock::time_point deadline = call.deadline();
  // gRPC represents "no deadline" by the greatest time.
  if (deadline != std::chrono::system_clock::time_point::max()) {
    info.grpc_deadline = clock.FromWall(absl::FromChrono(deadline));
  }
  return info;
}

std::chrono::system_clock::time_point ToGrpcTime(absl::Time monotonic) {
  return absl::ToChronoTime(MachineClock().ToWall(monotonic));
}

void AddUsageTrailer(grpc::CallbackServerContext* call, const engine::Usage& usage) {
  v1::Usage message;
  ToProto(usage, &message);
  call->AddTrailingMetadata("quire-usage-bin", message.SerializeAsString());
}

}  // namespace quire::server
