#pragma once

// Runtime and engine options that depend on the device.
//
// Place:      between DaemonOptions and runtime/, which does not depend on the engine.
// Threads:    any.

#include "base/device.h"
#include "engine/request/engine_options.h"
#include "runtime/runtime_options.h"
#include "server/config/options.h"

namespace quire::server {

// Removes the limit of prompt tokens per step on GPUs; max_step_tokens remains.
engine::EngineOptions AdaptEngineOptions(engine::EngineOptions engine, DeviceKind device);

runtime::RuntimeOptions RuntimeOptionsFor(const DaemonOptions& options, DeviceKind device);

}  // namespace quire::server
