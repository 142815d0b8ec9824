#pragma once

// Calls of grpc.health.v1 that a listener makes to itself.
//
// Place:      inside GrpcListener.
// Invariants: channels and calls are destroyed only by Begin and End, after the calls were
//             answered. Destroying them in a callback would abort the process. gRPC destroys its
//             callback threads together with the last channel. One of them would be the thread that
//             runs the callback (gRPC 1.51: "assertion failed: prior > 0").
// Threads:    one thread at a time calls Begin and End. Answers arrive on threads of gRPC.

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
  ~HealthCalls();  // calls End

  // Requests the health of "". `answer` is called once, at the latest after `timeout` or in End.
  void Begin(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout, Answer answer);

  // Cancels the pending calls and waits for their answers.
  void End();

 private:
  struct Call;

  void DestroyAnswered();

  Mutex mutex_;
  CondVar answered_;
  std::list<std::unique_ptr<Call>> calls_;  // changed by Begin and End only
};

}  // namespace quire::server
