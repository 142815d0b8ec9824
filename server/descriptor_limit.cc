#include "server/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/logging.h"

namespace quire::server {
namespace {

// For everything else: models, logs, probes, rows of watched descriptors, and connections that are
// about to end or are told why they are refused, which have at most 160 in each of two listeners
// (grpc_acceptor.cc).
constexpr std::int64_t kOtherDescriptors = 512;
constexpr std::int64_t kDescriptorsOfCall = 3;  // a connection's own and a socket pair
constexpr std::int64_t kMinGrpcDescriptors = 16 * kDescriptorsOfCall;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return log::Warn("server", "limit of open files unknown", {{"error", std::strerror(errno)}});
  }
  const rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    return log::Warn("server", "limit of open files not raised",
                     {{"soft", static_cast<std::uint64_t>(limit.rlim_cur)},
                      {"hard", static_cast<std::uint64_t>(limit.rlim_max)},
                      {"error", std::strerror(errno)}});
  }
  log::Info("server", "limit of open files raised",
            {{"from", static_cast<std::uint64_t>(limit.rlim_cur)},
             {"to", static_cast<std::uint64_t>(raised.rlim_cur)}});
}

GrpcConnectionLimit LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                         std::int32_t http_connections) {
  rlimit limit = {};
  QUIRE_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur == RLIM_INFINITY) return {wanted, kDescriptorsOfCall * wanted};
  const auto descriptors = static_cast<std::int64_t>(limit.rlim_cur);
  const std::int64_t share = std::max(
      (descriptors - kOtherDescriptors - http_connections) / num_listeners, kMinGrpcDescriptors);
  if (share >= kDescriptorsOfCall * wanted) return {wanted, share};
  const std::int64_t possible = std::min<std::int64_t>(wanted, share);
  log::Warn(
      "server",
      "fewer connections than server.grpc.max_connections can be open, or have calls, for want "
      "of descriptors",
      {{"max_connections", wanted},
       {"possible", possible},
       {"possible_with_calls", share / kDescriptorsOfCall},
       {"grpc_listeners", num_listeners},
       {"http_connections", http_connections},
       {"descriptors", descriptors}});
  return {static_cast<std::int32_t>(possible), share};
}

}  // namespace quire::server
