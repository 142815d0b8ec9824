// quire completion: prints shell completion scripts for quire and quired. quire manual (hidden):
// writes all scripts and the manual pages to files, for the build.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/config/flags.h"
#include "tools/quire/cli_tree.h"
#include "tools/quire/client.h"
#include "tools/quire/completion.h"
#include "tools/quire/manual.h"

namespace quire::client {
namespace {

struct CompletionOptions {
  std::string shell;
  std::string program = "quire";
};

struct ManualOptions {
  std::string directory;
  std::string date;
  std::string keys;  // file with all configuration keys
};

CliCommand ReadQuired() {
  server::Flags flags;
  CLI::App app("LLM inference server", "quired");
  app.set_version_flag("--version", QUIRE_VERSION);
  server::AddFlags(&app, &flags);
  return ReadCommandLine(app);
}

std::string Script(const std::string& shell, const CliCommand& program) {
  if (shell == "bash") return BashCompletion(program);
  return shell == "zsh" ? ZshCompletion(program) : FishCompletion(program);
}

ManualText DescribeQuire() {
  return {
      .section = 1,
      .summary = "client of quired, the LLM inference server",
      .description =
          {"Sends requests to a running quired over gRPC and prints the answers. Generated text is "
           "streamed to standard output, other messages go to standard error. An interrupt cancels "
           "the request on the server. Common options can be given before or after the command.",
           "To enable completion, run: source <(quire completion bash) in bash, source <(quire "
           "completion zsh) in zsh, or quire completion fish | source in fish."},
      .lists =
          {{"EXIT STATUS",
            {{"0", "success"},
             {"1", "the request failed; CODE/REASON: message is on standard error"},
             {"2", "wrong usage"},
             {"3", "cannot connect"},
             {"130",
              "interrupted; bench reports its completed part, pull keeps the bytes for the next "
              "run"}}},
           {"FILES",
            {{"/run/quire/admin.sock",
              "default control listener; otherwise the socket in $XDG_RUNTIME_DIR/quire or in "
              "quire-UID in the temporary directory, if that directory belongs to the user and "
              "has mode 0700; with --port-offset N the socket is admin.sock.N"}}}},
      .see_also = ".BR quired (8)",
  };
}

ManualText DescribeQuired() {
  return {
      .section = 8,
      .summary = "LLM inference server",
      .description =
          {"Loads one model and serves it over OpenAI-compatible HTTP on openai.listen and over "
           "gRPC on server.grpc.listen. Control is on server.admin.listen; a status page, health "
           "and metrics are on server.http.listen. Without a model argument it serves a small "
           "built-in story model.",
           "Values come from built-in defaults, the profile, the files of --config, environment "
           "variables QUIRE__SECTION__KEY, and --set. Later ones override earlier ones."},
      .lists = {{"SIGNALS",
                 {{"SIGTERM", "drain and exit; a second signal exits at once"},
                  {"SIGINT", "the same without shutdown.pre_drain_delay"},
                  {"SIGHUP", "reload the configuration and reopen the log file"},
                  {"SIGUSR1", "log the live requests"}}},
                {"EXIT STATUS",
                 {{"0", "stopped on request after a drain"},
                  {"1", "stopped by a second signal"},
                  {"64", "wrong usage"},
                  {"70", "engine failure or out of memory"},
                  {"71", "device error"},
                  {"78", "invalid configuration or model, or an address in use"}}},
                {"FILES",
                 {{"/run/quire/admin.sock",
                   "control listener; without a usable /run/quire it is in $XDG_RUNTIME_DIR/quire "
                   "or in quire-UID in the temporary directory"}}}},
      .see_also = ".BR quire (1)",
  };
}

bool Write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (file.good()) return true;
  std::fprintf(stderr, "quire: cannot write %s\n", path.c_str());
  return false;
}

int WriteManual(const ManualOptions& options, CliCommand quire) {
  // The default of --admin depends on the sockets of this machine, but the pages are for all
  // machines.
  for (CliOption& option : quire.options) {
    if (option.names == std::vector<std::string>{"--admin"}) option.default_value.clear();
  }
  std::ifstream keys(options.keys, std::ios::binary);
  const std::string configuration(std::istreambuf_iterator<char>(keys), {});
  if (configuration.empty()) {
    std::fprintf(stderr, "quire: %s cannot be read or is empty\n", options.keys.c_str());
    return kRequestFailed;
  }
  ManualText about_quired = DescribeQuired();
  about_quired.configuration = configuration;
  for (auto& [program, about] :
       {std::pair{quire, DescribeQuire()}, std::pair{ReadQuired(), std::move(about_quired)}}) {
    ManualText text = about;
    text.date = options.date;
    text.version = QUIRE_VERSION;
    const std::string stem = absl::StrCat(options.directory, "/", program.name);
    if (!Write(absl::StrCat(stem, ".", text.section), ManualPage(program, text))) {
      return kRequestFailed;
    }
    for (const char* shell : {"bash", "zsh", "fish"}) {
      if (!Write(absl::StrCat(stem, ".", shell), Script(shell, program))) return kRequestFailed;
    }
  }
  return kOk;
}

}  // namespace

void AddCompletion(CLI::App* app, int* exit_code) {
  auto options = std::make_shared<CompletionOptions>();
  CLI::App* completion = app->add_subcommand("completion", "print a shell completion script");
  completion->add_option("shell", options->shell, "shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->add_option("--program", options->program, "program to complete")
      ->capture_default_str()
      ->check(CLI::IsMember({"quire", "quired"}));
  completion->callback([=] {
    const CliCommand program = options->program == "quire" ? ReadCommandLine(*app) : ReadQuired();
    const std::string script = Script(options->shell, program);
    std::fwrite(script.data(), 1, script.size(), stdout);
    *exit_code = kOk;
  });

  auto manual = std::make_shared<ManualOptions>();
  CLI::App* writer = app->add_subcommand("manual", "write manual pages and completion scripts");
  writer->group("");  // used by the build; hidden from --help
  writer->add_option("--out", manual->directory, "directory to write")->required();
  writer->add_option("--date", manual->date, "date of the pages, YYYY-MM-DD")->required();
  writer->add_option("--keys", manual->keys, "file with all configuration keys")->required();
  writer->callback([=] { *exit_code = WriteManual(*manual, ReadCommandLine(*app)); });
}

}  // namespace quire::client
