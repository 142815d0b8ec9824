#pragma once

// The services of quired in the test's process: the embedded model, real listeners on free ports,
// and a client for each service.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/probe.h"
#include "quire/v1/admin.grpc.pb.h"
#include "quire/v1/generation.grpc.pb.h"
#include "server/api/drain_control.h"
#include "server/auth/authenticator.h"
#include "server/config/live_config.h"
#include "server/engine_stack.h"
#include "server/grpc/admin_service.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/grpc_listener.h"

namespace quire::server {

// One Generate call, from the first message to its status.
struct Answer {
  std::vector<v1::GenerateResponse> messages;
  grpc::Status status;
  std::multimap<std::string, std::string> initial, trailers;

  // Returns the joined output of a choice, from its deltas and its completion.
  std::string Text(int index = 0) const;
  std::vector<std::int32_t> Ids(int index = 0) const;
  const v1::Started* started() const;
  const v1::Completed* completed(int index = 0) const;
  int CountDeltas() const;
  // Returns ErrorInfo.reason, found in the bytes of the details.
  bool HasReason(const std::string& reason) const;
};

class ServiceTest : public ::testing::Test {
 protected:
  // `sets` override small defaults: f32 pages of 16 tokens, one compute thread.
  explicit ServiceTest(std::vector<std::string> sets = {});
  ~ServiceTest() override;

  // Returns a greedy request for `max_tokens` tokens after `text`.
  static v1::GenerateRequest Request(const std::string& text, int max_tokens);

  Answer Generate(const v1::GenerateRequest& request, grpc::ClientContext* context) const;
  Answer Generate(const v1::GenerateRequest& request) const;

  v1::Stats Stats() const;
  // Waits until nothing is live and returns the number of pages still in use.
  int UsedPagesWhenIdle() const;
  double Metric(const std::string& line_start) const;
  // Waits until a counter has the value. The server finishes a call after the client has its
  // status.
  bool MetricBecomes(const std::string& line_start, double value) const;

  const ServedModel& served() const { return stack_->served(); }

  MachineClock clock_;
  probe::Registry registry_;
  std::unique_ptr<LiveConfig> config_;
  std::unique_ptr<EngineStack> stack_;
  std::unique_ptr<ServingState> state_;
  std::unique_ptr<ServerProbe> probe_;
  std::unique_ptr<DrainControl> drain_;
  PeerTable peers_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<grpc::Service> generation_service_, admin_service_;
  std::unique_ptr<GrpcListener> listener_;
  std::unique_ptr<v1::GenerationService::Stub> generation_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

}  // namespace quire::server
