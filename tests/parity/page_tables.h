#pragma once

// The lookup tables of a replay over shuffled page ids, a minimal replacement of the cache manager.
// A row owns exactly the pages that its tokens read and write. A page that no window reaches any
// more is released at once, poisoned and reused.

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/strong_id.h"
#include "cache_manager/views/kv_step_inputs.h"
#include "models/blocks/layer_groups.h"

namespace quire::models::parity {

class PageTables {
 public:
  using Poison = std::function<absl::Status(const std::vector<std::uint32_t>& pages)>;

  struct Options {
    std::vector<LayerGroup> groups;
    std::uint32_t page_size = 0;
    std::uint32_t num_blocks = 0;  // of the pool, including the null page
    std::uint32_t max_rows = 0;    // of the tables
    std::uint32_t num_rows = 0;    // number of used rows
    std::uint32_t row_pages = 0;   // maximum per row and group
    std::uint32_t seed = 0;
    Poison poison = nullptr;
  };

  // Poisons all pages.
  static absl::StatusOr<PageTables> Create(Options options);

  BatchRow batch_row(std::size_t i) const { return BatchRow{rows_[i]}; }
  // Returns the arrays for a step in which row i has `cached[i]` tokens, one entry per layer group.
  absl::StatusOr<std::span<const cache::KvStepInputs>> Inputs(
      const std::vector<std::uint32_t>& cached, const std::vector<std::uint32_t>& fresh);
  std::uint64_t released_pages() const { return released_pages_; }
  // Gives row `a` the first page of row `b`, in the first layer group.
  void ShareFirstPage(std::size_t a, std::size_t b) { columns(a, 0)[0] = columns(b, 0)[0]; }

 private:
  // Columns of a row that have pages.
  struct Held {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
  };

  explicit PageTables(Options options) : options_(std::move(options)), random_(options_.seed) {}

  // Returns the row's part of a group's table.
  std::uint32_t* columns(std::size_t row, std::size_t group) {
    return static_cast<std::uint32_t*>(table_.data()) +
           (group * options_.max_rows + rows_[row]) * inputs_[0].lookup_stride;
  }
  absl::Status HoldPages(std::size_t row, std::size_t group, std::uint32_t cached,
                         std::uint32_t end);

  Options options_;
  std::mt19937 random_;
  std::vector<std::uint32_t> rows_;  // the batch row of each
  std::vector<std::uint32_t> free_pages_;
  std::vector<Held> held_;  // [rows, groups]
  std::uint64_t released_pages_ = 0;
  DeviceBuffer table_;  // [groups, max_rows, stride]
  std::vector<std::uint32_t> lengths_;
  std::vector<cache::KvStepInputs> inputs_;
};

}  // namespace quire::models::parity
