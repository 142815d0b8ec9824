#pragma once

// The options of `quire generate` and `quire chat` that say which form the answer has.
//
// Threads: the main thread.

namespace CLI {
class App;
}
namespace quire::v1 {
class Constraint;
class GenerateRequest;
}  // namespace quire::v1

namespace quire::client {

// Their flags, on `cmd`. The constraint outlives the parsing.
void AddConstraintOptions(CLI::App* cmd, v1::Constraint* constraint);
// Where it begins, for answers that are parsed.
void AddConstraintStart(CLI::App* cmd, v1::Constraint* constraint);

// Nothing where none of the options was given.
void SetConstraint(const v1::Constraint& constraint, v1::GenerateRequest* request);

}  // namespace quire::client
