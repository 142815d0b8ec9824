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
// Adds the option for the start of the constraint, for parsed answers.
void AddConstraintStart(CLI::App* cmd, v1::Constraint* constraint);

// Sets the constraint of the request, unless no option was given. The JSON of a schema is compact
// by default.
void SetConstraint(const v1::Constraint& constraint, v1::GenerateRequest* request);

}  // namespace quire::client
