#include "engine/request/engine_probe.h"

namespace quire::engine {
namespace {

probe::Labels ModelLabels(const EngineProbe::Options& options) {
  return {{"model_name", options.model_name}};
}

}  // namespace

EngineProbe::EngineProbe(probe::Registry* the_registry, const Options& options)
    : own_registry(the_registry == nullptr ? std::make_unique<probe::Registry>() : nullptr),
      registry(the_registry == nullptr ? own_registry.get() : the_registry),
      requests(registry, ModelLabels(options), options.model_name),
      answers(registry, ModelLabels(options), options.max_context_tokens),
      steps(registry, ModelLabels(options)),
      cache(registry, ModelLabels(options), options.page_size, options.num_pages,
            options.kv_dtype) {}

}  // namespace quire::engine
