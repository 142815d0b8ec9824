#include "server/preloaded_constraints.h"

#include <atomic>
#include <stop_token>
#include <string>
#include <vector>

#include "engine/constraint/constraint_compiler.h"
#include "gtest/gtest.h"
#include "tests/engine/constraint/table_constraint.h"

namespace quire::server {
namespace {

TEST(PreloadedConstraintsTest, CompilesEachOnceAndCachesIt) {
  std::atomic<int> count{0};
  const auto build = [&](const engine::ConstraintSpec&,
                         const std::stop_token&) -> engine::ConstraintCompiler::Result {
    ++count;
    return engine::MakeTableConstraint(64, {{1}}, 100);
  };
  engine::ConstraintCompiler compiler({}, build, nullptr);
  std::vector<engine::ConstraintSpec> specs;
  for (const char* text : {"a", "b", "c", "d", "a"}) {
    engine::ConstraintSpec& spec = specs.emplace_back();
    spec.kind = engine::ConstraintKind::kRegex;
    spec.text = text;
  }
  const absl::Status status = PreloadConstraints(specs, /*reasoning=*/nullptr, &compiler);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(count, 4);
  EXPECT_EQ(compiler.GetCounts().cached_constraints, 4);
}

}  // namespace
}  // namespace quire::server
