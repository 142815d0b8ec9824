#pragma once

// Options of `quire generate` and `quire chat` that constrain the answer.
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

// Adds the options to `cmd`. `constraint` must outlive the parsing.
void AddConstraintOptions(CLI::App* cmd, v1::Constraint* constraint);
// Adds the option --constraint-start, for commands whose answers can begin with reasoning.
void AddConstraintStart(CLI::App* cmd, v1::Constraint* constraint);

// Sets the constraint of the request, unless no option was given. With a JSON Schema and without
// --constraint-whitespace, it requests compact JSON.
void SetConstraint(const v1::Constraint& constraint, v1::GenerateRequest* request);

}  // namespace quire::client
