// `run` of a bundle for a GPU machine (scripts/gpu_bundle): ./run --minutes 9 [STAGE...]

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/gpu_run/check.h"

int main(int argc, char** argv) {
  using quire::gpu_run::kStages;
  quire::gpu_run::Options options;
  options.archive = "results.tar.gz";
  std::vector<std::string> names;
  for (const auto& stage : kStages) names.emplace_back(stage.name);

  CLI::App app("Checks the CUDA kernels of this bundle on the GPU of this machine");
  app.add_option("--minutes", options.minutes, "time limit of the whole check in minutes")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_option("--item-seconds", options.item_seconds, "time limit of each process in seconds")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--prompts", options.prompts,
                 "prompts for comparing runs with and without overlap scheduling")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--out", options.archive, "archive to write the results to")
      ->capture_default_str();
  app.add_flag("--emulated", options.is_emulated, "run facts and smoke on an emulated GPU");
  app.add_option("stages", options.stages, "stages to run (default: all)")
      ->check(CLI::IsMember(names));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 64;
  }
  if (options.is_emulated) {
    if (options.stages.empty()) options.stages = {"facts", "smoke"};
    for (const std::string& stage : options.stages) {
      if (stage == "facts" || stage == "smoke") continue;
      std::fprintf(stderr, "--emulated does not support the stage %s, only facts and smoke\n",
                   stage.c_str());
      return 64;
    }
  }
  std::error_code error;
  options.bundle = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) options.bundle = std::filesystem::absolute(argv[0]).parent_path();
  options.archive = std::filesystem::absolute(options.archive);
  return quire::gpu_run::Check(options);
}
