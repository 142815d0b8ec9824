#pragma once

// Clears pages, and copies pages inside one pool, such as the last page of a forked sequence.
// Scales of a quantized pool are copied with the values.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

struct PageCopyItem {
  std::uint32_t source;       // page id; if it is the null page, zeros are written
  std::uint32_t destination;  // page id, not the null page
  std::uint32_t num_rows;     // number of tokens to copy, from the first on; at most the page size
};

// For each item, in order, copies K and V of the first num_rows tokens of a page, in all layers.
// Other tokens of the destination are unchanged. An item reads the results of earlier items. Copies
// nothing and returns INVALID_ARGUMENT if a page is outside the pool, a destination is the null
// page, or num_rows exceeds the page size.
absl::Status CopyPages(const Backend& backend, const AnyKvCollection& pool,
                       std::span<const PageCopyItem> items);

// Zeroes K and V of the pages in all layers, and their scales. Errors are those of CopyPages.
absl::Status ZeroPages(const Backend& backend, const AnyKvCollection& pool,
                       std::span<const std::uint32_t> pages);

struct PageCopyParams {
  const AnyKvCollection* pool;
  std::uint32_t source;
  std::uint32_t destination;
  std::uint32_t num_rows;
};

// Like CopyPages and ZeroPages, for one page.
absl::Status CopyPage(const Backend& backend, const PageCopyParams& params);
absl::Status ZeroPage(const Backend& backend, const AnyKvCollection& pool, std::uint32_t page);

namespace internal {

// REQUIRES: the arguments were checked.
absl::Status CopyPagesCuda(const CudaContext& context, const AnyKvCollection& pool,
                           std::span<const PageCopyItem> items);
absl::Status ZeroPagesCuda(const CudaContext& context, const AnyKvCollection& pool,
                           std::span<const std::uint32_t> pages);

}  // namespace internal
}  // namespace quire::kernels
