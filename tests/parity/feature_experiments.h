#pragma once

// Features of fixtures, and how tests switch each of them off.

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/parity/edited_fixture.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {

using Change = std::function<void(EditedFixture&)>;
using SpecChange = std::function<void(ModelSpec*)>;
using StateChange = decltype(ReplayOptions::edit_state);
using WeightChange = std::function<void(std::span<LayerWeights>)>;

// One feature, switched off in the files, or in the spec or the weights of the loaded model.
struct Experiment {
  const char* feature;  // as in feature_checks
  Change files = nullptr;
  SpecChange spec = nullptr;
  StateChange state = nullptr;  // of each row before each step of 64 tokens
  WeightChange weights = nullptr;
};

// The experiments of each fixture.
using ExperimentMap = std::map<std::string, std::vector<Experiment>>;

inline Change SetConfig(const std::string& key, const nlohmann::json& value) {
  return [=](EditedFixture& fixture) { fixture.config()[key] = value; };
}

inline Change Fill(const std::string& pattern, float value) {
  return [=](EditedFixture& fixture) {
    fixture.EditTensors(pattern, [=](std::vector<float>& values) {
      std::fill(values.begin(), values.end(), value);
    });
  };
}

inline SpecChange EachLayer(const std::function<void(LayerSpec&)>& change) {
  return [=](ModelSpec* spec) {
    for (LayerSpec& layer : spec->layers) change(layer);
  };
}

inline SpecChange NoQkNorm() {
  return EachLayer([](LayerSpec& layer) { layer.heads.qk_norm = {}; });
}

inline SpecChange EachLatent(const std::function<void(MlaSpec&)>& change) {
  return EachLayer([=](LayerSpec& layer) { change(layer.mla); });
}

inline void NoLatentNorms(MlaSpec& mla) {
  mla.latent_eps = 0;
}

// Returns the experiments of fixtures with recurrent layers or short convolutions.
ExperimentMap RecurrentExperiments();

}  // namespace quire::models::parity
