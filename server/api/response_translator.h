#pragma once

// Converts output of the engine, and the description of the model, to quire.v1 messages.
//
// Place:      between the engine and the transports; the counterpart of request_translator.h.
// Threads:    any.

#include <google/protobuf/repeated_field.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/output/token_stream.h"
#include "server/api/serving_state.h"

namespace google::protobuf {
class Duration;
class Timestamp;
}  // namespace google::protobuf
namespace quire::v1 {
class GenerateResponse;
class Model;
class RequestInfo;
class SamplingParams;
class Stats;
class TokenLogprob;
class Usage;
enum ServerState : int;
}  // namespace quire::v1

namespace quire::server {

void ToProto(absl::Duration duration, google::protobuf::Duration* message);
void ToProto(absl::Time time, google::protobuf::Timestamp* message);
void ToProto(const engine::Usage& usage, v1::Usage* message);
void AddLogprobs(std::vector<engine::TokenLogprob>&& tokens,
                 google::protobuf::RepeatedPtrField<v1::TokenLogprob>* list);
void ToProto(engine::OutputEvent&& event, const std::string& request_id, const Clock& clock,
             v1::GenerateResponse* message);
void ToProto(const engine::RequestInfo& info, const Clock& clock, v1::RequestInfo* message);
// Converts everything except the server state and the memory, which the engine does not know.
void ToProto(const engine::EngineStats& stats, const Clock& clock, v1::Stats* message);
v1::ServerState ToProto(LifeState state);
void ToProto(const ServedModel& served, v1::Model* model);
// Converts the seven values that a configuration or a model may set.
void ToProto(const engine::SamplingParams& defaults, v1::SamplingParams* message);

}  // namespace quire::server
