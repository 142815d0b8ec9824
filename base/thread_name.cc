#include "base/thread_name.h"

#include <pthread.h>

#include <string>

#include "base/check.h"

namespace quire {

void SetThreadName(absl::string_view name) {
  QUIRE_CHECK(name.size() <= 15);
  // Fails only for names that are too long.
  (void)pthread_setname_np(pthread_self(), std::string(name).c_str());
}

}  // namespace quire
