#include "server/config/flags.h"

#include <CLI/CLI.hpp>

namespace quire::server {

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("model", flags->model,
                  "model directory or GGUF file, short for --set model.path=MODEL");
  app->add_option("--config", flags->sources.files, "YAML file, repeatable")
      ->allow_extra_args(false);
  app->add_option("--set", flags->sources.sets, "KEY=VALUE, repeatable")->allow_extra_args(false);
  app->add_flag("--validate", flags->validate, "check everything short of loading; exit 0 or 78");
  app->add_flag("--print-effective-config{yaml}", flags->print_format,
                "print every value, as YAML with its origin or (=json) as JSON, and exit")
      ->check(CLI::IsMember({"yaml", "json"}));
}

}  // namespace quire::server
