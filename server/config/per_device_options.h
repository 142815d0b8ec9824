#pragma once

// What the daemon's options ask of the runtime and of the engine, on the device that computes.
//
// Place:      between DaemonOptions and runtime/, which knows no engine.
// Threads:    any.
// Lifetime:   values.

#include "base/device.h"
#include "engine/request/engine_options.h"
#include "runtime/runtime_options.h"
#include "server/config/options.h"

namespace quire::server {

// What the engine is given: on a GPU nothing bounds the prompt tokens of a step but its own size.
engine::EngineOptions EngineOptionsOn(engine::EngineOptions engine, DeviceKind device);

runtime::RuntimeOptions RuntimeOptionsFor(const DaemonOptions& options, DeviceKind device);

}  // namespace quire::server
