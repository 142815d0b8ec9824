#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat/jinja/machine.h"

namespace quire::text::jinja {

RenderResult Render(const Body& body, const Variables& variables, const RenderLimits& limits,
                    absl::Time now) {
  Machine machine(variables, limits, now);
  absl::StatusOr<std::string> text = machine.Run(body);
  return {.text = std::move(text), .error_position = machine.error_position()};
}

absl::StatusOr<std::string> Machine::Run(const Body& body) {
  std::string text;
  out_ = &text;
  QUIRE_RETURN_IF_ERROR(Exec(body).status());
  return text;
}

absl::Status Machine::Write(absl::string_view text) {
  const auto limit = static_cast<std::size_t>(runtime_.limits().max_bytes);
  if (text.size() > limit - out_->size()) return runtime_.ChargeText(limit + 1);
  if (is_capturing_) QUIRE_RETURN_IF_ERROR(runtime_.ChargeBytes(text.size()));
  out_->append(text.data(), text.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> Machine::Capture(const Body& body) {
  std::string text;
  std::string* const out = std::exchange(out_, &text);
  const bool captures = std::exchange(is_capturing_, true);
  Scope* const previous = OpenScope(scope_);
  const auto cleanup = absl::MakeCleanup([&] {
    CloseScope(previous);
    out_ = out;
    is_capturing_ = captures;
  });
  QUIRE_RETURN_IF_ERROR(Exec(body).status());
  return text;
}

absl::StatusOr<Machine::Flow> Machine::Exec(const Body& body) {
  if (++depth_ > kMaxStackDepth) {
    return absl::InvalidArgumentError("the template recurses too deeply");
  }
  Flow flow = Flow::kNext;
  for (const auto& stmt : body) {
    QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
    absl::StatusOr<Flow> result = ExecStmt(*stmt);
    if (!result.ok()) {
      RecordErrorPosition(stmt->position);
      return result;
    }
    flow = *result;
    if (flow != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

absl::StatusOr<Machine::Flow> Machine::ExecStmt(const Stmt& stmt) {
  absl::Status status;
  switch (stmt.kind) {
    case StmtKind::kText:
      status = Write(stmt.text);
      break;
    case StmtKind::kOutput:
      status = ExecOutput(stmt);
      break;
    case StmtKind::kIf:
      return ExecIf(stmt);
    case StmtKind::kFor:
      return ExecFor(stmt);
    case StmtKind::kSet:
    case StmtKind::kSetBlock:
      status = ExecSet(stmt);
      break;
    case StmtKind::kMacro:
      Assign(stmt.text, MakeMacro(stmt));
      break;
    case StmtKind::kCallBlock:
      status = ExecCallBlock(stmt);
      break;
    case StmtKind::kFilterBlock:
      status = ExecFilterBlock(stmt);
      break;
    case StmtKind::kWith:
    case StmtKind::kScope:
      return ExecScope(stmt);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  QUIRE_RETURN_IF_ERROR(status);
  return Flow::kNext;
}

absl::Status Machine::ExecOutput(const Stmt& stmt) {
  QUIRE_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
  if (value.is_string()) return Write(value.as_string());
  QUIRE_ASSIGN_OR_RETURN(const std::string text, runtime_.Print(value));
  return Write(text);
}

absl::StatusOr<Machine::Flow> Machine::ExecIf(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    bool is_true = true;
    if (branch.condition != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const Value condition, Eval(*branch.condition));
      is_true = IsTrue(condition);
    }
    if (is_true) return Exec(branch.body);
  }
  return Flow::kNext;
}

absl::StatusOr<bool> Machine::FetchFromSource(Loop& loop, Value* item) {
  while (const Value* candidate = loop.source.Next()) {
    QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
    *item = *candidate;
    if (loop.statement->condition == nullptr) return true;
    // The condition can use the element and names outside the loop, but not `loop`.
    Scope* const previous = OpenScope(loop.outer);
    const auto cleanup = absl::MakeCleanup([&] { CloseScope(previous); });
    QUIRE_RETURN_IF_ERROR(AssignTo(loop.statement->target, *item));
    QUIRE_ASSIGN_OR_RETURN(const Value condition, Eval(*loop.statement->condition));
    if (IsTrue(condition)) return true;
  }
  return false;
}

absl::StatusOr<bool> Machine::Fetch(Loop& loop, Value* item) {
  if (loop.prefetched_begin == loop.prefetched.size()) return FetchFromSource(loop, item);
  *item = std::move(loop.prefetched[loop.prefetched_begin++]);
  if (loop.prefetched_begin == loop.prefetched.size()) {
    loop.prefetched.clear();
    loop.prefetched_begin = 0;
  }
  return true;
}

absl::StatusOr<bool> Machine::HasNext(Loop& loop) {
  if (loop.prefetched_begin < loop.prefetched.size()) return true;
  Value item;
  QUIRE_ASSIGN_OR_RETURN(const bool found, FetchFromSource(loop, &item));
  if (found) loop.prefetched.push_back(std::move(item));
  return found;
}

absl::Status Machine::FetchAll(Loop& loop) {
  for (;;) {
    Value item;
    QUIRE_ASSIGN_OR_RETURN(const bool found, FetchFromSource(loop, &item));
    if (!found) return absl::OkStatus();
    loop.prefetched.push_back(std::move(item));
  }
}

absl::StatusOr<Machine::Flow> Machine::ExecFor(const Stmt& stmt) {
  QUIRE_ASSIGN_OR_RETURN(const Value iterable, Eval(*stmt.expr));
  QUIRE_ASSIGN_OR_RETURN(Iteration source, Iteration::Over(iterable, runtime_));
  auto object = std::make_unique<Object>();
  Loop& loop = object->data.emplace<Loop>();
  loop.statement = &stmt;
  loop.outer = scope_;
  loop.source = std::move(source);
  absl::StatusOr<Flow> flow = RunLoop(stmt, Value::Of(object.get()), loop);
  if (loop.escaped) {
    // Values that still refer to the loop can read its attributes, but not fetch elements.
    loop.outer = nullptr;
    loop.source = Iteration();
    runtime_.Adopt(std::move(object));
  }
  return flow;
}

absl::StatusOr<Machine::Flow> Machine::RunLoop(const Stmt& stmt, const Value& loop_value,
                                               Loop& loop) {
  bool completed = false;  // the body was completed for some element; otherwise the else body runs
  for (;;) {
    Value item;
    QUIRE_ASSIGN_OR_RETURN(const bool found, Fetch(loop, &item));
    if (!found) break;
    ++loop.index0;
    loop.previous = std::move(loop.current);
    loop.current = item;
    Scope* const previous = OpenScope(scope_);
    Scope* const inside = scope_;
    const auto cleanup = absl::MakeCleanup([&] {
      loop.escaped = loop.escaped || inside->captured;
      CloseScope(previous);
    });
    Assign("loop", loop_value);
    QUIRE_RETURN_IF_ERROR(AssignTo(stmt.target, std::move(item)));
    QUIRE_ASSIGN_OR_RETURN(const Flow flow, Exec(stmt.body));
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNext;
  }
  if (completed || stmt.else_body.empty()) return Flow::kNext;
  Scope* const previous = OpenScope(scope_);
  const auto cleanup = absl::MakeCleanup([&] { CloseScope(previous); });
  return Exec(stmt.else_body);
}

absl::StatusOr<Machine::Flow> Machine::ExecScope(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, expr] : stmt.assignments) {
    QUIRE_ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.push_back(std::move(value));
  }
  Scope* const previous = OpenScope(scope_);
  const auto cleanup = absl::MakeCleanup([&] { CloseScope(previous); });
  for (std::size_t i = 0; i < values.size(); ++i) {
    Assign(stmt.assignments[i].first.name, std::move(values[i]));
  }
  return Exec(stmt.body);
}

absl::Status Machine::AssignTo(const Target& target, Value value) {
  if (target.is_tuple) {
    QUIRE_ASSIGN_OR_RETURN(Iteration iteration, Iteration::Over(value, runtime_));
    std::vector<Value> items = iteration.Rest();
    QUIRE_RETURN_IF_ERROR(runtime_.Charge(static_cast<std::int64_t>(items.size())));
    if (items.size() != target.elements.size()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot unpack ", items.size(), " values to ",
                                                     target.elements.size(), " names"));
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      QUIRE_RETURN_IF_ERROR(AssignTo(target.elements[i], std::move(items[i])));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    Assign(target.name, std::move(value));
    return absl::OkStatus();
  }
  const Value owner = Lookup(target.name);
  auto* names = ObjectAs<Namespace>(owner);
  if (names == nullptr) {
    return absl::InvalidArgumentError("cannot assign attribute on non-namespace object");
  }
  QUIRE_RETURN_IF_ERROR(runtime_.ChargeNames(names->attributes.size()));
  for (auto& [name, value_slot] : names->attributes) {
    if (name != target.attribute) continue;
    value_slot = std::move(value);
    return absl::OkStatus();
  }
  names->attributes.emplace_back(target.attribute, std::move(value));
  return absl::OkStatus();
}

absl::Status Machine::ExecSet(const Stmt& stmt) {
  if (stmt.kind == StmtKind::kSet) {
    QUIRE_ASSIGN_OR_RETURN(Value value, Eval(*stmt.expr));
    return AssignTo(stmt.target, std::move(value));
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, Capture(stmt.body));
  Value value = Value::String(std::move(text));
  if (stmt.expr != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(value, EvalFilters(*stmt.expr, std::move(value)));
  }
  return AssignTo(stmt.target, std::move(value));
}

absl::Status Machine::ExecFilterBlock(const Stmt& stmt) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, Capture(stmt.body));
  QUIRE_ASSIGN_OR_RETURN(const Value value,
                         EvalFilters(*stmt.expr, Value::String(std::move(text))));
  QUIRE_ASSIGN_OR_RETURN(const std::string shown, runtime_.Print(value));
  return Write(shown);
}

absl::Status Machine::ExecCallBlock(const Stmt& stmt) {
  QUIRE_ASSIGN_OR_RETURN(Arguments arguments, EvalArguments(*stmt.expr));
  arguments.named.emplace_back("caller", MakeMacro(stmt));
  QUIRE_ASSIGN_OR_RETURN(const Value value, CallWith(*stmt.expr, arguments));
  QUIRE_ASSIGN_OR_RETURN(const std::string shown, runtime_.Print(value));
  return Write(shown);
}

absl::StatusOr<Value> Machine::CallMacro(const Macro& macro, const Arguments& arguments) {
  if (macro_depth_ >= kMaxMacroDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("macro calls are nested more than ", kMaxMacroDepth, " deep"));
  }
  ++macro_depth_;
  Scope* const previous = OpenScope(macro.scope);
  const auto cleanup = absl::MakeCleanup([&] {
    CloseScope(previous);
    --macro_depth_;
  });
  QUIRE_RETURN_IF_ERROR(BindMacro(macro, arguments));
  QUIRE_ASSIGN_OR_RETURN(std::string text, Capture(macro.definition->body));
  return Value::String(std::move(text));
}

// Sets the parameters in the current scope.
absl::Status Machine::BindMacro(const Macro& macro, const Arguments& arguments) {
  const Stmt& definition = *macro.definition;
  for (std::size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (const auto& [name, value] : arguments.named) {
      if (name != parameter.name) continue;
      if (given != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            "macro '", definition.text, "' got several values for argument '", name, "'"));
      }
      given = &value;
    }
    if (given != nullptr) {
      Assign(parameter.name, *given);
    } else if (parameter.default_value != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(Value value, Eval(*parameter.default_value));
      Assign(parameter.name, std::move(value));
    } else {
      Assign(parameter.name, Value::UndefinedBecause(absl::StrCat("parameter '", parameter.name,
                                                                  "' was not provided")));
    }
  }
  return BindExtraArguments(definition, arguments);
}

// Sets varargs, kwargs and caller if the macro uses them. Any other argument without a parameter is
// an error.
absl::Status Machine::BindExtraArguments(const Stmt& macro, const Arguments& arguments) {
  const std::size_t count = macro.parameters.size();
  std::vector<Value> extra;
  for (std::size_t i = count; i < arguments.positional.size(); ++i) {
    extra.push_back(arguments.positional[i]);
  }
  if (!extra.empty() && !macro.uses_varargs) {
    return absl::InvalidArgumentError(
        absl::StrCat("macro '", macro.text, "' takes at most ", count, " arguments"));
  }
  MapBuilder named;
  Value caller = Value::UndefinedBecause("No caller defined");
  for (const auto& [name, value] : arguments.named) {
    bool is_parameter = false;
    for (const Parameter& parameter : macro.parameters) {
      is_parameter = is_parameter || parameter.name == name;
    }
    if (is_parameter) continue;
    if (name == "caller" && macro.uses_caller) {
      caller = value;
      continue;
    }
    if (!macro.uses_kwargs) {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.text, "' takes no argument '", name, "'"));
    }
    QUIRE_RETURN_IF_ERROR(named.Set(name, value));
  }
  if (macro.uses_varargs) {
    QUIRE_ASSIGN_OR_RETURN(Value rest, MakeSequence(SequenceKind::kTuple, std::move(extra)));
    Assign("varargs", std::move(rest));
  }
  if (macro.uses_kwargs) Assign("kwargs", std::move(named).Build());
  if (macro.uses_caller) Assign("caller", std::move(caller));
  return absl::OkStatus();
}

}  // namespace quire::text::jinja
