#include "server/preloaded_constraints.h"

#include <atomic>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/constraint/constraint_compiler.h"
#include "gtest/gtest.h"
#include "tests/engine/constraint/table_constraint.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

// By the clock each of them takes longer than the timeout, which is a processor's time.
TEST(PreloadedConstraintsTest, AreCompiledOnABusyMachine) {
  engine::ConstraintOptions options;
  options.compile_threads = 2;
  options.compile_timeout = absl::Milliseconds(200);
  std::atomic<int> count{0};
  const auto build = [&](const engine::ConstraintSpec&,
                         const std::stop_token&) -> engine::ConstraintCompiler::Result {
    const absl::Time end = MonotonicNow() + options.compile_timeout;
    EXPECT_TRUE(testing::WaitUntil([&] { return MonotonicNow() > end; }));
    ++count;
    return engine::MakeTableConstraint(64, {{1}}, 100);
  };
  engine::ConstraintCompiler compiler(options, build, nullptr,
                                      [](std::int64_t) { return absl::ZeroDuration(); });
  std::vector<engine::ConstraintSpec> specs;
  for (const char* text : {"a", "b", "c", "d", "a"}) {
    engine::ConstraintSpec& spec = specs.emplace_back();
    spec.kind = engine::ConstraintKind::kRegex;
    spec.text = text;
  }
  const absl::Status status =
      PreloadConstraints(specs, /*reasoning=*/nullptr, options.compile_threads, &compiler);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(count, 4);
  EXPECT_EQ(compiler.GetCounts().cached, 4);
}

}  // namespace
}  // namespace quire::server
