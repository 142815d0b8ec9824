#pragma once

// Page copies inside one pool: the tail of a forked sequence, and clean pages.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/kv_dispatch.h"

namespace quire::kernels {

struct PageCopyParams {
  const AnyKvCollection* pool;
  std::uint32_t source;       // page id; the null page gives zeros
  std::uint32_t destination;  // page id, not the null page
  std::uint32_t num_rows;     // first tokens of the page to copy, at most the page size
};

// The first num_rows tokens of a page, K and V of all layers; the rest of the destination stays.
// Returns INVALID_ARGUMENT for a page outside the pool, the null page as destination, or too many
// rows.
absl::Status CopyPage(const Backend& backend, const PageCopyParams& params);

// Every byte of a page's K and V in all layers to zero. Errors as above.
absl::Status ZeroPage(const Backend& backend, const AnyKvCollection& pool, std::uint32_t page);

}  // namespace quire::kernels
