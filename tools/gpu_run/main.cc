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
  for (const auto& stage : kStages) names.push_back(stage.name);

  CLI::App app("Checks the CUDA kernels of this bundle on this machine's GPU");
  app.add_option("--minutes", options.minutes, "all of it ends within this time")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_option("--item-seconds", options.item_seconds, "no process gets more than this")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--prompts", options.prompts, "prompts of the comparison with and without overlap")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--out", options.archive, "the archive of results")->capture_default_str();
  app.add_flag("--emulated", options.is_emulated, "facts and smoke, on an emulated GPU");
  app.add_option("stages", options.stages, "which to run; none: all")->check(CLI::IsMember(names));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 64;
  }
  if (options.is_emulated) {
    if (options.stages.empty()) options.stages = {"facts", "smoke"};
    for (const std::string& stage : options.stages) {
      if (stage == "facts" || stage == "smoke") continue;
      std::fprintf(stderr, "--emulated has no stage %s, only facts and smoke\n", stage.c_str());
      return 64;
    }
  }
  std::error_code error;
  options.bundle = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) options.bundle = std::filesystem::absolute(argv[0]).parent_path();
  options.archive = std::filesystem::absolute(options.archive);
  return quire::gpu_run::Check(options);
}
