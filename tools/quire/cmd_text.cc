// quire tokenize, quire detokenize.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/client.h"
#include "tools/quire/unary_call.h"

namespace quire::client {
namespace {

using Stub = v1::GenerationService::Stub;

struct TextOptions {
  std::string text;
  std::vector<std::int32_t> ids;
  bool no_special = false;
  bool pieces = false;
  bool skip_special = false;
};

int RunTokenize(const CommonOptions& common, const TextOptions& options) {
  v1::TokenizeRequest request;
  request.set_text(options.text);
  request.set_add_special_tokens(!options.no_special);
  request.set_with_pieces(options.pieces);
  const auto print = [&options](const v1::TokenizeResponse& response) {
    if (!options.pieces) {
      std::printf("%s\n", absl::StrJoin(response.token_ids(), " ").c_str());
      return;
    }
    for (int i = 0; i < response.pieces_size(); ++i) {
      const v1::TokenPiece& piece = response.pieces(i);
      std::printf("%7d  %5d..%-5d  \"%s\"%s\n", response.token_ids(i), piece.start_byte(),
                  piece.end_byte(), absl::Utf8SafeCHexEscape(piece.piece()).c_str(),
                  piece.special() ? "  special" : "");
    }
  };
  return CallAndPrint(common, common.address, &Stub::Tokenize, request, print);
}

int RunDetokenize(const CommonOptions& common, const TextOptions& options) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(options.ids.begin(), options.ids.end());
  request.set_skip_special_tokens(options.skip_special);
  const auto print = [](const v1::DetokenizeResponse& response) {
    std::printf("%s\n", response.text().c_str());
  };
  return CallAndPrint(common, common.address, &Stub::Detokenize, request, print);
}

}  // namespace

void AddText(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto options = std::make_shared<TextOptions>();
  CLI::App* tokenize = app->add_subcommand("tokenize", "convert text to token ids");
  tokenize->add_option("text", options->text, "the text")->required();
  tokenize->add_flag("--no-special", options->no_special, "do not add special tokens");
  tokenize->add_flag("--pieces", options->pieces, "print one line per token, with its bytes");
  tokenize->callback([=] { *exit_code = RunTokenize(*common, *options); });
  CLI::App* detokenize = app->add_subcommand("detokenize", "convert token ids to text");
  detokenize->add_option("ids", options->ids, "token ids")->required()->delimiter(',');
  detokenize->add_flag("--skip-special", options->skip_special, "omit special tokens");
  detokenize->callback([=] { *exit_code = RunDetokenize(*common, *options); });
}

}  // namespace quire::client
