#include "tests/engine/harness.h"

#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/json_text.h"
#include "engine/masks/token_texts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/unicode/unicode.h"

namespace quire::engine {
namespace {

std::string AddedToken(std::int32_t id, absl::string_view content) {
  return absl::StrCat("{\"id\":", id, ",\"content\":\"", content,
                      "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":true}");
}

}  // namespace

std::unique_ptr<text::Tokenizer> MakeByteTokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&vocab, byte == 0 ? "" : ",",
                    JsonQuoted(text::ByteToUtf8(static_cast<std::uint8_t>(byte))), ":", byte);
  }
  const std::string json = absl::StrCat(
      "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[",
      AddedToken(kEosToken, "<eos>"), ",", AddedToken(257, "<bos>"), ",",
      AddedToken(kPoisonToken, "<poison>"),
      "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
      "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":"
      "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":"
      "{"
      "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
      "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
      "\"ignore_merges\":false,\"vocab\":{",
      vocab, "},\"merges\":[]}}");
  absl::StatusOr<std::unique_ptr<text::Tokenizer>> tokenizer = text::Tokenizer::FromJson(json, "");
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status();
    std::abort();
  }
  return *std::move(tokenizer);
}

std::unique_ptr<cache::CacheManager> MakeCache(const PoolOptions& options) {
  cache::CacheManagerOptions cache_options;
  cache_options.geometry.num_blocks = options.usable_pages + 1;
  cache_options.geometry.kv_dim = 2;
  cache_options.geometry.num_layers = 1;
  cache_options.geometry.page_size = options.page_size;
  cache_options.geometry.num_heads = 1;
  cache_options.geometry.head_size = 16;
  cache_options.geometry.dtype = DType::kF32;
  cache_options.max_rows = options.max_rows;
  cache_options.max_context_tokens = options.max_context_tokens;
  cache_options.groups = options.groups;
  cache_options.max_row_overlap_tokens = options.max_row_overlap_tokens;
  cache_options.num_state_slots = options.num_state_slots();
  cache_options.state_interval_tokens = options.state_interval_tokens;
  absl::StatusOr<std::unique_ptr<cache::CacheManager>> cache =
      cache::CacheManager::Create(cache_options);
  if (!cache.ok()) {
    ADD_FAILURE() << cache.status();
    std::abort();
  }
  return *std::move(cache);
}

EngineOptions MakeOptions(const PoolOptions& pool) {
  EngineOptions options;
  options.model_id = std::string("m");
  options.fingerprint = std::string("f");
  options.kv_dtype = std::string("f32");
  options.vocab_size = kByteVocab;
  options.limits.vocab_size = kByteVocab;
  options.max_context_tokens = static_cast<std::int32_t>(pool.max_context_tokens);
  options.eos_token_ids = {kEosToken};
  options.max_running_sequences = static_cast<std::int32_t>(pool.max_rows);
  options.max_step_prompt_tokens = options.max_step_tokens;
  options.step_time_target = absl::InfiniteDuration();
  return options;
}

Request MakeRequest(std::string id, std::vector<std::int32_t> prompt, std::int32_t max_tokens) {
  Request request;
  request.id = std::move(id);
  request.principal = std::string("p");
  request.model = std::string("m");
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.stopping.max_tokens = max_tokens;
  request.output.stream = true;
  request.output.token_ids = true;
  return request;
}

std::vector<std::int32_t> MakePrompt(std::uint64_t seed, std::size_t length) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> prompt(length);
  for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(random() % 256);
  return prompt;
}

double MetricValue(const probe::Registry& registry, const std::string& series) {
  const absl::StatusOr<std::string> text = registry.Expose();
  EXPECT_TRUE(text.ok()) << text.status();
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (line.substr(0, series.size() + 1) != absl::StrCat(series, " ")) continue;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(series.size() + 1), &value)) << line;
    return value;
  }
  return 0;
}

double MetricSum(const probe::Registry& registry, const std::string& family) {
  const absl::StatusOr<std::string> text = registry.Expose();
  EXPECT_TRUE(text.ok()) << text.status();
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::size_t end = line.find_first_of(" {");
    if (end == absl::string_view::npos || line.substr(0, end) != family) continue;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
    sum += value;
  }
  return sum;
}

HarnessOptions MakeHarnessOptions(const PoolOptions& pool, int max_steps_in_flight) {
  return {.pool = pool,
          .engine = MakeOptions(pool),
          .runner = {.num_blocks = pool.usable_pages + 1,
                     .page_size = pool.page_size,
                     .groups = pool.groups,
                     .num_state_slots = pool.num_state_slots(),
                     .vocab_size = kByteVocab,
                     .poison_token = kPoisonToken,
                     .max_steps_in_flight = max_steps_in_flight}};
}

Harness::Harness(const HarnessOptions& harness_options)
    : cache(MakeCache(harness_options.pool)),
      runner(harness_options.runner),
      tokenizer(MakeByteTokenizer()),
      options(harness_options.engine),
      probe(&registry, {.model_name = options.model_id,
                        .max_context_tokens = options.max_context_tokens,
                        .page_size = cache->page_size(),
                        .num_pages = cache->usable_pages(),
                        .kv_dtype = options.kv_dtype}),
      limiter(options.max_queued_requests, options.max_queued_tokens),
      core(options, cache.get(), &runner, &clock, &limiter, &probe) {
  runner.RecordSteps(true);
}

std::shared_ptr<AcceptedRequest> Harness::Arrive(Request request) {
  if (request.accept_time == absl::Time()) request.accept_time = clock.Now();
  const auto live = std::make_shared<AcceptedRequest>(std::move(request), next_arrival_++, 0,
                                                      std::make_shared<TokenStream>());
  probe.requests.Received();
  EXPECT_TRUE(limiter.EnterRequest(live->request.tenant, {}).ok());
  Signal signal{.kind = Signal::Kind::kArrived, .request = live};
  core.Handle(signal, clock.Now());
  return live;
}

void Harness::Prepare(const std::shared_ptr<AcceptedRequest>& live) {
  auto prompt = PrepareRequest(options,
                               {.hash_key = cache->hash_key(),
                                .page_size = cache->page_size(),
                                .usable_pages = cache->usable_pages(),
                                .demand = cache->demand()},
                               *tokenizer, clock, *live);
  if (prompt.ok() && NeedsTokenTexts(live->request)) {
    AddTextRules(live->request, std::make_shared<TokenTexts>(*tokenizer, options.vocab_size),
                 prompt->get());
  }
  if (prompt.ok()) {
    const absl::Status counted = CountPrompt(live->request, &limiter, prompt->get());
    if (!counted.ok()) prompt = counted;
  }
  Signal signal{.kind = Signal::Kind::kPrepared, .request = live, .status = prompt.status()};
  if (prompt.ok()) signal.prompt = *std::move(prompt);
  const std::optional<ConstraintSpec>& spec = live->request.constraint;
  if (signal.prompt != nullptr && spec) signal.prompt->mask_rules.constraint = compile(*spec);
  core.Handle(signal, clock.Now());
  TakeItems();
}

std::shared_ptr<AcceptedRequest> Harness::Submit(Request request) {
  std::shared_ptr<AcceptedRequest> live = Arrive(std::move(request));
  Prepare(live);
  return live;
}

void Harness::Cancel(const std::shared_ptr<AcceptedRequest>& live, CancelSource source) {
  Signal signal{.kind = Signal::Kind::kCancel, .request = live, .source = source};
  core.Handle(signal, clock.Now());
  TakeItems();
}

bool Harness::Step() {
  core.Expire(clock.Now());
  const bool ran = core.Step(clock.Now());
  TakeItems();
  const absl::Status status = core.CheckIntegrity().status();
  EXPECT_TRUE(status.ok()) << status;
  return ran;
}

void Harness::RunUntilIdle() {
  for (int steps = 0; !core.idle(); ++steps) {
    ASSERT_LT(steps, 100000) << "the engine does not come to an end";
    ASSERT_TRUE(Step()) << "requests are live, but there is nothing to run";
  }
  Settle();
}

void Harness::Settle() {
  core.CollectAll();
  TakeItems();
  const absl::Status status = core.CheckIntegrity().status();
  EXPECT_TRUE(status.ok()) << status;
}

void Harness::TakeItems() {
  core.TakeOutput(&items_);
  for (const OutputItem& item : items_) {
    Output& output = outputs_[item.request->request.id];
    switch (item.kind) {
      case OutputItem::Kind::kStarted:
        output.started = true;
        output.cached_tokens = item.start->cached_tokens;
        break;
      case OutputItem::Kind::kPromptLogprobs:
        for (std::size_t i = 0; i < item.prompt_logprobs.size(); ++i) {
          output.prompt_positions.push_back(item.start_position + static_cast<std::int32_t>(i));
          output.prompt_logprobs.push_back(item.prompt_logprobs[i].logprob);
        }
        break;
      case OutputItem::Kind::kPooled:
        output.pooled = item.pooled;
        break;
      case OutputItem::Kind::kToken:
        item.request->in_ring_tokens.fetch_sub(1);  // as an output worker does
        output.tokens[item.choice].push_back(item.token.token);
        output.logprobs[item.choice].push_back(item.token.logprob);
        if (item.finish.has_value()) output.finish[item.choice] = *item.finish;
        break;
      case OutputItem::Kind::kChoiceEnd:
        output.finish[item.choice] = item.finish.value_or(FinishReason::kStopText);
        break;
      case OutputItem::Kind::kRequestEnd:
        EXPECT_FALSE(output.ended) << "ended twice";
        output.ended = true;
        output.status = item.status;
        break;
    }
  }
}

}  // namespace quire::engine
