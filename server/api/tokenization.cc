#include "server/api/tokenization.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "quire/v1/text.pb.h"
#include "server/api/chat_translator.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::server {
namespace {

absl::Status CheckBytes(std::int64_t bytes, std::int64_t max_bytes) {
  if (bytes <= max_bytes) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat("text has ", bytes, " bytes, at most ",
                                                            max_bytes, " are allowed")),
                    Reason::kInputTooLarge,
                    {{"bytes", absl::StrCat(bytes)}, {"max_bytes", absl::StrCat(max_bytes)}});
}

absl::StatusOr<text::RenderedChat> Render(const ServedModel& served, const v1::ChatPrompt& chat,
                                          std::int64_t max_bytes, absl::Time wall_now) {
  const std::shared_ptr<const text::ChatTemplates> templates = served.translator.options()->chat;
  QUIRE_ASSIGN_OR_RETURN(const text::ChatInput input, ToChatInput(chat, templates->json_limits()));
  QUIRE_RETURN_IF_ERROR(CheckBytes(text::InputBytes(input), max_bytes));
  return templates->Render(input, wall_now);
}

}  // namespace

absl::Status CheckTokenTexts(std::size_t num_tokens, absl::string_view field) {
  if (num_tokens <= kMaxTokenTexts) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        field, ": the input has ", num_tokens, " tokens, at most ", kMaxTokenTexts,
                        " are allowed; split the input, or omit ", field)),
                    Reason::kInputTooLarge,
                    {{"field", std::string(field)},
                     {"tokens", absl::StrCat(num_tokens)},
                     {"max_tokens", absl::StrCat(kMaxTokenTexts)}});
}

absl::Status RenderChat(const ServedModel& served, std::int64_t max_bytes, absl::Time wall_now,
                        const v1::RenderChatRequest& request, v1::RenderChatResponse* response) {
  QUIRE_RETURN_IF_ERROR(served.translator.CheckModel(request.model()));
  QUIRE_ASSIGN_OR_RETURN(text::RenderedChat rendered,
                         Render(served, request.chat(), max_bytes, wall_now));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids,
                         served.tokenizer->Encode(rendered.text, {.add_special_tokens = false,
                                                                  .from_template = true,
                                                                  .literal = rendered.literal}));
  response->set_text(std::move(rendered.text));
  response->mutable_token_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status Tokenize(const ServedModel& served, std::int64_t max_bytes, absl::Time wall_now,
                      const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  QUIRE_RETURN_IF_ERROR(served.translator.CheckModel(request.model()));
  text::RenderedChat rendered;
  if (request.has_chat()) {
    QUIRE_ASSIGN_OR_RETURN(rendered, Render(served, request.chat(), max_bytes, wall_now));
  } else if (request.has_text()) {
    rendered.text = request.text();
  } else {
    return WithReason(absl::InvalidArgumentError("input is missing; set one of text and chat"),
                      Reason::kPromptMissing, {{"field", "input"}});
  }
  const std::string& text = rendered.text;
  QUIRE_RETURN_IF_ERROR(CheckBytes(static_cast<std::int64_t>(text.size()), max_bytes));
  const text::EncodeOptions options{
      // A chat template contains the special tokens that the tokenizer would add.
      .add_special_tokens =
          !request.has_chat() &&
          (request.has_add_special_tokens() ? request.add_special_tokens() : true),
      .parse_special_tokens =
          request.has_parse_special_tokens() ? request.parse_special_tokens() : true,
      .from_template = request.has_chat(),
      .literal = rendered.literal};
  response->set_max_context_tokens(served.description.max_context_tokens);
  // The tokens of a long text are only counted at first, so that too many tokens are refused before
  // memory for their pieces is allocated.
  if (!request.with_pieces() || text.size() > kMaxTokenTexts) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids,
                           served.tokenizer->Encode(text, options));
    if (!request.with_pieces()) {
      response->mutable_token_ids()->Assign(ids.begin(), ids.end());
      return absl::OkStatus();
    }
    QUIRE_RETURN_IF_ERROR(CheckTokenTexts(ids.size(), "with_pieces"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<text::TokenPiece> pieces,
                         served.tokenizer->EncodeWithPieces(text, options));
  for (const text::TokenPiece& piece : pieces) {
    response->add_token_ids(piece.id);
    v1::TokenPiece* message = response->add_pieces();
    message->set_piece(piece.piece);
    message->set_start_byte(piece.start_byte);
    message->set_end_byte(piece.end_byte);
    message->set_special(piece.special);
  }
  return absl::OkStatus();
}

absl::Status Detokenize(const ServedModel& served, const v1::DetokenizeRequest& request,
                        v1::DetokenizeResponse* response) {
  QUIRE_RETURN_IF_ERROR(served.translator.CheckModel(request.model()));
  const text::Tokenizer& tokenizer = *served.tokenizer;
  const std::vector<std::int32_t> ids(request.token_ids().begin(), request.token_ids().end());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.HasText(ids[i])) continue;
    return WithReason(absl::InvalidArgumentError(absl::StrCat("token id ", ids[i], " at position ",
                                                              i, " is not in the vocabulary of ",
                                                              tokenizer.vocab_size())),
                      Reason::kBadTokenId,
                      {{"token_id", absl::StrCat(ids[i])},
                       {"position", absl::StrCat(i)},
                       {"vocab_size", absl::StrCat(tokenizer.vocab_size())}});
  }
  QUIRE_ASSIGN_OR_RETURN(*response->mutable_text(),
                         tokenizer.Decode(ids, request.skip_special_tokens()));
  QUIRE_ASSIGN_OR_RETURN(*response->mutable_raw(),
                         tokenizer.DecodeBytes(ids, request.skip_special_tokens()));
  return absl::OkStatus();
}

}  // namespace quire::server
