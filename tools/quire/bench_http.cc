// Implements the targets of `quire bench` for HTTP servers, with libcurl.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "tools/quire/bench_target.h"
#include "tools/quire/curl_handle.h"
#include "tools/quire/port_probe.h"
#include "tools/quire/sse.h"

namespace quire::client {
namespace {

using nlohmann::json;

std::int64_t IntegerOr0(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<std::int64_t>() : 0;
}

bool HasText(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() && !it->get_ref<const std::string&>().empty();
}

// Receives one answer.
class Answer {
 public:
  Answer(PeerAddress::Kind kind, std::int64_t cancel_after, CURL* curl)
      : kind_(kind), cancel_after_(cancel_after), curl_(curl) {}

  // Takes the next bytes. Returns false to abort the transfer.
  bool Take(absl::string_view bytes) {
    if (ResponseCode(curl_) != 200) {
      if (body_.size() < 500) body_.append(bytes.data(), bytes.size());
      return true;
    }
    for (const std::string& data : parser_.Feed(bytes)) {
      if (data == "[DONE]") continue;
      const absl::StatusOr<PeerEvent> event = ParsePeerEvent(kind_, data);
      error_ = event.ok() ? event->error : std::string(event.status().message());
      if (!error_.empty()) return false;
      if (event->tokens > 0) clock_.OnTokens(event->tokens);
      if (event->prompt_tokens > 0) prompt_tokens_ = event->prompt_tokens;
      if (event->output_tokens > 0) output_tokens_ = event->output_tokens;
      if (cancel_after_ > 0 && clock_.tokens() >= cancel_after_) {
        cancelled_ = true;
        return false;
      }
    }
    return true;
  }

  RequestSample End(CURLcode result) {
    RequestSample sample = clock_.End();
    sample.input_tokens = prompt_tokens_;
    // Prefers the token count that the server reports. Counting texts is inexact: a text may have
    // several tokens, and a token that ends within a character has no text.
    if (output_tokens_ > 0) sample.output_tokens = output_tokens_;
    sample.cancelled = cancelled_;
    if (cancelled_) return sample;
    if (!error_.empty()) {
      sample.error = error_;
    } else if (result != CURLE_OK) {
      sample.error = curl_easy_strerror(result);
    } else if (ResponseCode(curl_) != 200) {
      sample.error = absl::StrCat("HTTP ", ResponseCode(curl_), ": ", body_);
    } else if (sample.output_tokens == 0) {
      sample.error = "the answer has no token";
    }
    sample.ok = sample.error.empty();
    return sample;
  }

 private:
  PeerAddress::Kind kind_;
  std::int64_t cancel_after_;
  CURL* curl_;
  SampleClock clock_;
  SseParser parser_;
  std::string body_;
  std::string error_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t output_tokens_ = 0;
  bool cancelled_ = false;
};

std::size_t OnAnswerBytes(char* bytes, std::size_t size, std::size_t count, void* answer) {
  const std::size_t length = size * count;
  return static_cast<Answer*>(answer)->Take({bytes, length}) ? length : 0;
}

class HttpTarget : public Target {
 public:
  HttpTarget(const PeerAddress& peer, const std::string& model, double timeout_seconds)
      : kind_(peer.kind), model_(model), curl_(NewCurl()) {
    headers_.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    // Avoids waiting for "100 Continue" before long bodies.
    headers_.reset(curl_slist_append(headers_.release(), "Expect:"));
    const char* const path =
        kind_ == PeerAddress::Kind::kOpenAi ? "/v1/completions" : "/completion";
    curl_easy_setopt(curl_.get(), CURLOPT_URL, absl::StrCat(peer.url, path).c_str());
    curl_easy_setopt(curl_.get(), CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(curl_.get(), CURLOPT_WRITEFUNCTION, OnAnswerBytes);
    curl_easy_setopt(curl_.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_seconds * 1e3));
  }

  RequestSample Send(const LoadRequest& request) override {
    const std::string body = PeerRequest(kind_, model_, request);
    curl_easy_setopt(curl_.get(), CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl_.get(), CURLOPT_POSTFIELDS, body.c_str());
    Answer answer(kind_, request.cancel_after, curl_.get());
    curl_easy_setopt(curl_.get(), CURLOPT_WRITEDATA, &answer);
    const CURLcode result = curl_easy_perform(curl_.get());
    return answer.End(result);
  }

 private:
  PeerAddress::Kind kind_;
  std::string model_;
  HeaderPtr headers_;  // outlives curl_
  CurlPtr curl_;
};

std::size_t OnBodyBytes(char* bytes, std::size_t size, std::size_t count, void* body) {
  static_cast<std::string*>(body)->append(bytes, size * count);
  return size * count;
}

std::string FindError(const json& event) {
  const auto error = event.find("error");
  if (error == event.end() || error->is_null()) return "";
  if (error->is_object() && HasText(*error, "message")) return (*error)["message"];
  return JsonText(*error);
}

// Returns the number of token ids. Without ids, a text counts as one token.
std::int64_t CountTokens(const json& object, const char* ids_key, const char* text_key) {
  const auto ids = object.find(ids_key);
  if (ids != object.end() && ids->is_array()) return static_cast<std::int64_t>(ids->size());
  return HasText(object, text_key) ? 1 : 0;
}

PeerEvent FromLlamaCpp(const json& event) {
  PeerEvent result;
  result.tokens = CountTokens(event, "tokens", "content");
  const auto stop = event.find("stop");
  if (stop != event.end() && stop->is_boolean() && stop->get<bool>()) {
    result.tokens = 0;  // the last event has no new tokens
    result.prompt_tokens = IntegerOr0(event, "tokens_evaluated");
    result.output_tokens = IntegerOr0(event, "tokens_predicted");
  }
  return result;
}

PeerEvent FromOpenAi(const json& event) {
  PeerEvent result;
  const auto choices = event.find("choices");
  if (choices != event.end() && choices->is_array() && !choices->empty()) {
    result.tokens = CountTokens((*choices)[0], "token_ids", "text");
  }
  const auto usage = event.find("usage");
  if (usage != event.end() && usage->is_object()) {
    result.prompt_tokens = IntegerOr0(*usage, "prompt_tokens");
    result.output_tokens = IntegerOr0(*usage, "completion_tokens");
  }
  return result;
}

}  // namespace

absl::StatusOr<PeerAddress> ParsePeer(absl::string_view text) {
  PeerAddress peer;
  if (absl::ConsumePrefix(&text, "llamacpp=")) {
    peer.kind = PeerAddress::Kind::kLlamaCpp;
  } else if (!absl::ConsumePrefix(&text, "openai=")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--peer: \"", text,
                     "\" does not name the kind of server; write openai=URL or llamacpp=URL"));
  }
  if (!absl::StartsWith(text, "http://") && !absl::StartsWith(text, "https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--peer: \"", text, "\" is not a URL; write http://", text));
  }
  peer.url = std::string(absl::StripSuffix(text, "/"));
  return peer;
}

absl::string_view PeerKindName(PeerAddress::Kind kind) {
  return kind == PeerAddress::Kind::kOpenAi ? "openai" : "llamacpp";
}

absl::StatusOr<std::string> HttpGet(const std::string& url) {
  const CurlPtr curl = NewCurl();
  std::string body;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, OnBodyBytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, 10'000L);
  const CURLcode result = curl_easy_perform(curl.get());
  if (result != CURLE_OK) {
    const std::string explained = ExplainHttpFailure(url);
    return absl::UnavailableError(
        explained.empty() ? absl::StrCat(url, ": ", curl_easy_strerror(result)) : explained);
  }
  if (ResponseCode(curl.get()) != 200) {
    return absl::UnavailableError(absl::StrCat(url, ": HTTP ", ResponseCode(curl.get())));
  }
  return body;
}

absl::StatusOr<std::string> PeerModel(const PeerAddress& peer) {
  const absl::StatusOr<std::string> body = HttpGet(absl::StrCat(peer.url, "/v1/models"));
  if (!body.ok()) {
    return absl::UnavailableError(
        absl::StrCat(body.status().message(),
                     "; --peer needs the URL of a server that lists its models at /v1/models"));
  }
  const json answer = json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("data") && answer["data"].is_array() &&
      !answer["data"].empty() && answer["data"][0].is_object() &&
      HasText(answer["data"][0], "id")) {
    return answer["data"][0]["id"].get<std::string>();
  }
  return absl::UnavailableError(absl::StrCat(peer.url, "/v1/models lists no model"));
}

TargetFactory HttpTargets(const PeerAddress& peer, const std::string& model,
                          double timeout_seconds) {
  return [=]() -> std::unique_ptr<Target> {
    return std::make_unique<HttpTarget>(peer, model, timeout_seconds);
  };
}

absl::StatusOr<PeerEvent> ParsePeerEvent(PeerAddress::Kind kind, absl::string_view data) {
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("event is not a JSON object: ", data.substr(0, 100)));
  }
  PeerEvent result = kind == PeerAddress::Kind::kLlamaCpp ? FromLlamaCpp(event) : FromOpenAi(event);
  result.error = FindError(event);
  return result;
}

std::string PeerRequest(PeerAddress::Kind kind, const std::string& model,
                        const LoadRequest& request) {
  // Keeps the order of the schema's properties, which is the order in the answer.
  nlohmann::ordered_json body = {{"prompt", request.prompt}, {"stream", true}, {"temperature", 0}};
  nlohmann::ordered_json schema;
  if (!request.schema.empty()) schema = nlohmann::ordered_json::parse(request.schema);
  // A schema determines the end of the text.
  body["ignore_eos"] = request.schema.empty();
  if (kind == PeerAddress::Kind::kLlamaCpp) {
    body["n_predict"] = request.output_tokens;
    body["cache_prompt"] = true;
    body["return_tokens"] = true;
    // Greedy sampling at the lowest cost: no other sampler of the chain runs.
    body["samplers"] = {"top_k"};
    body["top_k"] = 1;
    if (!request.schema.empty()) body["json_schema"] = schema;
  } else {
    body["model"] = model;
    body["max_tokens"] = request.output_tokens;
    body["stream_options"] = {{"include_usage", true}};
    // `return_token_ids` and `structured_outputs` are fields of vLLM. A token that ends within a
    // character has an id but no text.
    body["return_token_ids"] = true;
    if (!request.schema.empty()) body["structured_outputs"]["json"] = schema;
  }
  return JsonText(body);
}

}  // namespace quire::client
