#include "server/config/flags.h"

#include <CLI/CLI.hpp>

namespace quire::server {

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("model", flags->model,
                  "model directory or GGUF file, short for --set model.path=MODEL");
  app->add_option("--config", flags->sources.files, "YAML configuration file, repeatable")
      ->allow_extra_args(false);
  app->add_option("--set", flags->sources.sets, "set one configuration key: KEY=VALUE, repeatable")
      ->allow_extra_args(false);
  app->add_flag(
      "--validate", flags->validate,
      "check the configuration, memory plan, tokens and certificates included, without loading the "
      "model; exit with 0 or 78");
  app->add_flag("--self-check", flags->self_check,
                "compare the kernels of the GPU, or of every instruction set of this CPU, with "
                "their references, print a table, and exit with 0 or 78");
  app->add_flag(
         "--print-effective-config{yaml}", flags->print_format,
         "print the effective configuration as YAML with origins, or as JSON (=json), and exit")
      ->check(CLI::IsMember({"yaml", "json"}));
}

}  // namespace quire::server
