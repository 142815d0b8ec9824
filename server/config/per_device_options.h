#pragma once

// Runtime and engine options that depend on the device.
//
// Place:      between DaemonOptions and runtime/, which does not depend on the engine.
// Threads:    any.

#include <string>

#include "absl/strings/string_view.h"
#include "base/device.h"
#include "engine/request/engine_options.h"
#include "kernels/backend/backend.h"
#include "runtime/runtime_options.h"
#include "server/config/options.h"

namespace quire::server {

// On a GPU, removes the limit of prompt tokens per step. The limit max_step_tokens remains.
engine::EngineOptions AdaptEngineOptions(engine::EngineOptions engine, DeviceKind device);

runtime::RuntimeOptions RuntimeOptionsFor(const DaemonOptions& options, DeviceKind device);

// Returns EngineOptions::fingerprint for pages that the CPU computes. Different activation types
// produce pages with different bits, so the fingerprint differs and such pages are not shared.
// REQUIRES: `activations` is not kAuto.
std::string PageFingerprint(absl::string_view model_fingerprint,
                            kernels::CpuActivations activations);

}  // namespace quire::server
