#pragma once

// A library that is opened with dlopen when a feature needs it, instead of being linked. It is
// never closed, because its threads may outlive the code that opened it.
//
//   QUIRE_ASSIGN_OR_RETURN(SharedLibrary opened, SharedLibrary::Open("fp8 matmul", "libx.so.1"));
//   opened.Resolve("x_create", api.create); QUIRE_RETURN_IF_ERROR(opened.status());
//
// Threads: one at a time.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire {

class SharedLibrary {
 public:
  // `user` names the feature. If the library cannot be opened, returns NOT_FOUND "<user> needs
  // <name>: ...".
  static absl::StatusOr<SharedLibrary> Open(absl::string_view user, absl::string_view name);

  // Sets `function` to the library's function `symbol`, or to null if it does not exist.
  template <typename Function>
  void Resolve(const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(Find(symbol));
  }
  // OK, or NOT_FOUND with the first function that Resolve did not find.
  const absl::Status& status() const { return status_; }

 private:
  SharedLibrary(absl::string_view user, absl::string_view name, void* handle)
      : user_(user), name_(name), handle_(handle) {}
  void* Find(const char* symbol);

  std::string user_, name_;
  void* handle_;
  absl::Status status_;
};

}  // namespace quire
