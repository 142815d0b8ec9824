#pragma once

// The row table of a tile of consecutive key positions, with one entry per page that the tile
// touches.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/check.h"
#include "base/host_device.h"
#include "base/vec.h"
#include "cache_manager/views/kv_params.h"

namespace quire::cache {

// A page size P that is a constant, or a field if P is kDynamicExtent. A dynamic page size is a
// power of two, so that t / P and t mod P are a shift and a mask.
template <std::uint32_t P>
struct KvPageExtent {
  QUIRE_HOST_DEVICE constexpr std::uint32_t size() const { return P; }
  QUIRE_HOST_DEVICE constexpr std::uint32_t page_of(std::uint32_t t) const { return t / P; }
  QUIRE_HOST_DEVICE constexpr std::uint32_t offset_of(std::uint32_t t) const { return t % P; }
};
template <>
struct KvPageExtent<kDynamicExtent> {
  std::uint32_t shift = 0;
  // REQUIRES: size is a power of two.
  static constexpr KvPageExtent FromSize(std::uint32_t size) {
    return KvPageExtent{static_cast<std::uint32_t>(std::countr_zero(size))};
  }
  QUIRE_HOST_DEVICE constexpr std::uint32_t size() const { return 1u << shift; }
  QUIRE_HOST_DEVICE constexpr std::uint32_t page_of(std::uint32_t t) const { return t >> shift; }
  QUIRE_HOST_DEVICE constexpr std::uint32_t offset_of(std::uint32_t t) const {
    return t & (size() - 1);
  }
};

// Returns the number of tile rows that one table entry covers. It is the whole tile if the cache
// has no pages (P = 0) or the tile is within one page.
constexpr std::uint32_t TileEffPage(std::uint32_t bn, std::uint32_t p) {
  return p == 0 || p >= bn ? bn : p;
}

// True if a tile of bn rows over pages of p rows has a row table.
constexpr bool ValidTile(std::uint32_t bn, std::uint32_t p, bool pair_cta) {
  if (bn == 0 || (pair_cta && bn % 2 != 0)) return false;
  if (p == kDynamicExtent) return true;  // checked when the table is filled
  if (p != 0 && bn % p != 0 && p % bn != 0) return false;
  const std::uint32_t pages = bn / TileEffPage(bn, p);
  return pages <= kMaxTilePages && (!pair_cta || pages == 1 || pages % 2 == 0);
}

// True if `alignment` is sufficient for the base of a tile. A tile of several pages must start at a
// page boundary, and a smaller tile must not cross one.
constexpr bool ValidTileAlignment(std::uint32_t bn, std::uint32_t p, std::uint32_t alignment) {
  if (alignment == 0) return false;
  if (p == kDynamicExtent) return true;
  return alignment % (p == 0 ? bn : std::min(bn, p)) == 0;
}

// The row table of BN consecutive positions of one batch row over pages of P rows. With PairCta two
// thread blocks share the tile. The leader loads the first half of the K rows and the other thread
// block the second half.
template <std::uint32_t BN, std::uint32_t P, bool PairCta = false, bool IsLeader = true>
struct PagedRowIndices {
  static_assert(ValidTile(BN, P, PairCta));
  static constexpr std::uint32_t kEffPage = TileEffPage(BN, P);
  static constexpr std::uint32_t kNumPages = BN / kEffPage;
  static constexpr std::uint32_t kCtaGroup = PairCta ? 2 : 1;

  std::uint32_t rows[kNumPages];

  QUIRE_HOST_DEVICE static constexpr std::uint32_t num_pages() { return kNumPages; }
  QUIRE_HOST_DEVICE static constexpr std::uint32_t eff_page() { return kEffPage; }

  // REQUIRES: offset < BN.
  QUIRE_HOST_DEVICE constexpr std::uint32_t get_row(std::uint32_t offset) const {
    QUIRE_DCHECK(offset < BN);
    if constexpr (kNumPages == 1) {
      return rows[0] + offset;
    } else {
      return rows[offset / kEffPage] + offset % kEffPage;
    }
  }
  // Returns the row of this thread block's share of K. REQUIRES: offset < BN / kCtaGroup.
  QUIRE_HOST_DEVICE constexpr std::uint32_t cta_row(std::uint32_t offset) const {
    QUIRE_DCHECK(offset < BN / kCtaGroup);
    return get_row(offset + (IsLeader ? 0 : BN / 2));
  }
  // Returns the table of the SubBN rows from `offset` on. If the result has one entry, that entry
  // is valid up to the end of its page. REQUIRES: if the result has several entries, `offset` is a
  // multiple of eff_page().
  template <std::uint32_t SubBN>
  requires(SubBN <= BN && ValidTile(SubBN, P, false))
      QUIRE_HOST_DEVICE constexpr PagedRowIndices<SubBN, P> sub_rows(std::uint32_t offset) const {
    using Sub = PagedRowIndices<SubBN, P>;
    QUIRE_DCHECK(offset + SubBN <= BN);
    QUIRE_DCHECK(Sub::kNumPages == 1 || offset % kEffPage == 0);
    Sub sub{};
    for (std::uint32_t i = 0; i < Sub::kNumPages; ++i) {
      sub.rows[i] = get_row(offset + i * Sub::kEffPage);
    }
    return sub;
  }
};

// The row table over pages whose size is known at run time, with up to kMaxTilePages entries.
template <std::uint32_t BN, bool PairCta, bool IsLeader>
struct PagedRowIndices<BN, kDynamicExtent, PairCta, IsLeader> {
  static_assert(ValidTile(BN, kDynamicExtent, PairCta));
  static constexpr std::uint32_t kCtaGroup = PairCta ? 2 : 1;

  std::uint32_t rows[kMaxTilePages];
  KvPageExtent<kDynamicExtent> page;

  QUIRE_HOST_DEVICE constexpr std::uint32_t eff_page() const {
    return TileEffPage(BN, page.size());
  }
  QUIRE_HOST_DEVICE constexpr std::uint32_t num_pages() const {
    return page.size() >= BN ? 1 : BN >> page.shift;
  }
  QUIRE_HOST_DEVICE constexpr std::uint32_t get_row(std::uint32_t offset) const {
    QUIRE_DCHECK(offset < BN);
    if (page.size() >= BN) return rows[0] + offset;
    return rows[page.page_of(offset)] + page.offset_of(offset);
  }
  QUIRE_HOST_DEVICE constexpr std::uint32_t cta_row(std::uint32_t offset) const {
    QUIRE_DCHECK(offset < BN / kCtaGroup);
    return get_row(offset + (IsLeader ? 0 : BN / 2));
  }
  template <std::uint32_t SubBN>
  requires(SubBN <= BN && ValidTile(SubBN, kDynamicExtent, false))
      QUIRE_HOST_DEVICE constexpr PagedRowIndices<SubBN, kDynamicExtent> sub_rows(
          std::uint32_t offset) const {
    QUIRE_DCHECK(offset + SubBN <= BN);
    PagedRowIndices<SubBN, kDynamicExtent> sub{};
    sub.page = page;
    QUIRE_DCHECK(sub.num_pages() == 1 || offset % eff_page() == 0);
    for (std::uint32_t i = 0; i < sub.num_pages(); ++i) {
      sub.rows[i] = get_row(offset + i * sub.eff_page());
    }
    return sub;
  }
};

namespace internal {

// Returns the largest power of two that divides x; 0 for 0.
constexpr std::uint32_t PowerOfTwoIn(std::uint32_t x) {
  return x & (~x + 1);
}

// Returns the number of table entries that one read loads. It is limited by the size of the tile,
// the alignment of its base, and the 32 bytes of a read.
constexpr std::uint32_t TableChunk(std::uint32_t num_pages, std::uint32_t p,
                                   std::uint32_t alignment) {
  return std::min({PowerOfTwoIn(num_pages), PowerOfTwoIn(alignment / p), std::uint32_t{8}});
}

}  // namespace internal

// One sequence's row of a lookup table, and the values that convert its entries to view rows.
template <std::uint32_t P>
struct KvTableRow {
  const std::uint32_t* entries = nullptr;
  std::uint32_t stride = 0;         // columns, padding included
  std::uint32_t rows_per_page = 0;  // R
  KvPageExtent<P> page{};
};

// Returns the row table of the tile at `base`. Entry i is the row of position base + i * eff_page.
// A column without a page has row 0, in the null page. REQUIRES: base % Alignment == 0.
template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta, bool IsLeader, std::uint32_t P>
QUIRE_HOST_DEVICE inline PagedRowIndices<BN, P, PairCta, IsLeader> PopulateTile(
    const KvTableRow<P>& table, std::uint32_t base) {
  PagedRowIndices<BN, P, PairCta, IsLeader> tile{};
  QUIRE_DCHECK(base % Alignment == 0);
  const std::uint32_t first = table.page.page_of(base);
  if constexpr (P == kDynamicExtent) {
    tile.page = table.page;
    const std::uint32_t pages = tile.num_pages();
    QUIRE_DCHECK(ValidTile(BN, table.page.size(), PairCta));
    QUIRE_DCHECK(ValidTileAlignment(BN, table.page.size(), Alignment));
    QUIRE_DCHECK(first + pages <= table.stride);
    for (std::uint32_t i = 0; i < pages; ++i) {
      tile.rows[i] = table.entries[first + i] * table.rows_per_page;
    }
    if (pages == 1) tile.rows[0] += table.page.offset_of(base);
  } else if constexpr (PagedRowIndices<BN, P, PairCta, IsLeader>::kNumPages == 1) {
    QUIRE_DCHECK(first < table.stride);
    tile.rows[0] = table.entries[first] * table.rows_per_page;
    if constexpr (Alignment % P != 0) tile.rows[0] += table.page.offset_of(base);
  } else {
    constexpr std::uint32_t kPages = PagedRowIndices<BN, P, PairCta, IsLeader>::kNumPages;
    constexpr std::uint32_t kChunk = internal::TableChunk(kPages, P, Alignment);
    QUIRE_DCHECK(table.stride % kChunk == 0);
    QUIRE_DCHECK(first % kChunk == 0);
    QUIRE_DCHECK(first + kPages <= table.stride);
    for (std::uint32_t i = 0; i < kPages; i += kChunk) {
#ifdef __CUDA_ARCH__
      const auto ids =
          *reinterpret_cast<const Vec<std::uint32_t, kChunk>*>(table.entries + first + i);
      for (std::uint32_t j = 0; j < kChunk; ++j) {
        tile.rows[i + j] = ids.lane[j] * table.rows_per_page;
      }
#else
      for (std::uint32_t j = 0; j < kChunk; ++j) {
        tile.rows[i + j] = table.entries[first + i + j] * table.rows_per_page;
      }
#endif
    }
  }
  return tile;
}

}  // namespace quire::cache
