#pragma once

// The story model of assets/ or a fixture, with the ModelRunner or CudaRunner that the daemon
// links, for stress tests.

#include <memory>
#include <string>

#include "base/device.h"
#include "base/dtype.h"
#include "models/weights/quantization.h"
#include "tests/stress/stress_model.h"

namespace quire::engine {

// `threads` is the thread count of the CPU backend.
std::unique_ptr<StressModel> MakeStoryModel(
    int threads, models::Quantization quantization = models::Quantization::kAuto);
// The model in a directory of testdata/models. Pages that are free when a step runs are NaN. On a
// GPU, f32 pages are used with f32 activations and bf16 pages with bf16.
std::unique_ptr<StressModel> MakeFixtureModel(const std::string& folder, int threads,
                                              DeviceKind device = DeviceKind::kCpu,
                                              DType kv_dtype = DType::kF32);

}  // namespace quire::engine
