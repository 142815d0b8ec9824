#include "text/chat/jinja/machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat/jinja/filters.h"
#include "text/chat/jinja/functions.h"
#include "text/chat/jinja/methods.h"
#include "text/chat/jinja/operators.h"
#include "text/chat/jinja/tests.h"

namespace quire::text::jinja {
namespace {

bool IsLoopMethod(absl::string_view name) {
  return name == "cycle" || name == "changed";
}
bool IsCyclerMethod(absl::string_view name) {
  return name == "next" || name == "reset";
}

absl::Status NotSupported(absl::string_view kind, absl::string_view name) {
  return absl::UnimplementedError(absl::StrCat("the ", kind, " '", name, "' is not supported"));
}

}  // namespace

Machine::Machine(const Variables& variables, const RenderLimits& limits, absl::Time now)
    : runtime_(limits, now) {
  for (const auto& [name, function] : Builtins()) {
    globals_.insert_or_assign(std::string(name), runtime_.MakeObject(function));
  }
  for (const auto& [name, value] : variables) globals_.insert_or_assign(name, value);
  OpenScope(nullptr);
}

Scope* Machine::OpenScope(Scope* parent) {
  Scope* const previous = scope_;
  if (free_scopes_.empty()) {
    scopes_.push_back(std::make_unique<Scope>());
    scope_ = scopes_.back().get();
  } else {
    scope_ = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope_->parent = parent;
  return previous;
}

void Machine::CloseScope(Scope* previous) {
  if (!scope_->captured) {
    scope_->names.clear();
    free_scopes_.push_back(scope_);
  }
  scope_ = previous;
}

void Machine::AddSearchCost(std::size_t names) {
  uncharged_work_ +=
      static_cast<std::int64_t>(names) * Runtime::kEvalsPerStep / Runtime::kNamesPerStep;
}

void Machine::Assign(const std::string& name, Value value) {
  AddSearchCost(scope_->names.size());
  for (auto& [known, value_slot] : scope_->names) {
    if (known != name) continue;
    value_slot = std::move(value);
    return;
  }
  scope_->names.emplace_back(name, std::move(value));
}

Value Machine::Lookup(const std::string& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    AddSearchCost(scope->names.size());
    for (const auto& [known, value] : scope->names) {
      if (known == name) return value;
    }
  }
  const auto global = globals_.find(name);
  if (global != globals_.end()) return global->second;
  return Value::UndefinedBecause(absl::StrCat("'", name, "' is undefined"));
}

Value Machine::MakeMacro(const Stmt& stmt) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  return runtime_.MakeObject(Macro{.definition = &stmt, .scope = scope_});
}

absl::StatusOr<Value> Machine::Eval(const Expr& expr) {
  if (++depth_ > kMaxStackDepth) {
    RecordErrorPosition(expr.position);
    return absl::InvalidArgumentError("the template recurses too deeply");
  }
  if (++uncharged_work_ >= Runtime::kEvalsPerStep) {
    const absl::Status charged = runtime_.Charge(uncharged_work_ / Runtime::kEvalsPerStep);
    uncharged_work_ %= Runtime::kEvalsPerStep;
    if (!charged.ok()) {
      RecordErrorPosition(expr.position);
      return charged;
    }
  }
  Result result = EvalNode(expr);
  --depth_;
  if (!result.ok()) RecordErrorPosition(expr.position);
  return result;
}

absl::StatusOr<Value> Machine::EvalNode(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName: {
      Value value = Lookup(expr.name);
      if (Loop* loop = ObjectAs<Loop>(value)) loop->escaped = true;
      return value;
    }
    case ExprKind::kAttribute:
      return EvalAttribute(expr);
    case ExprKind::kIndex:
      return EvalIndex(expr);
    case ExprKind::kSlice:
      return EvalSlice(expr);
    case ExprKind::kCall:
      return EvalCall(expr);
    case ExprKind::kFilter:
      return EvalFilter(expr);
    case ExprKind::kTest:
      return EvalTest(expr);
    case ExprKind::kNegate:
    case ExprKind::kPlus:
    case ExprKind::kBinary:
      return EvalBinary(expr);
    case ExprKind::kNot:
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return EvalLogic(expr);
    case ExprKind::kCompare:
      return EvalCompare(expr);
    case ExprKind::kConcat:
      return EvalConcat(expr);
    case ExprKind::kConditional:
      return EvalConditional(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return EvalSequence(expr);
    case ExprKind::kDict:
      return EvalDict(expr);
  }
  return absl::InternalError("unknown expression");
}

absl::StatusOr<Value> Machine::EvalOwner(const Expr& expr) {
  return expr.kind == ExprKind::kName ? Lookup(expr.name) : Eval(expr);
}

absl::StatusOr<Value> Machine::EvalAttribute(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Value owner, EvalOwner(*expr.children[0]));
  return AttributeOf(owner, expr.name);
}

absl::StatusOr<Value> Machine::AttributeOf(const Value& owner, const std::string& name) {
  if (Loop* loop = ObjectAs<Loop>(owner)) return LoopAttribute(owner, *loop, name);
  if (const auto* cycler = ObjectAs<Cycler>(owner)) {
    if (name == "current") return cycler->items[cycler->position];
    if (IsCyclerMethod(name)) return runtime_.MakeObject(BoundMethod{owner, name});
  }
  return GetAttribute(owner, name, runtime_);
}

absl::StatusOr<Value> Machine::LoopAttribute(const Value& owner, Loop& loop,
                                             const std::string& name) {
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return loop.previous ? *loop.previous : Value::UndefinedBecause("there is no previous item");
  }
  if (name == "last" || name == "nextitem") {
    QUIRE_ASSIGN_OR_RETURN(const bool has_next, HasNext(loop));
    if (name == "last") return Value::Bool(!has_next);
    return has_next ? loop.prefetched[loop.prefetched_begin]
                    : Value::UndefinedBecause("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    QUIRE_RETURN_IF_ERROR(FetchAll(loop));
    const auto left = static_cast<std::int64_t>(loop.prefetched.size() - loop.prefetched_begin);
    if (name == "length") return Value::Int(loop.index0 + 1 + left);
    return Value::Int(name == "revindex" ? left + 1 : left);
  }
  if (IsLoopMethod(name)) {
    loop.escaped = true;
    return runtime_.MakeObject(BoundMethod{owner, name});
  }
  return GetAttribute(owner, name, runtime_);
}

absl::StatusOr<Value> Machine::EvalIndex(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Value owner, EvalOwner(*expr.children[0]));
  QUIRE_ASSIGN_OR_RETURN(const Value key, Eval(*expr.children[1]));
  if (owner.is_object() && key.is_string()) return AttributeOf(owner, key.as_string());
  return GetItem(owner, key, runtime_);
}

absl::StatusOr<Value> Machine::EvalSlice(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Value value, Eval(*expr.children[0]));
  SliceParts parts;
  Value* const slots[] = {&parts.start, &parts.stop, &parts.step};
  for (std::size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] == nullptr) continue;
    QUIRE_ASSIGN_OR_RETURN(*slots[i], Eval(*expr.children[i + 1]));
  }
  return GetSlice(value, parts, runtime_);
}

absl::StatusOr<Value> Machine::EvalFilter(const Expr& expr) {
  Value input = filter_input_;
  if (expr.children[0] != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(input, Eval(*expr.children[0]));
  }
  QUIRE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
  QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
  if (expr.filter == nullptr) return NotSupported("filter", expr.name);
  return expr.filter->run(runtime_, input, arguments);
}

absl::StatusOr<Value> Machine::EvalFilters(const Expr& filters, Value text) {
  filter_input_ = std::move(text);
  return Eval(filters);
}

absl::StatusOr<Value> Machine::EvalTest(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Value value, Eval(*expr.children[0]));
  QUIRE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
  QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
  if (expr.test == nullptr) return NotSupported("test", expr.name);
  QUIRE_ASSIGN_OR_RETURN(const bool passes, expr.test->run(runtime_, value, arguments));
  return Value::Bool(passes);
}

absl::StatusOr<Value> Machine::EvalCompare(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(Value left, Eval(*expr.children[0]));
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(Value right, Eval(*expr.children[i + 1]));
    QUIRE_ASSIGN_OR_RETURN(const bool is_true, Compare(expr.operators[i], left, right, runtime_));
    if (!is_true) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Machine::EvalConcat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& child : expr.children) {
    QUIRE_ASSIGN_OR_RETURN(const Value part, Eval(*child));
    QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
    if (part.is_string()) {
      text += part.as_string();
    } else {
      QUIRE_ASSIGN_OR_RETURN(const std::string printed, runtime_.Print(part));
      text += printed;
    }
    QUIRE_RETURN_IF_ERROR(runtime_.ChargeText(text.size()));
  }
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Machine::EvalLogic(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(Value left, Eval(*expr.children[0]));
  const bool is_true = IsTrue(left);
  if (expr.kind == ExprKind::kNot) return Value::Bool(!is_true);
  if (is_true == (expr.kind == ExprKind::kOr)) return left;
  return Eval(*expr.children[1]);
}

absl::StatusOr<Value> Machine::EvalBinary(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Value left, Eval(*expr.children[0]));
  if (expr.kind == ExprKind::kNegate) return ApplySign(Operator::kSubtract, left);
  if (expr.kind == ExprKind::kPlus) return ApplySign(Operator::kAdd, left);
  QUIRE_ASSIGN_OR_RETURN(const Value right, Eval(*expr.children[1]));
  return Combine(expr.operators[0], left, right, runtime_);
}

absl::StatusOr<Value> Machine::EvalConditional(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.children[0]));
  if (IsTrue(condition)) return Eval(*expr.children[1]);
  if (expr.children[2] != nullptr) return Eval(*expr.children[2]);
  return Value::UndefinedBecause("the condition of 'if' is false and there is no 'else'");
}

absl::StatusOr<Value> Machine::EvalSequence(const Expr& expr) {
  QUIRE_RETURN_IF_ERROR(runtime_.Charge(static_cast<std::int64_t>(expr.children.size())));
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) {
    QUIRE_ASSIGN_OR_RETURN(Value item, Eval(*child));
    items.push_back(std::move(item));
  }
  return MakeSequence(expr.kind == ExprKind::kList ? SequenceKind::kList : SequenceKind::kTuple,
                      std::move(items));
}

absl::StatusOr<Value> Machine::EvalDict(const Expr& expr) {
  QUIRE_RETURN_IF_ERROR(runtime_.Charge(static_cast<std::int64_t>(expr.children.size())));
  MapBuilder map;
  for (std::size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    QUIRE_ASSIGN_OR_RETURN(const Value key, Eval(*expr.children[i]));
    QUIRE_ASSIGN_OR_RETURN(Value value, Eval(*expr.children[i + 1]));
    QUIRE_RETURN_IF_ERROR(runtime_.ChargeKey(key));
    QUIRE_RETURN_IF_ERROR(map.Set(key, std::move(value)));
  }
  return std::move(map).Build();
}

absl::StatusOr<Arguments> Machine::EvalArguments(const Expr& call) {
  Arguments arguments;
  for (std::size_t i = 1; i < call.children.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(Value value, Eval(*call.children[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, child] : call.named) {
    QUIRE_ASSIGN_OR_RETURN(Value value, Eval(*child));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Machine::EvalCall(const Expr& expr) {
  QUIRE_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
  return CallWith(expr, arguments);
}

absl::StatusOr<Value> Machine::CallWith(const Expr& call, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
  const Expr& callee = *call.children[0];
  if (callee.kind == ExprKind::kAttribute) {
    // The common case, which needs no BoundMethod object.
    QUIRE_ASSIGN_OR_RETURN(const Value owner, EvalOwner(*callee.children[0]));
    if (Loop* loop = ObjectAs<Loop>(owner); loop != nullptr && IsLoopMethod(callee.name)) {
      return CallLoop(*loop, callee.name, arguments);
    }
    if (!owner.is_object() && HasMethod(owner, callee.name)) {
      return CallMethod(owner, callee.name, arguments, runtime_);
    }
    if (owner.is_string() && IsUnsupportedMethod(callee.name)) {
      return NotSupported("method", callee.name);
    }
    QUIRE_ASSIGN_OR_RETURN(const Value value, AttributeOf(owner, callee.name));
    return CallValue(value, arguments);
  }
  QUIRE_ASSIGN_OR_RETURN(const Value value, Eval(callee));
  return CallValue(value, arguments);
}

absl::StatusOr<Value> Machine::CallValue(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return callee.UndefinedError();
  if (callee.is_object()) {
    auto& data = callee.as_object()->data;
    if (const auto* macro = std::get_if<Macro>(&data)) return CallMacro(*macro, arguments);
    if (const auto* function = std::get_if<Function>(&data)) {
      return function->run(arguments, runtime_);
    }
    if (const auto* method = std::get_if<BoundMethod>(&data)) {
      return CallMethodOf(method->self, method->name, arguments);
    }
    if (auto* joiner = std::get_if<Joiner>(&data)) {
      const bool first = !std::exchange(joiner->was_called, true);
      return first ? Value::String("") : joiner->separator;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", TypeName(callee), "' object is not callable"));
}

absl::StatusOr<Value> Machine::CallMethodOf(const Value& self, const std::string& name,
                                            const Arguments& arguments) {
  if (Loop* loop = ObjectAs<Loop>(self)) return CallLoop(*loop, name, arguments);
  if (!self.is_object()) return CallMethod(self, name, arguments, runtime_);
  QUIRE_RETURN_IF_ERROR(BindArguments(name, arguments, {}).status());
  auto& cycler = std::get<Cycler>(self.as_object()->data);
  if (name == "reset") {
    cycler.position = 0;
    return Value::None();
  }
  Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}

absl::StatusOr<Value> Machine::CallLoop(Loop& loop, const std::string& name,
                                        const Arguments& arguments) {
  if (!arguments.named.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("loop.", name, " takes no named arguments"));
  }
  const std::vector<Value>& values = arguments.positional;
  if (name == "changed") {
    for (const Value& value : values) QUIRE_RETURN_IF_ERROR(runtime_.ChargeWalk(value));
    const bool changed = !loop.changed || !std::ranges::equal(*loop.changed, values, Equals);
    if (changed) loop.changed = values;
    return Value::Bool(changed);
  }
  if (values.empty()) return absl::InvalidArgumentError("no items for cycling given");
  return values[static_cast<std::size_t>(loop.index0) % values.size()];
}

}  // namespace quire::text::jinja
