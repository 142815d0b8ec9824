#include "base/shared_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace quire {

absl::StatusOr<SharedLibrary> SharedLibrary::Open(absl::string_view user, absl::string_view name) {
  void* const handle = dlopen(std::string(name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the result of dlerror is thread-local.
    return absl::NotFoundError(absl::StrCat(user, " needs ", name, ": ", dlerror()));
  }
  return SharedLibrary(user, name, handle);
}

void* SharedLibrary::Find(const char* symbol) {
  void* const found = dlsym(handle_, symbol);
  if (found == nullptr && status_.ok()) {
    status_ =
        absl::NotFoundError(absl::StrCat(user_, " needs ", symbol, ", which ", name_, " lacks"));
  }
  return found;
}

}  // namespace quire
