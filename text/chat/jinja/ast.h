#pragma once

// The syntax tree of a template.
//
// Place:      between parser and interpreter.
// Invariants: what the parser built stands within its limits of depth. An unknown filter or test is
//             null, and is inside a branch.
// Threads:    immutable after parsing.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

struct FilterRow;  // jinja_filters.h
struct TestRow;    // jinja_tests.h

// Of the first character; both from 1, columns in characters.
struct Position {
  std::int32_t line = 0;
  std::int32_t column = 0;
};

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : std::uint8_t {
  kConst,        // constant
  kName,         // name
  kAttribute,    // children[0].name
  kIndex,        // children[0][children[1]]
  kSlice,        // children[0][children[1]:children[2]:children[3]], null: not given
  kCall,         // children[0](children[1..], named)
  kFilter,       // children[0] | filter(children[1..], named); children[0] null: the block's text
  kTest,         // children[0] is test(children[1..], named)
  kNegate,       // -children[0]
  kPlus,         // +children[0]
  kNot,          // not children[0]
  kBinary,       // children[0] operators[0] children[1]
  kCompare,      // children[0] operators[0] children[1] operators[1] children[2] ...
  kAnd,          // of two
  kOr,           // of two
  kConcat,       // children joined by ~
  kConditional,  // children[1] if children[0] else children[2], which may be null
  kList,
  kTuple,
  kDict  // key, value, key, value ...
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  Position position;
  int depth = 1;  // 1 + the deepest child's
  Value constant;
  std::string name;
  const FilterRow* filter = nullptr;
  const TestRow* test = nullptr;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<Operator> operators;
};

// What set and for assign to: a name, an attribute of a namespace, or several of them.
struct Target {
  Position position;
  std::string name;
  std::string attribute;         // of the namespace `name`; empty: the name itself
  std::vector<Target> elements;  // not empty: unpack
  bool is_tuple = false;
};

enum class StmtKind : std::uint8_t {
  kText,         // text
  kOutput,       // expr
  kIf,           // branches; a branch without condition is the else
  kFor,          // target in expr if condition: body, else_body
  kSet,          // target = expr
  kSetBlock,     // target = body, through expr if there is one
  kMacro,        // name(parameters): body
  kCallBlock,    // expr, with the macro parameters: body as its caller
  kFilterBlock,  // body through expr
  kWith,         // assignments: body
  kScope,        // body
  kBreak,
  kContinue
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr default_value;  // null: none
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  Position position;
  std::string text;  // also the name of a macro
  Target target;
  ExprPtr expr;
  ExprPtr condition;
  Body body;
  Body else_body;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  // Names with a meaning that the body of a macro uses.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

}  // namespace quire::text::jinja
