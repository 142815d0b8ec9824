#pragma once

// Reads the recorded results of the reference library case by case and counts the comparisons. The
// folder is QUIRE_KV_CASES, by default the copy in tests/testdata/kv_cache. Its README documents
// every field.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "gtest/gtest.h"

namespace quire::cache::testing {

using Json = nlohmann::json;

// Returns the lines of one file of the folder. Fails the test if there are none.
std::vector<Json> ReadCases(const std::string& file);

// Parses "float32" and other names. Returns kInvalid if quire has no such element.
DType OracleDType(const std::string& name);

// Counts comparisons and intended differences by their row in
// tests/testdata/kv_cache/differences.md.
class Tally {
 public:
  explicit Tally(std::string file) : file_(std::move(file)) {}
  // Prints the counts. Fails the test if nothing was compared.
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  void StartCase(const Json& line);

  template <typename Got, typename Want>
  void Equal(absl::string_view what, const Got& got, const Want& want) {
    ++equal_;
    EXPECT_EQ(Json(got), Json(want)) << id_ << ": " << what;
  }
  // Asserts that quire returns `rule` where the original returned `original`. Rows of kind decision
  // need not differ in every case. The caller checks that they differ somewhere.
  template <typename Got, typename Rule>
  void Decided(absl::string_view row, absl::string_view what, const Got& got, const Rule& rule) {
    ++decided_[std::string(row)];
    EXPECT_EQ(Json(got), Json(rule)) << id_ << ": " << what << ", decided in " << row;
  }

 private:
  std::string file_;
  std::string id_;
  std::int64_t cases_ = 0;
  std::int64_t equal_ = 0;
  std::map<std::string, std::int64_t> decided_;
};

// The original's spelling of a static shape, for example "(-1, 16, 2, 64)".
template <typename Shape>
std::string ShapeText(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + ")";
}

// Calls f.template operator()<BN, Alignment>() for run-time values of both. Returns false if this
// program was not built for the pair.
template <typename F>
bool DispatchTile(std::uint32_t bn, std::uint32_t alignment, F&& f);

namespace internal {

template <std::uint32_t... Values>
struct Sizes {};
using TileSizes = Sizes<16, 32, 64, 96, 128, 192, 256>;

template <std::uint32_t BN, typename F, std::uint32_t... Alignments>
bool DispatchAlignment(std::uint32_t alignment, F& f, Sizes<Alignments...>) {
  return ((alignment == Alignments ? (f.template operator()<BN, Alignments>(), true) : false) ||
          ...);
}

template <typename F, std::uint32_t... Tiles>
bool DispatchSize(std::uint32_t bn, std::uint32_t alignment, F& f, Sizes<Tiles...>) {
  return ((bn == Tiles && DispatchAlignment<Tiles>(alignment, f, TileSizes{})) || ...);
}

}  // namespace internal

template <typename F>
bool DispatchTile(std::uint32_t bn, std::uint32_t alignment, F&& f) {
  return internal::DispatchSize(bn, alignment, f, internal::TileSizes{});
}

}  // namespace quire::cache::testing
