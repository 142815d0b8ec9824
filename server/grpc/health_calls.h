#pragma once

// Calls of grpc.health.v1 that a listener makes to itself.
//
// Place:      a GrpcListener's own.
// Invariants: channels and calls are given up on the threads of Begin and End only, after their
//             answers. In a callback it would end the process: the last channel takes gRPC's
//             callback threads with it, and the one that runs the callback is among them (gRPC
//             1.51: "assertion failed: prior > 0").
// Threads:    Begin and End from one thread at a time; answers come on threads of gRPC.

#include <functional>
#include <list>
#include <memory>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace quire::server {

class HealthCalls {
 public:
  using Answer = std::function<void(const grpc::Status&)>;

  HealthCalls();
  ~HealthCalls();  // as End

  // Asks for the health of "". `answer` is called once, at the latest after `timeout` or in End.
  void Begin(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout, Answer answer);

  // Cancels the calls under way and waits for their answers.
  void End();

 private:
  struct Call;

  void GiveUpAnswered();

  Mutex mutex_;
  CondVar answered_;
  std::list<std::unique_ptr<Call>> calls_;  // changed by Begin and End only
};

}  // namespace quire::server
