// quire completion: what a shell needs to complete quire and quired. quire manual, hidden: all of
// that and the manual pages as files, for the build.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

ManualText AboutQuire() {
  return {
      .section = 1,
      .summary = "client of quired, the LLM inference server",
      .description =
          {"Sends requests to a running quired over gRPC and shows what it answers. Generated text "
           "goes to standard output as it comes, notes go to standard error, and an interrupt "
           "cancels the request on the server. Options that stand before the command may also "
           "stand after it.",
           "Completion in a shell: source <(quire completion bash), likewise zsh, or "
           "quire completion fish | source."},
      .lists = {{"EXIT STATUS",
                 {{"0", "done"},
                  {"1", "the request failed; CODE/REASON: message is on standard error"},
                  {"2", "wrong usage"},
                  {"3", "cannot connect"},
                  {"130", "bench was interrupted; its report is of what was done"}}},
                {"FILES",
                 {{"/run/quire/admin.sock",
                   "control listener without --admin; else that in $XDG_RUNTIME_DIR/quire or in "
                   "quire-UID in the temporary directory, if no other user may enter there"}}}},
      .see_also = ".BR quired (8)",
  };
}

ManualText AboutQuired() {
  return {
      .section = 8,
      .summary = "LLM inference server",
      .description =
          {"Loads one model and serves it over gRPC: data on server.grpc.listen, control on "
           "server.admin.listen, health and metrics over HTTP on server.http.listen. Without a "
           "model it serves a small story model that it carries inside.",
           "Values come from built-in defaults, then the profile, the files of --config, variables "
           "QUIRE__SECTION__KEY, and --set; later ones win."},
      .lists = {{"SIGNALS",
                 {{"SIGTERM, SIGINT", "drain and end; a second one ends the process at once"},
                  {"SIGHUP", "read the configuration again, all or nothing; reopen the log file"},
                  {"SIGUSR1", "live requests to the log"}}},
                {"EXIT STATUS",
                 {{"0", "ended as asked, drained"},
                  {"1", "forced by a second signal"},
                  {"64", "wrong usage"},
                  {"70", "engine failure"},
                  {"71", "device error"},
                  {"78", "configuration or model refused, or an address in use"}}},
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
  // Its default is the socket that is found on this machine, and the pages are for others.
  for (CliOption& option : quire.options) {
    if (option.names == std::vector<std::string>{"--admin"}) option.default_value.clear();
  }
  std::ifstream keys(options.keys, std::ios::binary);
  const std::string configuration(std::istreambuf_iterator<char>(keys), {});
  if (configuration.empty()) {
    std::fprintf(stderr, "quire: %s cannot be read, or is empty\n", options.keys.c_str());
    return kRequestFailed;
  }
  ManualText about_quired = AboutQuired();
  about_quired.configuration = configuration;
  for (auto& [program, about] :
       {std::pair{quire, AboutQuire()}, std::pair{ReadQuired(), std::move(about_quired)}}) {
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
  CLI::App* completion =
      app->add_subcommand("completion", "print what a shell needs to complete this program");
  completion->add_option("shell", options->shell, "which one")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->add_option("--program", options->program, "what to complete")
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
  writer->group("");  // for the build; help does not show it
  writer->add_option("--out", manual->directory, "directory to write")->required();
  writer->add_option("--date", manual->date, "of the pages, YYYY-MM-DD")->required();
  writer->add_option("--keys", manual->keys, "file with all configuration keys")->required();
  writer->callback([=] { *exit_code = WriteManual(*manual, ReadCommandLine(*app)); });
}

}  // namespace quire::client
