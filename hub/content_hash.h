#pragma once

// The hash that names a blob: SHA-256 for LFS files, git SHA-1 for others. The git SHA-1 is the
// SHA-1 of "blob SIZE\0" followed by the content.
//
// Threads: one.
// Source:  https://git-scm.com/book/en/v2/Git-Internals-Git-Objects

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace quire::hub {

class ContentHash {
 public:
  // Prepares to compute a hash of the same kind as `expected`, for a file of `size_bytes`.
  // REQUIRES: IsContentHash(expected), see model_name.h.
  ContentHash(absl::string_view expected, std::int64_t size_bytes);
  ~ContentHash();
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;

  void Add(absl::string_view bytes);
  // Returns the hash in hexadecimal digits. Called once, at the end.
  std::string Finish();

 private:
  struct Deleter {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Deleter> context_;
};

}  // namespace quire::hub
