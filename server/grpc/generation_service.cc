#include "server/grpc/generation_service.h"

#include <sys/sysinfo.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "quire/v1/generation.grpc.pb.h"
#include "server/api/call_worker.h"
#include "server/api/response_translator.h"
#include "server/api/tokenization.h"
#include "server/config/live_config.h"
#include "server/grpc/call_util.h"
#include "server/grpc/evaluation_reactor.h"
#include "server/grpc/generate_reactor.h"
#include "server/grpc/unary_call.h"

namespace quire::server {
namespace {

using Base = v1::GenerationService;
// Requests arrive as bytes. Therefore only requests of authorized callers are parsed
// (unary_call.h), and the error for invalid UTF-8 names the field.
using RawService = Base::WithRawCallbackMethod_Generate<Base::WithRawCallbackMethod_BatchGenerate<
    Base::WithRawCallbackMethod_Tokenize<Base::WithRawCallbackMethod_Detokenize<
        Base::WithRawCallbackMethod_RenderChat<Base::WithRawCallbackMethod_Embed<
            Base::WithRawCallbackMethod_Score<Base::WithRawCallbackMethod_GetModel<
                Base::WithRawCallbackMethod_ListModels<Base::WithRawCallbackMethod_GetServerInfo<
                    Base::WithRawCallbackMethod_Cancel<Base::Service>>>>>>>>>>>;

constexpr std::size_t kMaxWaitingTextCalls = 256;
constexpr std::int32_t kMaxPageSize = 1000;

void FillDevice(const runtime::DeviceDescription& description, v1::Device* device) {
  const Device& used = description.device;
  device->set_kind(used.is_cpu() ? "cpu" : "cuda");
  device->set_ordinal(0);  // index among the devices in use, of which there is one
  device->set_name(description.name);
  device->set_architecture(description.architecture);
  device->set_activations(description.activations);
  const runtime::SelfCheck& check = description.self_check;
  device->mutable_self_check()->set_checks(check.checks);
  device->mutable_self_check()->set_seconds(absl::ToDoubleSeconds(check.time));
  for (const std::string& level : check.skipped_levels) {
    device->mutable_self_check()->add_skipped_levels(level);
  }
  if (!used.is_cpu()) {
    device->set_memory_total_bytes(used.memory_bytes);
    const absl::StatusOr<std::int64_t> free_bytes = FreeDeviceMemory(used);
    if (free_bytes.ok()) device->set_memory_free_bytes(*free_bytes);
    return;
  }
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return;
  device->set_memory_total_bytes(static_cast<std::int64_t>(info.totalram) * info.mem_unit);
  device->set_memory_free_bytes(static_cast<std::int64_t>(info.freeram) * info.mem_unit);
}

class GenerationService final : public RawService {
 public:
  GenerationService(const HandlerContext& context, const ServerDescription& description)
      : context_(context), description_(description), worker_(1, kMaxWaitingTextCalls) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  using Bytes = grpc::ByteBuffer;

  grpc::ServerWriteReactor<Bytes>* Generate(Context* call, const Bytes* request) override {
    return StartGenerate(context_, call, *request, MakeGenerateFormat());
  }

  grpc::ServerBidiReactor<Bytes, Bytes>* BatchGenerate(Context* call) override {
    return StartBatchGenerate(context_, call);
  }

  Reactor* Tokenize(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::TokenizeRequest, v1::TokenizeResponse>(
        Unary("Tokenize", call, request, response), &worker_,
        [this, wall_now = context_.clock->WallNow()](const Identity&, const auto& in,
                                                     auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::Tokenize(*served, MaxInputBytes(), wall_now, in, out);
        });
  }

  Reactor* Detokenize(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        Unary("Detokenize", call, request, response), &worker_,
        [this](const Identity&, const auto& in, auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::Detokenize(*served, in, out);
        });
  }

  Reactor* RenderChat(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::RenderChatRequest, v1::RenderChatResponse>(
        Unary("RenderChat", call, request, response), &worker_,
        [this, wall_now = context_.clock->WallNow()](const Identity&, const auto& in,
                                                     auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::RenderChat(*served, MaxInputBytes(), wall_now, in, out);
        });
  }

  Reactor* Embed(Context* call, const Bytes* request, Bytes* response) override {
    return StartEmbed(Unary("Embed", call, request, response), &worker_);
  }
  Reactor* Score(Context* call, const Bytes* request, Bytes* response) override {
    return StartScore(Unary("Score", call, request, response), &worker_);
  }

  Reactor* GetModel(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::GetModelRequest, v1::GetModelResponse>(
        Unary("GetModel", call, request, response),
        [this](const Identity&, const auto& in, auto* out) { return FillGetModel(in, out); });
  }

  Reactor* ListModels(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::ListModelsRequest, v1::ListModelsResponse>(
        Unary("ListModels", call, request, response),
        [this](const Identity&, const auto& in, auto* out) { return FillListModels(in, out); });
  }

  Reactor* GetServerInfo(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
        Unary("GetServerInfo", call, request, response),
        [this](const Identity&, const auto&, auto* out) {
          FillServerInfo(out);
          return absl::OkStatus();
        });
  }

  Reactor* Cancel(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::CancelRequest, v1::CancelResponse>(
        Unary("Cancel", call, request, response),
        [this](const Identity& caller, const auto& in, auto* out) {
          return CancelRequest(caller, in, out);
        });
  }

 private:
  UnaryCall Unary(absl::string_view method, Context* call, const Bytes* request, Bytes* response) {
    return {context_, call, request, response, method, Scope::kGenerate};
  }

  std::int64_t MaxInputBytes() const { return context_.config->options()->engine.max_input_bytes; }

  absl::Status FillGetModel(const v1::GetModelRequest& request, v1::GetModelResponse* response) {
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
    QUIRE_RETURN_IF_ERROR(served->translator.CheckModel(request.model()));
    ToProto(*served, response->mutable_model());
    return absl::OkStatus();
  }

  // There is one model, so the list has one page.
  absl::Status FillListModels(const v1::ListModelsRequest& request,
                              v1::ListModelsResponse* response) {
    QUIRE_RETURN_IF_ERROR(CheckPage(request.page_size(), request.page_token()));
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
    ToProto(*served, response->add_models());
    return absl::OkStatus();
  }

  static absl::Status CheckPage(std::int32_t page_size, const std::string& page_token) {
    if (page_size < 0) {
      return BadParameter(
          "page_size", absl::StrCat(page_size),
          absl::StrCat("at least 0; values above ", kMaxPageSize, " count as ", kMaxPageSize));
    }
    if (!page_token.empty()) {
      return BadParameter("page_token", page_token, "empty or the next_page_token of a response");
    }
    return absl::OkStatus();
  }

  void FillServerInfo(v1::GetServerInfoResponse* response) {
    response->set_version(description_.version);
    response->set_git_commit(description_.git_commit);
    response->set_build_type(description_.build_type);
    ToProto(context_.clock->ToWall(description_.start_time), response->mutable_start_time());
    response->set_state(ToProto(context_.state->state()));
    response->set_config_sha256(context_.config->config()->Sha256());
    v1::Limits* limits = response->mutable_limits();
    limits->set_max_receive_message_bytes(description_.max_receive_message_bytes);
    const ServedModel* served = context_.state->model();
    if (served == nullptr) return;
    FillDevice(served->device, response->add_devices());
    const std::shared_ptr<const TranslatorOptions> options = served->translator.options();
    limits->set_max_context_tokens(served->description.max_context_tokens);
    limits->set_max_running_sequences(served->engine->max_running_sequences());
    limits->set_max_choices(options->limits.max_choices);
    limits->set_max_logprobs(options->limits.max_logprobs);
    limits->set_max_stop_sequences(options->limits.max_stop_sequences);
    limits->set_max_logit_bias_entries(options->limits.max_logit_bias_entries);
    limits->set_default_max_tokens(options->default_max_tokens);
    if (options->max_request_duration != absl::InfiniteDuration()) {
      ToProto(options->max_request_duration, limits->mutable_max_request_duration());
    }
  }

  absl::Status CancelRequest(const Identity& caller, const v1::CancelRequest& request,
                             v1::CancelResponse* response) {
    QUIRE_RETURN_IF_ERROR(CheckRequestId(request.request_id(), "request_id"));
    QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
    response->set_found(served->engine->Cancel({caller.tenant, caller.principal},
                                               request.request_id(), engine::CancelSource::kApi));
    return absl::OkStatus();
  }

  const HandlerContext context_;
  const ServerDescription description_;
  CallWorker worker_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGenerationService(const HandlerContext& context,
                                                     const ServerDescription& description) {
  return std::make_unique<GenerationService>(context, description);
}

}  // namespace quire::server
