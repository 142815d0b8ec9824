// The constraint compiler with builds that the tests block, compared with simple counts of the
// requests.

#include "engine/constraint/constraint_compiler.h"

#include <sys/resource.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread_priority.h"
#include "gtest/gtest.h"
#include "tests/engine/constraint/table_constraint.h"
#include "tests/engine/gate.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/waiting.h"
#include "text/tools/tool_format.h"

namespace quire::engine {
namespace {

using quire::testing::WaitUntil;

ConstraintSpec Regex(std::string text) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kRegex;
  spec.text = std::move(text);
  return spec;
}

// Records the calls of `done`, from any thread.
class Answer {
 public:
  ConstraintCompiler::Done Taker() {
    return [this](ConstraintCompiler::Result result) {
      result_ = std::move(result);
      ++calls_;
    };
  }
  const ConstraintCompiler::Result& Await() {
    EXPECT_TRUE(WaitUntil([this] { return calls_ > 0; }));
    return result_;
  }
  int calls() const { return calls_; }

 private:
  ConstraintCompiler::Result result_ = absl::UnknownError("not told");
  std::atomic<int> calls_{0};
};

// Builds that first pass a gate if one exists for their text. "bad..." is rejected, "large..." is
// large.
class Builds {
 public:
  ConstraintCompiler::BuildFunction Function() {
    return [this](const ConstraintSpec& spec,
                  const std::stop_token& stop) -> ConstraintCompiler::Result {
      ++count;
      if (spec.text == "until told to stop") {
        told_to_stop = WaitUntil([&] { return stop.stop_requested(); });
        return absl::CancelledError("told to stop");
      }
      if (const auto gate = gates.find(spec.text); gate != gates.end()) gate->second.Pass();
      if (spec.text.starts_with("bad")) return BadConstraint("compile", "bad");
      return MakeTableConstraint(64, {{1}}, spec.text.starts_with("large") ? 5000 : 100);
    };
  }
  // Call this before the compiler is constructed.
  Gate& Hold(const std::string& text) {
    gates[text].Set(true);
    return gates[text];
  }

  std::atomic<int> count{0};
  std::atomic<bool> told_to_stop{false};
  std::map<std::string, Gate> gates;
};

TEST(ConstraintCompilerTest, BuildsOnceAndThenAnswersFromTheCache) {
  Builds builds;
  ConstraintCompiler compiler({}, builds.Function(), nullptr);
  Answer first, second;
  EXPECT_NE(compiler.Compile(Regex("a"), first.Taker()), 0u);
  ASSERT_TRUE(first.Await().ok());
  EXPECT_EQ(compiler.Compile(Regex("a"), second.Taker()), 0u);
  ASSERT_EQ(second.calls(), 1);
  EXPECT_EQ(second.Await()->get(), first.Await()->get());
  EXPECT_EQ(builds.count, 1);
  EXPECT_EQ(compiler.GetCounts().hits, 1);
  EXPECT_EQ(compiler.GetCounts().misses, 1);
}

TEST(ConstraintCompilerTest, DistinguishesSpecsWithEqualConcatenation) {
  Builds builds;
  ConstraintCompiler compiler({}, builds.Function(), nullptr);
  ConstraintSpec ab, a_b, compact = Regex("x");
  ab.kind = a_b.kind = ConstraintKind::kChoice;
  ab.choices = {"ab"};
  a_b.choices = {"a", "b"};
  compact.whitespace = JsonWhitespace::kCompact;
  const text::ToolFormat* const format = text::FindToolFormat("hermes");
  ConstraintSpec behind = Regex("x"), opened = Regex("x"), forced, held;
  behind.tool_format = opened.tool_format = forced.tool_format = held.tool_format = format;
  behind.starts_after_reasoning = opened.starts_after_reasoning = opened.opens_reasoning = true;
  forced.kind = held.kind = ConstraintKind::kToolCalls;
  held.calls_are_optional = true;
  for (const ConstraintSpec& spec : {ab, a_b, compact, Regex("x"), behind, opened, forced, held}) {
    Answer answer;
    compiler.Compile(spec, answer.Taker());
    EXPECT_TRUE(answer.Await().ok());
  }
  EXPECT_EQ(builds.count, 8);
}

// In schemas, whitespace between two JSON tokens is ignored, and no other whitespace.
TEST(ConstraintCompilerTest, IgnoresWhitespaceBetweenSchemaTokens) {
  Builds builds;
  ConstraintCompiler compiler({}, builds.Function(), nullptr);
  const auto count = [&](const std::string& text, ConstraintKind kind, bool is_tag) {
    ConstraintSpec spec;
    spec.kind = is_tag ? ConstraintKind::kStructuralTags : kind;
    if (is_tag) {
      spec.tags.push_back({.begin = "<a>", .kind = kind, .text = text});
    } else {
      spec.text = text;
    }
    Answer answer;
    compiler.Compile(spec, answer.Taker());
    EXPECT_TRUE(answer.Await().ok());
    return builds.count.load();
  };
  for (const bool is_tag : {false, true}) {
    const auto schema = [&](const std::string& text) {
      return count(text, ConstraintKind::kJsonSchema, is_tag);
    };
    const int before = builds.count;
    for (const char* same : {R"({"a \" {":["b",{}]})", R"( {"a \" {": ["b", {}]})",
                             "{\n\t\"a \\\" {\" :\r\n[ \"b\" ,{ } ] }\n"}) {
      EXPECT_EQ(schema(same), before + 1) << same;
    }
    int builds_now = before + 1;
    for (const char* other : {R"({"a \"  {":["b",{}]})", R"({"a \" { ":["b",{}]})", "tr ue", "true",
                              "1 2", "12", R"("a" "b")", R"("a""b")"}) {
      EXPECT_EQ(schema(other), ++builds_now) << other;
    }
    EXPECT_EQ(count("[ a]", ConstraintKind::kRegex, is_tag), builds_now + 1);
    EXPECT_EQ(count("[a]", ConstraintKind::kRegex, is_tag), builds_now + 2);
  }
}

TEST(ConstraintCompilerTest, ConcurrentEqualSpecsAreBuiltOnce) {
  Builds builds;
  Gate& gate = builds.Hold("slow");
  ConstraintCompiler compiler({}, builds.Function(), nullptr);
  Answer answers[3];
  for (Answer& answer : answers) compiler.Compile(Regex("slow"), answer.Taker());
  gate.Set(false);
  for (Answer& answer : answers) EXPECT_TRUE(answer.Await().ok());
  EXPECT_EQ(builds.count, 1);
}

TEST(ConstraintCompilerTest, BuildsRunAtLowPriority) {
  std::atomic<int> niceness{-1};
  const auto build = [&](const ConstraintSpec&,
                         const std::stop_token&) -> ConstraintCompiler::Result {
    niceness = getpriority(PRIO_PROCESS, 0);
    return MakeTableConstraint(64, {{1}}, 100);
  };
  ConstraintCompiler compiler({}, build, nullptr);
  Answer answer;
  compiler.Compile(Regex("a"), answer.Taker());
  EXPECT_TRUE(answer.Await().ok());
  EXPECT_GE(niceness, kBackgroundNice);
}

TEST(ConstraintCompilerTest, DestructionStopsABuildAndAnswersItsCallers) {
  Builds builds;
  Answer answer;
  {
    ConstraintCompiler compiler({}, builds.Function(), nullptr);
    compiler.Compile(Regex("until told to stop"), answer.Taker());
    ASSERT_TRUE(WaitUntil([&] { return builds.count == 1; }));
    EXPECT_TRUE(compiler.CheckIntegrity().ok());
  }
  EXPECT_TRUE(builds.told_to_stop);
  EXPECT_EQ(answer.calls(), 1);
  EXPECT_EQ(ReasonOf(answer.Await().status()), "SERVER_SHUTDOWN");
}

TEST(ConstraintCompilerTest, RejectsByInputAndOutputBytes) {
  Builds builds;
  ConstraintOptions options;
  options.max_schema_bytes = 10;
  options.max_compiled_bytes = 4999;
  ConstraintCompiler compiler(options, builds.Function(), nullptr);
  Answer input, output;
  compiler.Compile(Regex("12345678901"), input.Taker());
  EXPECT_EQ(ReasonOf(input.Await().status()), "BAD_CONSTRAINT");
  EXPECT_EQ(input.Await().status().message(),
            "constraint has 11 bytes, the limit is 10 (structured.max_schema_bytes)");
  EXPECT_EQ(builds.count, 0);
  compiler.Compile(Regex("large"), output.Taker());
  EXPECT_EQ(ReasonOf(output.Await().status()), "BAD_CONSTRAINT");
  EXPECT_EQ(compiler.GetCounts().cached_constraints, 0);
}

TEST(ConstraintCompilerTest, CacheEvictsLeastRecentlyUsedByBytes) {
  Builds builds;
  ConstraintOptions options;
  options.cache_bytes = 3 * 5000;  // two large ones and the memory of their texts
  ConstraintCompiler compiler(options, builds.Function(), nullptr);
  const auto ask = [&](const char* text) {
    Answer answer;
    compiler.Compile(Regex(text), answer.Taker());
    EXPECT_TRUE(answer.Await().ok());
    EXPECT_TRUE(compiler.CheckIntegrity().ok());
  };
  for (const char* text : {"large1", "large2", "large1", "large3"}) ask(text);
  EXPECT_EQ(builds.count, 3);
  ask("large1");  // used more recently than large2
  EXPECT_EQ(builds.count, 3);
  ask("large2");
  EXPECT_EQ(builds.count, 4);
}

TEST(ConstraintCompilerTest, CancelPreventsDoneAndDropsQueuedBuilds) {
  Builds builds;
  Gate& gate = builds.Hold("slow");
  ConstraintOptions options;
  options.compile_threads = 1;
  ConstraintCompiler compiler(options, builds.Function(), nullptr);
  Answer running, waiting, last;
  const auto first = compiler.Compile(Regex("slow"), running.Taker());
  gate.AwaitArrival();
  const auto second = compiler.Compile(Regex("waits"), waiting.Taker());
  EXPECT_TRUE(compiler.Cancel(second));
  EXPECT_TRUE(compiler.Cancel(first));
  EXPECT_FALSE(compiler.Cancel(first));
  EXPECT_TRUE(compiler.CheckIntegrity().ok());
  EXPECT_EQ(compiler.GetCounts().waiting_builds, 0);
  gate.Set(false);
  compiler.Compile(Regex("last"), last.Taker());
  EXPECT_TRUE(last.Await().ok());
  EXPECT_EQ(running.calls(), 0);
  EXPECT_EQ(waiting.calls(), 0);
  EXPECT_EQ(builds.count, 2);
}

TEST(ConstraintCompilerTest, RunningBuildCompletesAfterCancel) {
  Builds builds;
  Gate& gate = builds.Hold("slow");
  ConstraintCompiler compiler({}, builds.Function(), nullptr);
  Answer cancelled, again;
  const auto ticket = compiler.Compile(Regex("slow"), cancelled.Taker());
  ASSERT_TRUE(WaitUntil([&] { return builds.count == 1; }));
  EXPECT_TRUE(compiler.Cancel(ticket));
  EXPECT_TRUE(compiler.CheckIntegrity().ok());
  gate.Set(false);
  EXPECT_TRUE(WaitUntil([&] { return compiler.GetCounts().cached_constraints == 1; }));
  compiler.Compile(Regex("slow"), again.Taker());
  EXPECT_TRUE(again.Await().ok());
  EXPECT_EQ(builds.count, 1);
  EXPECT_EQ(cancelled.calls(), 0);
}

TEST(ConstraintCompilerTest, DestructionAnswersWaitingCallers) {
  Builds builds;
  Gate& gate = builds.Hold("slow");
  Answer running, waiting;
  {
    ConstraintOptions options;
    options.compile_threads = 1;
    ConstraintCompiler compiler(options, builds.Function(), nullptr);
    compiler.Compile(Regex("slow"), running.Taker());
    gate.AwaitArrival();
    compiler.Compile(Regex("waits"), waiting.Taker());
    gate.Set(false);
  }
  EXPECT_EQ(running.calls(), 1);
  EXPECT_EQ(waiting.calls(), 1);
}

// Makes random calls from one thread. Each ends in one answer, or in a Cancel that reported to be
// in time.
TEST(ConstraintCompilerTest, EveryCallEndsOnce) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  Builds builds;
  ConstraintOptions options;
  options.max_waiting_builds = 4;
  options.cache_bytes = 2000;
  ConstraintCompiler compiler(options, builds.Function(), nullptr);
  struct Call {
    ConstraintCompiler::Ticket ticket = 0;
    Answer answer;
    bool cancelled = false;
  };
  std::map<int, Call> calls;  // nodes are stable in a std::map
  for (int i = 0; i < 2000; ++i) {
    Call& call = calls[i];
    const char* kind = random() % 8 == 0 ? "bad" : random() % 8 == 0 ? "large" : "x";
    call.ticket = compiler.Compile(Regex(absl::StrCat(kind, random() % 12)), call.answer.Taker());
    if (random() % 3 == 0) {
      Call& other = calls[static_cast<int>(random() % calls.size())];
      if (other.ticket != 0) other.cancelled |= compiler.Cancel(other.ticket);
    }
    const absl::Status status = compiler.CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
  }
  for (auto& [i, call] : calls) {
    if (call.cancelled) {
      EXPECT_EQ(call.answer.calls(), 0);
    } else {
      EXPECT_TRUE(WaitUntil([&] { return call.answer.calls() == 1; }));
    }
  }
  const ConstraintCounts counts = compiler.GetCounts();
  EXPECT_LE(counts.cached_bytes, 2000);
}

}  // namespace
}  // namespace quire::engine
