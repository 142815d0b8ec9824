#include "server/config/flags.h"

#include <CLI/CLI.hpp>

#include "server/config/validator.h"

namespace quire::server {

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("model", flags->sources.model,
                  "model directory, GGUF file, or the name of a model that `quire pull` downloaded "
                  "(ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE.gguf); short for --set "
                  "model.path=MODEL");
  app->footer(
      "By default quired serves the OpenAI-compatible API on http://127.0.0.1:8000/v1, gRPC on\n"
      "127.0.0.1:50051, and a status page, health and metrics on http://127.0.0.1:9464.");
  app->add_option("--config", flags->sources.files, "YAML configuration file, repeatable")
      ->allow_extra_args(false);
  app->add_option("--set", flags->sources.sets, "set one configuration key: KEY=VALUE, repeatable")
      ->allow_extra_args(false);
  app->add_option("--port-offset", flags->sources.port_offset,
                  "add N to every TCP port and the suffix .N to every Unix socket, so that several "
                  "daemons can run on one machine; port 0 stays 0. `quire --port-offset N` finds "
                  "the daemon")
      ->check(CLI::Range(0, kMaxPort))
      ->type_name("N");
  app->add_flag("--validate", flags->validate,
                "check the configuration, its files, the model and the memory plan without loading "
                "weights or listening, and exit with 0 or 78");
  app->add_flag("--self-check", flags->self_check,
                "compare the kernels of the GPU, or of every instruction set of this CPU, with "
                "their references, print a table, and exit with 0 or 78");
  app->add_flag(
         "--print-effective-config{yaml}", flags->print_format,
         "print the effective configuration as YAML with origins, or as JSON (=json), and exit")
      ->check(CLI::IsMember({"yaml", "json"}));
}

}  // namespace quire::server
