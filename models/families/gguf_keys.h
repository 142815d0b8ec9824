#pragma once

// Metadata keys of a GGUF file that begin with the name of its architecture, such as "llama.".

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/gguf.h"

namespace quire::models {

// Place:    between GgufFile and the readers of the configuration.
// Threads:  immutable.
// Lifetime: a view; the GgufFile must outlive it.
class GgufKeys {
 public:
  GgufKeys(const formats::GgufFile& gguf, absl::string_view architecture);

  // Returns "llama.block_count" for "block_count". All functions take a key without this prefix.
  std::string Name(absl::string_view key) const;
  bool Has(absl::string_view key) const;
  const formats::GgufFile& gguf() const { return gguf_; }
  // Returns the tensor "blk.LAYER.NAME", or null if the file does not have it.
  const formats::GgufTensor* LayerTensor(std::size_t layer, absl::string_view name) const;

  // Errors name the key and the range. The count is at least 1.
  absl::StatusOr<std::uint32_t> Count(absl::string_view key, std::uint32_t high) const;
  // Returns a count of at least `low`, or `fallback` for an absent key.
  absl::StatusOr<std::uint32_t> CountOr(absl::string_view key, std::uint32_t high,
                                        std::uint32_t fallback, std::uint32_t low = 1) const;
  // Returns a positive number, or `fallback` for an absent key.
  absl::StatusOr<double> Positive(absl::string_view key, double fallback) const;
  // Returns a number for each of `num_blocks` blocks: the elements of an array, or the value itself
  // for every block if it is an integer. Returns an empty vector for an absent key.
  absl::StatusOr<std::vector<std::uint32_t>> PerBlock(absl::string_view key, std::size_t num_blocks,
                                                      std::uint32_t high) const;
  // Returns the number that all blocks share. Blocks with 0 do not use the number and are ignored.
  // Returns UNIMPLEMENTED if blocks differ, and `fallback` for an absent key.
  absl::StatusOr<std::uint32_t> SameInBlocks(absl::string_view key, std::size_t num_blocks,
                                             std::uint32_t high, std::uint32_t fallback) const;
  absl::Status Error(absl::string_view key, absl::string_view problem) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view value,
                           absl::string_view supported) const;

 private:
  const formats::GgufFile& gguf_;
  const std::string prefix_;
};

}  // namespace quire::models
