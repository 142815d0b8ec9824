#include "server/descriptor_limit.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/file_descriptor.h"
#include "base/logging.h"

namespace quire::server {
namespace {

// Descriptors reserved for other uses: model files, logs, probes, preallocation
// (watched_descriptors.h), and the gRPC connections that max_connections does not count (lingering
// ones and self-checks, grpc_acceptor.h).
constexpr std::int64_t kOtherDescriptors = 512;
constexpr std::int64_t kDescriptorsPerConnection = 3;  // the client's socket and a socket pair
constexpr std::int64_t kMinGrpcConnections = 16;
// Maximum size of the prepared descriptor table. The default connection limits need no more. The
// table uses half a MiB of kernel memory.
constexpr rlim_t kPreparedDescriptors = 1 << 16;

// Enlarges the kernel's descriptor table by opening a high descriptor. Returns 0, or errno on
// failure.
int GrowDescriptorTable(rlim_t limit) {
  const FileDescriptor any(eventfd(0, EFD_CLOEXEC));
  if (any.fd < 0) return errno;
  const auto last = static_cast<int>(std::min(limit, kPreparedDescriptors)) - 1;
  const FileDescriptor highest(fcntl(any.fd, F_DUPFD_CLOEXEC, last));
  return highest.fd < 0 ? errno : 0;
}

}  // namespace

RaisedDescriptorLimit RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {.read_error = errno};
  RaisedDescriptorLimit result = {.from = limit.rlim_cur, .to = limit.rlim_max};
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    result.raise_error = errno;
  } else {
    result.table_error = GrowDescriptorTable(limit.rlim_max);
  }
  return result;
}

void LogDescriptorLimit(const RaisedDescriptorLimit& limit) {
  if (limit.read_error != 0) {
    return log::Warn("server", "cannot read the limit of open files",
                     {{"error", std::strerror(limit.read_error)}});
  }
  if (limit.raise_error != 0) {
    return log::Warn(
        "server", "cannot raise the limit of open files",
        {{"soft", limit.from}, {"hard", limit.to}, {"error", std::strerror(limit.raise_error)}});
  }
  if (limit.to != limit.from) {
    log::Info("server", "limit of open files raised", {{"from", limit.from}, {"to", limit.to}});
  }
  if (limit.table_error != 0) {
    log::Warn("server", "cannot enlarge the descriptor table",
              {{"error", std::strerror(limit.table_error)}});
  }
}

std::int32_t LimitGrpcConnections(std::int32_t wanted, int num_listeners,
                                  std::int32_t http_connections, bool wanted_is_default) {
  rlimit limit = {};
  QUIRE_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto descriptors = static_cast<std::int64_t>(limit.rlim_cur);
  const std::int64_t share = (descriptors - kOtherDescriptors - http_connections) / num_listeners;
  const std::int64_t possible = std::max(share / kDescriptorsPerConnection, kMinGrpcConnections);
  if (possible >= wanted) return wanted;
  // The default limit suits large servers. Most systems have too few descriptors for it, so a lower
  // default is not worth a warning.
  log::Write(wanted_is_default ? log::Level::kInfo : log::Level::kWarn, "server",
             "too few descriptors for server.grpc.max_connections; raise the limit of open files",
             {{"max_connections", wanted},
              {"possible", possible},
              {"grpc_listeners", num_listeners},
              {"http_connections", http_connections},
              {"descriptors", descriptors}});
  return static_cast<std::int32_t>(possible);
}

}  // namespace quire::server
