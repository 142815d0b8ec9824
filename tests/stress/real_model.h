#pragma once

// For stress tests: the story model of assets/ or a fixture, with the CpuRunner or CudaRunner that
// the daemon uses.

#include <memory>
#include <string>

#include "base/device.h"
#include "base/dtype.h"
#include "models/weights/quantization.h"
#include "tests/stress/stress_model.h"

namespace quire::engine {

// `threads` is the number of threads of the CPU backend.
std::unique_ptr<StressModel> MakeStoryModel(
    int threads, models::Quantization quantization = models::Quantization::kAuto);
// Loads the model in a directory of testdata/models. Pages and state slots that are free when a
// step runs contain NaN. On a GPU, f32 pages are combined with f32 activations and bf16 pages with
// bf16.
std::unique_ptr<StressModel> MakeFixtureModel(const std::string& folder, int threads,
                                              DeviceKind device = DeviceKind::kCpu,
                                              DType kv_dtype = DType::kF32);

}  // namespace quire::engine
