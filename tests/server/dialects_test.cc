// Endpoints of other APIs on the embedded model: Ollama's, vLLM's and sglang's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/api/tokenization.h"
#include "server/dialects/dialect_endpoints.h"
#include "server/openai/openai_listener.h"
#include "tests/server/http_client.h"
#include "tests/server/service_fixture.h"

namespace quire::server {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DialectsTest : public ServiceTest {
 protected:
  explicit DialectsTest(bool has_own_files = true) : ServiceTest({"openai.listen=127.0.0.1:0"}) {
    ServerIdentity server;
    server.version = "1.2.3";
    server.model_path = has_own_files ? "/models/m" : "embedded";
    server.has_own_files = has_own_files;
    server.metrics = &registry_;
    auto listener = OpenAiListener::Start({.state = state_.get(),
                                           .probe = probe_.get(),
                                           .clock = &clock_,
                                           .authenticator = authenticator_.get(),
                                           .config = config_.get()},
                                          nullptr, std::move(server), DialectTables());
    EXPECT_TRUE(listener.ok()) << listener.status();
    openai_ = *std::move(listener);
  }

  HttpReply Post(const std::string& path, const json& body) const {
    return HttpClient(openai_->address()).Ask("POST", path, body.dump());
  }
  HttpReply Get(const std::string& path, const std::string& method = "GET") const {
    return HttpClient(openai_->address()).Ask(method, path);
  }

  std::unique_ptr<OpenAiListener> openai_;
};

json Parsed(const HttpReply& reply) {
  return json::parse(reply.body, nullptr, false);
}

TEST_F(DialectsTest, InfoEndpoints) {
  EXPECT_EQ(Get("/version").body, R"({"version":"1.2.3"})");
  EXPECT_EQ(Get("/api/version").body, R"({"version":"1.2.3"})");
  EXPECT_EQ(Get("/load").body, R"({"server_load":0})");
  EXPECT_EQ(Get("/").body, "quire is running\n");
  HttpClient client(openai_->address());
  EXPECT_EQ(client.Ask("HEAD", "/").status, 200);
  EXPECT_EQ(client.Ask("GET", "/version").body, R"({"version":"1.2.3"})");  // no body before it
  EXPECT_EQ(Get("/ping").body, "ok\n");
  EXPECT_EQ(Post("/ping", json::object()).status, 200);
  const HttpReply wrong = Post("/version", json::object());
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: GET, HEAD\r\n"));
  EXPECT_EQ(Parsed(Post("/api/tags", json::object()))["error"],
            "method \"POST\" is not allowed; use GET, HEAD");
  EXPECT_EQ(Parsed(Get("/api/show"))["error"], "method \"GET\" is not allowed; use POST");
}

TEST_F(DialectsTest, ServerAndModelInSglangsFormat) {
  const json server = Parsed(Get("/server_info"));
  EXPECT_EQ(server["model_path"], "/models/m");
  EXPECT_EQ(server["served_model_name"], served().id());
  EXPECT_EQ(server["version"], "1.2.3");
  EXPECT_EQ(server["context_length"], served().description.max_context_tokens);
  EXPECT_GT(server["max_total_tokens"], 0);
  EXPECT_GT(server["max_running_requests"], 0);
  EXPECT_EQ(Parsed(Get("/get_server_info")), server);
  const json model = Parsed(Get("/model_info"));
  EXPECT_EQ(model["is_generation"], true);
  EXPECT_THAT(model["architectures"], ElementsAre(served().description.architecture));
  EXPECT_EQ(Parsed(Get("/get_model_info")), model);
  for (const json& info : {server, model}) EXPECT_EQ(info["tokenizer_path"], "/models/m");
}

TEST_F(DialectsTest, ServerInfoHasTheState) {
  EXPECT_EQ(Parsed(Get("/server_info"))["status"], "ready");
  ASSERT_TRUE(drain_->Begin(absl::Seconds(60), absl::Seconds(5), /*exit_after=*/false).ok());
  EXPECT_EQ(Parsed(Get("/server_info"))["status"], "draining");
  drain_->SkipDelay();
  EXPECT_EQ(state_->state(), LifeState::kDraining);
  EXPECT_EQ(Parsed(Get("/server_info"))["status"], "draining");
  ASSERT_TRUE(drain_->Resume().ok());
  EXPECT_EQ(Parsed(Get("/server_info"))["status"], "ready");
}

class EmbeddedModelTest : public DialectsTest {
 protected:
  EmbeddedModelTest() : DialectsTest(/*has_own_files=*/false) {}
};

TEST_F(EmbeddedModelTest, HasNoTokenizerPath) {
  for (const char* const path : {"/server_info", "/model_info"}) {
    const json info = Parsed(Get(path));
    EXPECT_EQ(info["model_path"], "embedded");
    EXPECT_EQ(info["tokenizer_path"], "");
  }
}

TEST_F(DialectsTest, MetricsAreThoseOfTheRegistry) {
  const HttpReply reply = Get("/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(reply.body, HasSubstr("# TYPE quire_requests_received_total counter"));
}

TEST_F(DialectsTest, TokenizeEqualsTheGrpcCall) {
  v1::TokenizeRequest request;
  request.set_text("Once upon a time");
  request.set_with_pieces(true);
  v1::TokenizeResponse wanted;
  grpc::ClientContext context;
  ASSERT_TRUE(generation_->Tokenize(&context, request, &wanted).ok());
  const HttpReply reply =
      Post("/tokenize", {{"prompt", "Once upon a time"}, {"return_token_strs", true}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = Parsed(reply);
  EXPECT_EQ(body["tokens"].get<std::vector<int>>(),
            std::vector<int>(wanted.token_ids().begin(), wanted.token_ids().end()));
  EXPECT_EQ(body["count"], wanted.token_ids_size());
  EXPECT_EQ(body["max_model_len"], served().description.max_context_tokens);
  ASSERT_EQ(body["token_strs"].size(), static_cast<std::size_t>(wanted.pieces_size()));
  for (int i = 0; i < wanted.pieces_size(); ++i) {
    EXPECT_EQ(body["token_strs"][static_cast<std::size_t>(i)], wanted.pieces(i).piece());
  }
  EXPECT_TRUE(Parsed(Post("/tokenize", {{"prompt", "x"}}))["token_strs"].is_null());
  const json bare =
      Parsed(Post("/tokenize", {{"prompt", "Once upon a time"}, {"add_special_tokens", false}}));
  const json back = Parsed(Post("/detokenize", {{"tokens", bare["tokens"]}}));
  EXPECT_EQ(back.dump(), R"({"prompt":"Once upon a time"})");
  EXPECT_TRUE(MetricBecomes("quire_rpcs_total{code=\"OK\",method=\"Tokenize\"}", 4));
  EXPECT_TRUE(MetricBecomes("quire_rpcs_total{code=\"OK\",method=\"Detokenize\"}", 1));
}

TEST_F(DialectsTest, TokenizeBoundsTheTextsOfTokens) {
  std::string prompt;
  while (prompt.size() < 1'200'000) prompt += "\u6f22 ";  // a token per byte
  const json ids = Parsed(Post("/tokenize", {{"prompt", prompt}}));
  ASSERT_GT(ids["count"], kMaxTokenTexts);
  EXPECT_TRUE(ids["token_strs"].is_null());
  const HttpReply refused = Post("/tokenize", {{"prompt", prompt}, {"return_token_strs", true}});
  EXPECT_EQ(refused.status, 413);
  const json error = Parsed(refused)["error"];
  EXPECT_EQ(error["param"], "return_token_strs");
  EXPECT_EQ(error["message"],
            absl::StrCat("return_token_strs: the input has ", ids["count"].get<std::int64_t>(),
                         " tokens, at most 1000000 are allowed; split the input, or omit "
                         "return_token_strs"));
  v1::TokenizeRequest request;
  request.set_text(prompt);
  request.set_with_pieces(true);
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = generation_->Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("with_pieces: the input has "));
}

TEST_F(DialectsTest, TokenizeRefusals) {
  struct Bad {
    const char* path;
    json body;
    int status;
    const char* param;
  };
  for (const Bad& bad :
       {Bad{"/tokenize", json::object(), 400, "prompt"},
        Bad{"/tokenize", {{"prompt", 1}}, 400, "prompt"},
        Bad{"/tokenize", {{"prompt", "x"}, {"model", "other"}}, 404, "model"},
        Bad{"/tokenize", {{"prompt", "x"}, {"messages", json::array()}}, 400, "prompt"},
        Bad{"/tokenize", {{"prompt", "x"}, {"add_special_token", true}}, 400, "add_special_token"},
        Bad{"/tokenize",
            {{"messages", json::array()}, {"add_special_tokens", true}},
            400,
            "add_special_tokens"},
        Bad{"/detokenize", json::object(), 400, "tokens"},
        Bad{"/detokenize", {{"tokens", {1, "x"}}}, 400, "tokens[1]"},
        Bad{"/detokenize", {{"tokens", {-1}}}, 400, "tokens[0]"},
        Bad{"/detokenize", {{"tokens", {1, 99999999}}}, 400, "tokens"}}) {
    const HttpReply reply = Post(bad.path, bad.body);
    EXPECT_EQ(reply.status, bad.status) << bad.body << reply.body;
    EXPECT_EQ(Parsed(reply)["error"]["param"], bad.param) << reply.body;
  }
}

TEST_F(DialectsTest, OllamaListsAndShowsTheModel) {
  const json tags = Parsed(Get("/api/tags"));
  ASSERT_EQ(tags["models"].size(), 1u);
  const json& entry = tags["models"][0];
  EXPECT_EQ(entry["name"], served().id());
  EXPECT_EQ(entry["size"], served().description.weight_bytes);
  EXPECT_EQ(entry["details"]["family"], served().description.architecture);
  const json running = Parsed(Get("/api/ps"))["models"][0];
  EXPECT_EQ(running["size_vram"], 0);
  EXPECT_EQ(running["context_length"], served().description.max_context_tokens);
  const json shown = Parsed(Post("/api/show", {{"model", served().id() + ":latest"}}));
  EXPECT_EQ(shown["details"], entry["details"]);
  EXPECT_EQ(shown["model_info"]["general.architecture"], served().description.architecture);
  EXPECT_THAT(shown["capabilities"], ::testing::Contains("completion"));
  const HttpReply unknown = Post("/api/show", {{"model", "other"}});
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Parsed(unknown)["error"].get<std::string>().substr(0, 13), "model \"other\"");
  EXPECT_EQ(Post("/api/show", {{"name", "other"}}).status, 404);
  EXPECT_EQ(Parsed(Post("/api/show", {{"name", served().id()}})), shown);
  EXPECT_EQ(Parsed(Post("/api/show", {{"name", served().id()}, {"model", served().id()}})), shown);
  const HttpReply conflict = Post("/api/show", {{"name", "other"}, {"model", served().id()}});
  EXPECT_EQ(conflict.status, 400);
  EXPECT_EQ(Parsed(conflict)["error"], "name differs from model; send only one of them");
  const HttpReply pull = Post("/api/pull", {{"model", "x"}});
  EXPECT_EQ(pull.status, 400);
  EXPECT_EQ(Parsed(pull)["error"],
            "/api/pull is not supported; run quire pull and start the server with that model");
}

TEST_F(DialectsTest, OllamaGenerateEqualsTheGrpcGeneration) {
  v1::GenerateRequest request = Request("Once upon a time", 12);
  const Answer wanted = Generate(request);
  json body = {{"model", served().id() + ":latest"},
               {"prompt", "Once upon a time"},
               {"raw", true},
               {"stream", false},
               {"options", {{"temperature", 0}, {"num_predict", 12}}}};
  const HttpReply whole = Post("/api/generate", body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const json answer = Parsed(whole);
  EXPECT_EQ(answer["response"], wanted.Text());
  EXPECT_EQ(answer["done_reason"], "length");
  EXPECT_EQ(answer["eval_count"], 12);
  EXPECT_EQ(answer["prompt_eval_count"], wanted.started()->prompt_tokens());
  EXPECT_GT(answer["total_duration"], 0);
  body.erase("stream");
  const HttpReply reply = Post("/api/generate", body);
  EXPECT_TRUE(reply.is_whole);
  EXPECT_THAT(reply.head, HasSubstr("application/x-ndjson"));
  std::string text;
  std::vector<std::string> lines = absl::StrSplit(reply.body, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) text += json::parse(line)["response"].get<std::string>();
  EXPECT_EQ(text, wanted.Text());
  EXPECT_EQ(json::parse(lines.back())["done"], true);
}

TEST_F(DialectsTest, OllamaErrorsHaveTheNamesOfItsFields) {
  const auto error = [&](const json& options) {
    const HttpReply reply =
        Post("/api/generate", {{"prompt", "x"}, {"raw", true}, {"options", options}});
    EXPECT_EQ(reply.status, 400) << reply.body;
    return Parsed(reply)["error"].get<std::string>();
  };
  EXPECT_THAT(error({{"top_p", 2}}), HasSubstr("options.top_p is 2"));
  EXPECT_THAT(error({{"repeat_penalty", -1}}), HasSubstr("options.repeat_penalty is -1"));
  EXPECT_THAT(error({{"num_predict", 0}}), HasSubstr("options.num_predict is 0"));
  const HttpReply other =
      Post("/api/chat", {{"model", "other"}, {"messages", {{{"role", "user"}}}}});
  EXPECT_EQ(other.status, 404);
  EXPECT_TRUE(Parsed(other)["error"].is_string()) << other.body;
}

TEST_F(DialectsTest, AnthropicAnswersHaveARequestIdInTheirHeader) {
  const json body = {{"max_tokens", 1}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  for (const char* const path :
       {"/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"}) {
    const HttpReply reply =
        HttpClient(openai_->address()).Ask("POST", path, body.dump(), "x-request-id: mine\r\n");
    EXPECT_THAT(reply.head, HasSubstr("\r\nx-request-id: mine\r\n")) << path;
    const bool has_second = reply.head.find("\r\nrequest-id: mine\r\n") != std::string::npos;
    EXPECT_EQ(has_second, std::string(path) != "/v1/chat/completions") << reply.head;
  }
}

TEST_F(DialectsTest, ForeignHostsAndOriginsAreErrorsOfThePathsApi) {
  const std::string origin = R"(origin "https://evil.example" is not listed in )"
                             "openai.allowed_origins";
  const std::string host = R"(the Host header "evil.example" is not an IP address or localhost; )"
                           "use one of these, or configure authentication";
  const auto error_of = [](const std::string& path, const std::string& message) {
    if (path[1] == 'a') return json{{"error", message}};
    return json{{"type", "error"},
                {"error", {{"type", "permission_error"}, {"message", message}}},
                {"request_id", nullptr}};
  };
  for (const char* const path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/x",
                                 "/api/chat", "/api/show", "/api/tags", "/api/pull"}) {
    const HttpReply from_page =
        HttpClient(openai_->address()).Ask("GET", path, "", "Origin: https://evil.example\r\n");
    EXPECT_EQ(from_page.status, 403);
    EXPECT_EQ(Parsed(from_page), error_of(path, origin)) << path;
    HttpClient client(openai_->address());
    EXPECT_TRUE(client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: evil.example\r\n\r\n")));
    const HttpReply to_name = client.Read();
    EXPECT_EQ(to_name.status, 403);
    EXPECT_EQ(Parsed(to_name), error_of(path, host)) << path;
  }
}

TEST_F(DialectsTest, OpenApiDescribesEveryPath) {
  const json document = Parsed(Get("/openapi.json"));
  EXPECT_EQ(document["openapi"], "3.1.0");
  EXPECT_EQ(document["info"]["version"], "1.2.3");
  std::set<std::string> ids;
  for (const auto& [path, item] : document["paths"].items()) {
    for (const auto& [method, operation] : item.items()) {
      EXPECT_TRUE(ids.insert(operation["operationId"]).second) << operation;
      // No path of the document is unknown.
      if (path.find('{') == path.npos) {
        const HttpReply reply =
            HttpClient(openai_->address()).Ask(method == "get" ? "GET" : "POST", path, "");
        EXPECT_NE(reply.status, 404) << path;
        EXPECT_NE(reply.status, 405) << path;
      }
    }
  }
  for (const char* const path : {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                 "/v1/models/{model}", "/tokenize", "/detokenize", "/ping",
                                 "/api/chat", "/api/tags", "/server_info", "/metrics"}) {
    EXPECT_TRUE(document["paths"].contains(path)) << path;
  }
}

}  // namespace
}  // namespace quire::server
