#pragma once

// The state of one rendering, shared by statements (statements.cc) and expressions (machine.cc).
//
// Place:      only used inside the interpreter.
// Invariants: scope_ is the innermost open block. A scope that no macro captured is reused as soon
//             as it closes.
// Threads:    one thread.
// Lifetime:   one rendering.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/interpreter.h"

namespace quire::text::jinja {

class Machine {
 public:
  Machine(const Variables& variables, const RenderLimits& limits, absl::Time now);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  absl::StatusOr<std::string> Run(const Body& body);
  Position error_position() const { return error_position_; }

 private:
  using Result = absl::StatusOr<Value>;
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

  // Expressions
  Result Eval(const Expr& expr);
  Result EvalNode(const Expr& expr);
  Result EvalAttribute(const Expr& expr);
  Result EvalIndex(const Expr& expr);
  Result EvalSlice(const Expr& expr);
  Result EvalFilter(const Expr& expr);
  Result EvalTest(const Expr& expr);
  Result EvalCompare(const Expr& expr);
  Result EvalConcat(const Expr& expr);
  Result EvalLogic(const Expr& expr);
  Result EvalBinary(const Expr& expr);
  Result EvalConditional(const Expr& expr);
  Result EvalSequence(const Expr& expr);
  Result EvalDict(const Expr& expr);
  Result EvalCall(const Expr& expr);
  // Evaluates a chain of filters whose innermost input is `text`.
  Result EvalFilters(const Expr& filters, Value text);
  // Evaluates the arguments, which follow children[0].
  absl::StatusOr<Arguments> EvalArguments(const Expr& call);
  Result CallWith(const Expr& call, const Arguments& arguments);
  // Evaluates the operand before a dot or a bracket. Unlike Eval, it does not set Loop::escaped.
  Result EvalOwner(const Expr& expr);
  Result AttributeOf(const Value& owner, const std::string& name);
  Result LoopAttribute(const Value& owner, Loop& loop, const std::string& name);
  Result CallValue(const Value& callee, const Arguments& arguments);
  Result CallMethodOf(const Value& self, const std::string& name, const Arguments& arguments);
  Result CallLoop(Loop& loop, const std::string& name, const Arguments& arguments);
  Result CallMacro(const Macro& macro, const Arguments& arguments);
  absl::Status BindMacro(const Macro& macro, const Arguments& arguments);
  absl::Status BindExtraArguments(const Stmt& macro, const Arguments& arguments);

  // Statements
  absl::StatusOr<Flow> Exec(const Body& body);
  absl::StatusOr<Flow> ExecStmt(const Stmt& stmt);
  absl::StatusOr<Flow> ExecIf(const Stmt& stmt);
  absl::StatusOr<Flow> ExecFor(const Stmt& stmt);
  absl::StatusOr<Flow> RunLoop(const Stmt& stmt, const Value& loop_value, Loop& loop);
  absl::StatusOr<Flow> ExecScope(const Stmt& stmt);
  absl::Status ExecOutput(const Stmt& stmt);
  absl::Status ExecSet(const Stmt& stmt);
  absl::Status ExecCallBlock(const Stmt& stmt);
  absl::Status ExecFilterBlock(const Stmt& stmt);
  // Executes the body in its own scope and returns its output.
  absl::StatusOr<std::string> Capture(const Body& body);
  absl::Status Write(absl::string_view text);
  absl::Status AssignTo(const Target& target, Value value);

  // Fetches the next element that satisfies the loop's condition. Returns false at the end.
  absl::StatusOr<bool> Fetch(Loop& loop, Value* item);
  absl::StatusOr<bool> FetchFromSource(Loop& loop, Value* item);
  absl::Status FetchAll(Loop& loop);
  absl::StatusOr<bool> HasNext(Loop& loop);

  // Keeps only the first reported position, which is the position of the innermost failed node.
  void RecordErrorPosition(Position position) {
    if (error_position_.line == 0) error_position_ = position;
  }

  // Opens a scope inside `parent` and returns the previous scope, for CloseScope.
  Scope* OpenScope(Scope* parent);
  void CloseScope(Scope* previous);
  void Assign(const std::string& name, Value value);
  Value Lookup(const std::string& name);
  // Adds to uncharged_work_ the cost of comparing `names` names. The next expression charges this
  // cost.
  void AddSearchCost(std::size_t names);
  // Returns a macro that looks up names in the current scope and its parents.
  Value MakeMacro(const Stmt& stmt);

  Runtime runtime_;
  absl::flat_hash_map<std::string, Value> globals_;
  Scope* scope_ = nullptr;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
  Value filter_input_;
  std::string* out_ = nullptr;
  bool is_capturing_ = false;  // out_ will become a value
  int depth_ = 0;              // nesting depth of the nodes that are being executed
  int macro_depth_ = 0;
  std::int64_t uncharged_work_ = 0;  // kEvalsPerStep units are one step
  Position error_position_;
};

}  // namespace quire::text::jinja
