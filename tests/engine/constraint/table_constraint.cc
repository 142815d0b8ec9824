#include "tests/engine/constraint/table_constraint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {
namespace {

using Answers = std::vector<std::vector<std::int32_t>>;

struct Table {
  std::uint32_t vocab_size;
  Answers answers;
};

class TableMatcher final : public ConstraintMatcher {
 public:
  TableMatcher(std::shared_ptr<const Table> table, std::span<const std::int32_t> end_tokens)
      : table_(std::move(table)), end_tokens_(end_tokens.begin(), end_tokens.end()) {}

  absl::Status Accept(std::int32_t token) override {
    if (token < 0 || static_cast<std::uint32_t>(token) >= table_->vocab_size) {
      return absl::InvalidArgumentError("token out of range");
    }
    std::vector<std::uint32_t> words(MaskWords(table_->vocab_size));
    const auto summary = FillMask(words);
    if (!summary.ok()) return summary.status();
    const auto at = static_cast<std::uint32_t>(token);
    if ((words[at / 32] >> (at % 32) & 1) == 0) return absl::InvalidArgumentError("not allowed");
    const bool ends = summary->may_end && IsEnd(token);
    ended_ = ends;
    tokens_.push_back(token);
    return absl::OkStatus();
  }

  absl::StatusOr<MaskSummary> FillMask(std::span<std::uint32_t> words) override {
    QUIRE_CHECK(words.size() == MaskWords(table_->vocab_size));
    std::fill(words.begin(), words.end(), 0);
    MaskSummary summary;
    if (ended_) return MaskSummary{.may_end = true};
    const auto allow = [&](std::int32_t token) {
      words[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
    };
    for (const auto& answer : table_->answers) {
      if (answer.size() < tokens_.size() ||
          !std::equal(tokens_.begin(), tokens_.end(), answer.begin())) {
        continue;
      }
      if (answer.size() == tokens_.size()) {
        summary.may_end = true;
      } else {
        allow(answer[tokens_.size()]);
        summary.may_continue = true;
      }
    }
    if (summary.may_end) std::for_each(end_tokens_.begin(), end_tokens_.end(), allow);
    return summary;
  }

  std::uint32_t num_accepted() const override { return static_cast<std::uint32_t>(tokens_.size()); }
  std::unique_ptr<ConstraintMatcher> Fork() const override {
    return std::make_unique<TableMatcher>(*this);
  }
  absl::Status CheckIntegrity() const override { return absl::OkStatus(); }

 private:
  bool IsEnd(std::int32_t token) const {
    return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
  }

  std::shared_ptr<const Table> table_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<std::int32_t> tokens_;
  bool ended_ = false;  // the last token is an end token
};

class TableConstraint final : public CompiledConstraint {
 public:
  TableConstraint(Table table, std::int64_t memory_bytes)
      : table_(std::make_shared<const Table>(std::move(table))), memory_bytes_(memory_bytes) {}

  std::unique_ptr<ConstraintMatcher> NewMatcher(
      std::span<const std::int32_t> end_tokens) const override {
    return std::make_unique<TableMatcher>(table_, end_tokens);
  }
  std::uint32_t vocab_size() const override { return table_->vocab_size; }
  std::int64_t MemoryBytes() const override { return memory_bytes_; }

 private:
  std::shared_ptr<const Table> table_;
  std::int64_t memory_bytes_;
};

}  // namespace

std::shared_ptr<const CompiledConstraint> MakeTableConstraint(std::uint32_t vocab_size,
                                                              Answers answers,
                                                              std::int64_t memory_bytes) {
  return std::make_shared<TableConstraint>(Table{vocab_size, std::move(answers)}, memory_bytes);
}

}  // namespace quire::engine
