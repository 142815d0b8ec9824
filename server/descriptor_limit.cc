#include "server/descriptor_limit.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/logging.h"

namespace quire::server {

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

}  // namespace quire::server
