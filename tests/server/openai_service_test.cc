// The OpenAI-compatible listener on the embedded model gives the same answers as gRPC.

#include "server/openai/openai_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/openai/openai_listener.h"
#include "tests/server/http_client.h"
#include "tests/server/service_fixture.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class OpenAiServiceTest : public ServiceTest {
 protected:
  explicit OpenAiServiceTest(std::vector<std::string> sets = {})
      : ServiceTest(With(std::move(sets))) {
    auto listener = OpenAiListener::Start({.state = state_.get(),
                                           .probe = probe_.get(),
                                           .clock = &clock_,
                                           .authenticator = authenticator_.get(),
                                           .config = config_.get()},
                                          nullptr);
    EXPECT_TRUE(listener.ok()) << listener.status();
    openai_ = *std::move(listener);
  }

  static std::vector<std::string> With(std::vector<std::string> sets) {
    sets.push_back("openai.listen=127.0.0.1:0");
    sets.push_back("openai.allowed_origins=[https://chat.example]");
    return sets;
  }

  HttpReply Post(const std::string& path, const json& body, const std::string& headers = "") const {
    return HttpClient(openai_->address()).Ask("POST", path, body.dump(), headers);
  }
  HttpReply Complete(const json& body) const { return Post("/v1/completions", body); }

  // Waits until nothing runs or waits.
  bool BecomesIdle() const { return served().engine->WaitIdle(MonotonicNow() + absl::Seconds(20)); }

  std::unique_ptr<OpenAiListener> openai_;
};

json Parsed(const HttpReply& reply) {
  return json::parse(reply.body, nullptr, false);
}

TEST_F(OpenAiServiceTest, CompletionEqualsTheGrpcGeneration) {
  v1::GenerateRequest request = Request("Once upon a time", 12);
  request.mutable_output()->set_logprobs(2);
  const Answer wanted = Generate(request);
  const HttpReply reply = Complete({{"model", served().id()},
                                    {"prompt", "Once upon a time"},
                                    {"max_tokens", 12},
                                    {"temperature", 0},
                                    {"ignore_eos", true},
                                    {"logprobs", 2}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = Parsed(reply);
  EXPECT_EQ(body["choices"][0]["text"], wanted.Text());
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], wanted.started()->prompt_tokens());
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  const json& logprobs = body["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["token_logprobs"].size(), 12u);
  for (int i = 0; i < 12; ++i) {
    const v1::TokenLogprob& token = wanted.completed()->logprobs(i);
    EXPECT_EQ(logprobs["token_logprobs"][static_cast<std::size_t>(i)].get<float>(),
              token.logprob());
    EXPECT_EQ(logprobs["tokens"][static_cast<std::size_t>(i)], token.token_bytes());
  }
}

// lm-eval's local-completions requests the log-probabilities of a prompt of ids, also when it is
// cached completely.
TEST_F(OpenAiServiceTest, EchoedLogprobsArePromptLogprobsAlsoWithAWarmCache) {
  v1::GenerateRequest request = Request("Once upon a time there was a little girl", 1);
  request.mutable_output()->set_prompt_logprobs(1);
  request.mutable_output()->set_echo_prompt(true);
  const Answer wanted = Generate(request);
  std::vector<float> scores;
  for (const auto& message : wanted.messages) {
    for (const auto& token : message.prompt_logprobs().tokens()) scores.push_back(token.logprob());
  }
  const v1::Started& started = *wanted.started();
  ASSERT_EQ(scores.size() + 1, static_cast<std::size_t>(started.prompt_tokens()));
  const std::vector<std::int32_t> ids(started.prompt_token_ids().begin(),
                                      started.prompt_token_ids().end());
  for (const int max_tokens : {1, 0, 1}) {
    const HttpReply reply = Complete({{"prompt", json::array({ids, ids})},
                                      {"max_tokens", max_tokens},
                                      {"temperature", 0},
                                      {"logprobs", 1},
                                      {"seed", 1234},
                                      {"echo", true}});
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json answer = Parsed(reply);
    for (const json& choice : answer["choices"]) {
      const json& logprobs = choice["logprobs"];
      ASSERT_EQ(logprobs["token_logprobs"].size(),
                ids.size() + static_cast<std::size_t>(max_tokens));
      EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
      double best_sum = 0;
      for (std::size_t i = 0; i < scores.size(); ++i) {
        EXPECT_EQ(logprobs["token_logprobs"][i + 1].get<float>(), scores[i]) << i;
        for (const auto& [text, value] : logprobs["top_logprobs"][i + 1].items()) {
          EXPECT_GE(value.get<float>(), scores[i]);
          best_sum += value.get<double>();
        }
      }
      EXPECT_LT(best_sum, 0);
    }
  }
}

TEST_F(OpenAiServiceTest, StreamsJoinToTheWholeAnswer) {
  json body = {{"prompt", {"Once", "The dog"}},
               {"max_tokens", 20},
               {"temperature", 0},
               {"n", 2},
               {"ignore_eos", true}};
  const json whole = Parsed(Complete(body));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = Complete(body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.is_whole);
  EXPECT_THAT(reply.head, HasSubstr("text/event-stream"));
  std::vector<std::string> texts(4), reasons(4);
  std::vector<std::string> events = absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty());
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "data: [DONE]");
  events.pop_back();
  const json last = json::parse(events.back().substr(6));
  // In the second iteration part of the prompt is cached.
  EXPECT_EQ(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
  events.pop_back();
  for (const std::string& event : events) {
    const json choice = json::parse(event.substr(6))["choices"][0];
    texts[choice["index"].get<std::size_t>()] += choice["text"].get<std::string>();
    if (!choice["finish_reason"].is_null()) {
      reasons[choice["index"].get<std::size_t>()] = choice["finish_reason"];
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"]) << i;
    EXPECT_EQ(reasons[i], "length");
  }
}

TEST_F(OpenAiServiceTest, ErrorsAreObjectsWithTheNamesOfThisApi) {
  struct Bad {
    json body;
    int status;
    const char* code;
    const char* param;
  };
  const json prompt = "Once";
  for (const Bad& bad :
       {Bad{{{"model", "other"}, {"prompt", prompt}}, 404, "model_not_found", "model"},
        Bad{{{"prompt", prompt}, {"n", 1000000000}}, 400, "invalid_value", "n"},
        Bad{{{"prompt", prompt}, {"top_p", 2}}, 400, "invalid_value", "top_p"},
        Bad{{{"prompt", prompt}, {"max_tokens", 0}}, 400, "invalid_value", "max_tokens"},
        Bad{{{"prompt", prompt}, {"temperature", "hot"}}, 400, "invalid_value", "temperature"},
        Bad{{{"prompt", ""}}, 400, "missing_required_parameter", "prompt"},
        Bad{{{"prompt", {1, 99999999}}}, 400, "bad_token_id", "prompt"},
        Bad{{{"prompt", {"fine", ""}}}, 400, "missing_required_parameter", "prompt[1]"},
        Bad{{{"prompt", {{1}, {2}, {1, 99999999}}}}, 400, "bad_token_id", "prompt[2]"},
        Bad{{{"prompt", prompt}, {"structured_outputs", {{"structural_tag", "{}"}}}},
            400,
            "invalid_value",
            "structured_outputs.structural_tag.type"}}) {
    const HttpReply reply = Complete(bad.body);
    EXPECT_EQ(reply.status, bad.status) << bad.body << reply.body;
    const json error = Parsed(reply)["error"];
    EXPECT_EQ(error["code"], bad.code) << reply.body;
    EXPECT_EQ(error["type"], "invalid_request_error");
    if (*bad.param != 0) {
      EXPECT_EQ(error["param"], bad.param) << reply.body;
    }
    EXPECT_THAT(error["message"].get<std::string>(), Not(HasSubstr("sampling.")));
  }
  EXPECT_TRUE(BecomesIdle());
}

TEST_F(OpenAiServiceTest, EndpointsAndMethods) {
  HttpClient client(openai_->address());
  EXPECT_EQ(client.Ask("GET", "/health").status, 200);
  const json models = Parsed(client.Ask("GET", "/v1/models"));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], served().id());
  EXPECT_EQ(models["data"][0]["max_model_len"], served().description.max_context_tokens);
  EXPECT_EQ(Parsed(client.Ask("GET", "/v1/models/" + served().id())), models["data"][0]);
  EXPECT_EQ(client.Ask("GET", "/v1/models/none").status, 404);
  EXPECT_EQ(client.Ask("GET", "/v1/models/").status, 404);
  EXPECT_EQ(client.Ask("POST", "/v1/models", "{}").status, 405);
  // A connection whose request is refused before its body is read is closed.
  const HttpReply wrong_method = HttpClient(openai_->address()).Ask("GET", "/v1/completions");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(Parsed(wrong_method)["error"]["message"], "method \"GET\" is not allowed; use POST");
  for (const char* const path : {"/v1/images/edits", "/v1/files", "/v1/audio/speech"}) {
    const HttpReply reply = HttpClient(openai_->address()).Ask("POST", path, "{}");
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(Parsed(reply)["error"]["code"], "unsupported");
  }
  const HttpReply unknown = HttpClient(openai_->address()).Ask("GET", "/v2/anything");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Parsed(unknown)["error"]["code"], "unknown_url");
}

TEST_F(OpenAiServiceTest, RejectsPagesOfOtherSites) {
  const json body = {{"prompt", "Once"}, {"max_tokens", 1}};
  const HttpReply refused = Post("/v1/completions", body, "Origin: https://evil.example\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(Parsed(refused)["error"]["message"],
            "origin \"https://evil.example\" is not listed in openai.allowed_origins");
  const std::string long_origin = absl::StrCat("Origin: ", std::string(300, 'x'), "\r\n");
  EXPECT_THAT(Parsed(Post("/v1/completions", body, long_origin))["error"]["message"],
              HasSubstr(absl::StrCat("origin \"", std::string(200, 'x'), "\" is")));
  EXPECT_THAT(refused.head, Not(HasSubstr("Access-Control")));
  const HttpReply allowed = Post("/v1/completions", body, "Origin: https://chat.example\r\n");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_THAT(allowed.head, HasSubstr("Access-Control-Allow-Origin: https://chat.example\r\n"));
  HttpClient client(openai_->address());
  const HttpReply asked = client.Ask("OPTIONS", "/v1/chat/completions", "",
                                     "Origin: https://chat.example\r\n"
                                     "Access-Control-Request-Headers: authorization\r\n");
  EXPECT_EQ(asked.status, 200);
  EXPECT_THAT(asked.head, HasSubstr("Access-Control-Allow-Headers: authorization\r\n"));
  EXPECT_EQ(client.Ask("OPTIONS", "/v1/completions", "", "Origin: null\r\n").status, 403);
}

class GuardedOpenAiTest : private testing::TempDir, public OpenAiServiceTest {
 protected:
  // SHA-256 of "one".
  static constexpr char kTokens[] =
      "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed one generate\n";
  GuardedOpenAiTest()
      : OpenAiServiceTest({"auth.mode=token", "auth.tokens_file=" + Write("tokens", kTokens),
                           "openai.max_body_bytes=1KiB", "openai.max_connections=16"}) {}
};

TEST_F(GuardedOpenAiTest, RequestsWithAndWithoutBodyGetTheSameAnswer) {
  struct Case {
    const char* method;
    const char* path;
    int status;
  };
  for (const Case& one : {Case{"GET", "/health", 200}, Case{"HEAD", "/health", 200},
                          Case{"POST", "/health", 405}, Case{"OPTIONS", "/v1/completions", 200},
                          Case{"GET", "/v1/models", 401}, Case{"POST", "/v1/models", 405},
                          Case{"POST", "/v1/completions", 401}, Case{"GET", "/v1/completions", 405},
                          Case{"POST", "/nothing", 404}, Case{"POST", "/v1/files", 400}}) {
    for (const char* const body : {"", "Content-Length: 2\r\n\r\n{}"}) {
      HttpClient client(openai_->address());
      EXPECT_TRUE(client.Send(absl::StrCat(one.method, " ", one.path, " HTTP/1.1\r\n",
                                           "Host: localhost\r\nConnection: close\r\n",
                                           *body == '\0' ? "\r\n" : body)));
      const std::string answer = client.ReadAll();
      EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", one.status, " ")))
          << one.method << " " << one.path << " " << body;
    }
  }
}

TEST_F(GuardedOpenAiTest, RequestsWithoutTokenHaveSmallBodies) {
  HttpClient client(openai_->address());
  EXPECT_EQ(client.Ask("GET", "/health", std::string(512, 'x')).status, 200);
  const HttpReply large = client.Ask("GET", "/health", std::string(513, 'x'));
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(Parsed(large)["error"]["message"],
            "the body has 513 bytes, \"/health\" allows at most 512 bytes; send no body");
  HttpClient chunked(openai_->address());
  EXPECT_TRUE(
      chunked.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n"
                   "Transfer-Encoding: chunked\r\n\r\n"));
  EXPECT_EQ(chunked.Read().status, 413);
}

// A page can show the error to its user only if it may read the rejection.
TEST_F(GuardedOpenAiTest, AllowedPagesCanReadRejections) {
  const std::string allowed = "Access-Control-Allow-Origin: https://chat.example\r\n";
  struct Case {
    const char* request;
    int status;
  };
  const Case cases[] = {
      // The request is rejected for its header, while its body is still to come.
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\n", 401},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n", 401},
      {"POST /v1/completions HTTP/1.1\r\nContent-Length: 5000\r\n", 413},
      {"GET /v1/models HTTP/1.1\r\n", 401},
      {"GET /nothing HTTP/1.1\r\n", 404},
      {"GET /v1/completions HTTP/1.1\r\n", 405},
  };
  const auto ask = [&](const Case& one, const std::string& origin) {
    HttpClient client(openai_->address());
    EXPECT_TRUE(client.Send(absl::StrCat(one.request, "Host: localhost\r\nOrigin: ", origin,
                                         "\r\nConnection: close\r\n\r\n")));
    return client.Read();
  };
  for (const Case& one : cases) {
    const HttpReply reply = ask(one, "https://chat.example");
    EXPECT_EQ(reply.status, one.status) << one.request;
    EXPECT_THAT(reply.head, HasSubstr(allowed)) << one.request;
    EXPECT_TRUE(Parsed(reply)["error"].is_object()) << reply.body;
    EXPECT_THAT(ask(one, "https://evil.example").head, Not(HasSubstr("Access-Control")));
  }
  // Opens more connections than allowed. Each is about to send a body.
  std::vector<std::unique_ptr<HttpClient>> clients;
  HttpReply full;
  for (int i = 0; i < 400 && full.status != 503; ++i) {
    clients.push_back(std::make_unique<HttpClient>(openai_->address()));
    EXPECT_TRUE(
        clients.back()->Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                             "Authorization: Bearer one\r\nContent-Length: 5\r\n"
                             "Origin: https://chat.example\r\nExpect: 100-continue\r\n\r\n"));
    full = clients.back()->Read();
  }
  EXPECT_EQ(full.status, 503);
  EXPECT_THAT(full.head, HasSubstr(allowed));
}

TEST_F(OpenAiServiceTest, RequestIdsAreReturnedAndUnique) {
  const json body = {{"prompt", {"Once", "Twice"}}, {"max_tokens", 1}};
  const HttpReply reply = Post("/v1/completions", body, "X-Request-Id: mine\r\n");
  EXPECT_THAT(reply.head, HasSubstr("x-request-id: mine\r\n"));
  EXPECT_EQ(Parsed(reply)["id"], "cmpl-mine");
  // An unusable id is replaced.
  const std::string longest(128, 'i');
  for (const std::string& odd : {std::string("not good"), std::string("a/b"), longest}) {
    // The longest id becomes too long when the second prompt's number is appended.
    const HttpReply other = Post("/v1/completions", body, "X-Request-Id: " + odd + "\r\n");
    EXPECT_EQ(other.status, 200) << odd;
    EXPECT_THAT(other.head, Not(HasSubstr("x-request-id: " + odd))) << odd;
    EXPECT_EQ(Parsed(other)["id"].get<std::string>().size(), 5u + 36u) << odd;
  }
  const HttpReply one = Post("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 1}},
                             "X-Request-Id: " + longest + "\r\n");
  EXPECT_EQ(one.status, 200);
  EXPECT_THAT(one.head, HasSubstr("x-request-id: " + longest));
  EXPECT_TRUE(BecomesIdle());
}

// A foreign host name that resolves to 127.0.0.1 would let its page read the answers. The host of
// an absolute-form target takes precedence over Host (RFC 9112, section 3.2.2).
TEST_F(OpenAiServiceTest, RejectsForeignHostNames) {
  const auto status = [&](absl::string_view target, absl::string_view host) {
    HttpClient client(openai_->address());
    EXPECT_TRUE(client.Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n")));
    return client.Read().status;
  };
  for (const char* const host : {"evil.example", "evil.example:80", "127.0.0.1.evil.example",
                                 "localhost.evil.example:1", "%6cocalhost"}) {
    EXPECT_EQ(status("/v1/models", host), 403) << host;
    EXPECT_EQ(status(absl::StrCat("http://", host, "/v1/models"), "localhost"), 403) << host;
  }
  for (const char* const host : {"localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:80", "[::1]",
                                 "[::1]:80", "a.localhost:1"}) {
    EXPECT_EQ(status("/v1/models", host), 200) << host;
    EXPECT_EQ(status(absl::StrCat("http://", host, "/v1/models"), "evil.example"), 200) << host;
  }
  EXPECT_EQ(status("/v1/models", "[evil]:1"), 400);
  HttpClient old(openai_->address());
  EXPECT_TRUE(old.Send("GET /v1/models HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(old.Read().status, 200);
}

TEST_F(OpenAiServiceTest, HttpViolationsAreErrorObjects) {
  const auto ask = [&](const std::string& head) {
    HttpClient client(openai_->address());
    EXPECT_TRUE(client.Send(head + "Content-Length: 2\r\n\r\n{}"));
    return client.Read();
  };
  struct Case {
    const char* head;
    int status;
    const char* code;
  };
  const Case cases[] = {
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n", 415,
       "unsupported_encoding"},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: zstd\r\n", 415,
       "unsupported_encoding"},
      {"POST /v1/completions HTTP/1.1\r\n", 400, "bad_request"},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400,
       "bad_request"},
      {"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n", 400, "unsupported"}};
  for (const Case& one : cases) {
    const HttpReply reply = ask(one.head);
    EXPECT_EQ(reply.status, one.status) << one.head;
    EXPECT_EQ(Parsed(reply)["error"]["code"], one.code) << reply.body;
  }
}

TEST_F(OpenAiServiceTest, DisconnectCancelsRequests) {
  for (const bool stream : {true, false}) {
    for (const bool reset : {true, false}) {
      HttpClient client(openai_->address());
      const json body = {{"prompt", "Once"},
                         {"max_tokens", 200},
                         {"n", 4},
                         {"ignore_eos", true},
                         {"stream", stream}};
      ASSERT_TRUE(client.SendRequest("POST", "/v1/completions", body.dump()));
      if (stream) {
        ASSERT_TRUE(client.ReadUntil("data: "));
      } else {
        const auto has_one = [this] { return !served().engine->ListRequests().empty(); };
        ASSERT_TRUE(testing::WaitUntil(has_one));
      }
      reset ? client.Reset() : client.Close();
      EXPECT_TRUE(BecomesIdle());
    }
  }
  EXPECT_TRUE(MetricBecomes("quire_rpcs_total{code=\"CANCELLED\",method=\"Completions\"}", 4));
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

// Sends mutated bodies over real connections. Each gets an answer, and another client's stream
// stays complete.
TEST_F(OpenAiServiceTest, MalformedBodiesDisturbNoOtherClient) {
  HttpClient neighbour(openai_->address());
  const json story = {{"prompt", "Once"},
                      {"max_tokens", 200},
                      {"ignore_eos", true},
                      {"stream", true},
                      {"temperature", 0}};
  ASSERT_TRUE(neighbour.SendRequest("POST", "/v1/completions", story.dump()));
  const std::string good = json({{"prompt", {"a", "b"}},
                                 {"max_tokens", 1},
                                 {"n", 2},
                                 {"stop", {"x"}},
                                 {"logprobs", 1},
                                 {"echo", true},
                                 {"logit_bias", {{"3", 1}}}})
                               .dump();
  std::mt19937 random(7);
  HttpClient client(openai_->address());
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string body = good;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % body.size();
      if (random() % 2 == 0) {
        body[at] = static_cast<char>(random());
      } else {
        body.erase(at, 1 + random() % 3);
      }
    }
    const HttpReply reply =
        client.Ask("POST", i % 2 == 0 ? "/v1/completions" : "/v1/chat/completions", body);
    EXPECT_TRUE(reply.status == 200 || (reply.status >= 400 && reply.status <= 501))
        << reply.status;
    EXPECT_TRUE(Parsed(reply).is_object()) << reply.body;
    if (reply.status != 200) ++refused;
  }
  EXPECT_GT(refused, 150);
  const HttpReply whole = neighbour.Read();
  EXPECT_TRUE(whole.is_whole);
  EXPECT_THAT(whole.body, HasSubstr("data: [DONE]"));
}

class ShortQueueTest : public OpenAiServiceTest {
 protected:
  ShortQueueTest() : OpenAiServiceTest({"limits.max_queued_requests=3"}) {}
};

TEST_F(ShortQueueTest, OversizedPromptListIsRejectedWithoutRetryAdvice) {
  const HttpReply reply = Complete({{"prompt", {"a", "b", "c", "d"}}, {"max_tokens", 1}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("prompt is 4 entries long, it must be at most 3 entries "
                                    "(limits.max_queued_requests)"));
  EXPECT_THAT(reply.body, HasSubstr("\"param\":\"prompt\""));
  EXPECT_EQ(Complete({{"prompt", {"a", "b", "c"}}, {"max_tokens", 1}}).status, 200);
}

class SlowReaderTest : public OpenAiServiceTest {
 protected:
  SlowReaderTest()
      : OpenAiServiceTest({"stream.queue_tokens=16", "stream.slow_client_timeout=1s"}) {}
};

TEST_F(SlowReaderTest, StalledReaderIsClosedWithoutBlockingTheEngine) {
  HttpClient client(openai_->address());
  // Log-probabilities of many candidates soon fill the buffers of the sockets.
  const json body = {{"prompt", "Once"},   {"max_tokens", 400}, {"n", 8},
                     {"ignore_eos", true}, {"stream", true},    {"logprobs", 20}};
  ASSERT_TRUE(client.SendRequest("POST", "/v1/completions", body.dump()));
  ASSERT_TRUE(client.ReadUntil("data: "));
  EXPECT_TRUE(BecomesIdle());
  // The client gets what was written, then the error, and no [DONE].
  const std::string rest = client.ReadAll();
  EXPECT_TRUE(absl::StrContains(rest, "\"code\":\"slow_client\""));
  EXPECT_FALSE(absl::StrContains(rest, "[DONE]"));
}

}  // namespace
}  // namespace quire::server
