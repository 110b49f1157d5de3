// The router over loopback sockets, in front of nodes that do what they are told.
#include "route/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "support/server/raw_client.h"
#include "support/server/scripted_node.h"

namespace karez {
namespace router_test {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kProduced =
    R"({"choices":[],"kv_transfer_params":{"do_remote_prefill":true,"remote_port":5600}})";
constexpr const char* kPrompt = R"({"prompt":"hi","max_tokens":5})";

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

void answer_ok(const ScriptedExchange& exchange) { exchange.respond(200, R"({"text":"decoded"})"); }
void produce(const ScriptedExchange& exchange) { exchange.respond(200, kProduced); }

class RouterTest : public testing::Test {
 protected:
  ScriptedNode& add(NodeKind kind, ScriptedNode::Script script) {
    nodes_.push_back(std::make_unique<ScriptedNode>(std::move(script)));
    auto& urls = kind == NodeKind::kPrefill ? options_.prefill : options_.decode;
    urls.push_back(*parse_node_url(nodes_.back()->url()));
    return *nodes_.back();
  }
  ScriptedNode& prefill(ScriptedNode::Script script) {
    return add(NodeKind::kPrefill, std::move(script));
  }
  ScriptedNode& decode(ScriptedNode::Script script) {
    return add(NodeKind::kDecode, std::move(script));
  }
  void start() {
    options_.http.port = 0;
    auto router = Router::start(options_);
    ASSERT_TRUE(router) << router.error().message();
    router_ = std::move(*router);
  }
  std::string ask(const std::string& request) const {
    const RawClient client(router_->port());
    client.send(request);
    return client.receive_all();
  }
  std::string metrics() const { return ask(get("/metrics")); }

  RouterOptions options_;
  std::vector<std::unique_ptr<ScriptedNode>> nodes_;
  std::unique_ptr<Router> router_;
};

TEST_F(RouterTest, PrefillsOnOneNodeAndDecodesOnAnother) {
  const ScriptedNode& producer = prefill(produce);
  const ScriptedNode& consumer = decode(answer_ok);
  start();
  const std::string answer = ask(post("/v1/completions", kPrompt,
                                      "Connection: close\r\nAuthorization: Bearer k\r\n"
                                      "X-Request-Id: 7\r\nOrigin: http://localhost\r\n"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n{\"text\":\"decoded\"}"));
  EXPECT_THAT(producer.last_request(), StartsWith("POST /v1/completions HTTP/1.1\r\n"));
  EXPECT_THAT(producer.last_request(), HasSubstr(R"("max_tokens":1,)"));
  EXPECT_THAT(producer.last_request(), HasSubstr(R"("do_remote_decode":true)"));
  EXPECT_THAT(consumer.last_request(), HasSubstr(R"("max_tokens":5,)"));
  EXPECT_THAT(consumer.last_request(),
              HasSubstr(R"({"do_remote_prefill":true,"remote_port":5600})"));
  for (const ScriptedNode* node : {&producer, &consumer}) {
    EXPECT_THAT(node->last_request(), HasSubstr("Authorization: Bearer k\r\n"));
    EXPECT_THAT(node->last_request(), HasSubstr("X-Request-Id: 7\r\n"));
    EXPECT_THAT(node->last_request(), HasSubstr("Host: 127.0.0.1:" + std::to_string(node->port())));
    EXPECT_THAT(node->last_request(), Not(HasSubstr("Origin")));
  }
  EXPECT_THAT(metrics(), HasSubstr("karez_route_hand_overs_total 1\n"));
  EXPECT_THAT(metrics(), HasSubstr("karez_route_requests_total{outcome=\"answered\"} 1\n"));
}

TEST_F(RouterTest, AStreamIsPassedOnAsItComes) {
  std::atomic<bool> was_seen{false};
  decode([&](const ScriptedExchange& exchange) {
    exchange.begin_chunked("text/event-stream");
    exchange.chunk("data: {\"a\":1}\n\nda");
    exchange.wait([&] { return was_seen.load(); });
    exchange.chunk("ta: [DONE]\n\n");
    exchange.end_chunks();
  });
  start();
  const RawClient client(router_->port());
  client.send(post("/v1/completions", R"({"prompt":"hi","stream":true})"));
  std::string all;
  while (all.find("data: {\"a\":1}\n\n") == std::string::npos) {
    const std::string part = client.receive();
    ASSERT_FALSE(part.empty());
    all += part;
  }
  EXPECT_THAT(all, HasSubstr("Content-Type: text/event-stream"));
  was_seen = true;
  EXPECT_THAT(client.receive_all(), HasSubstr("data: [DONE]\n\n"));
}

TEST_F(RouterTest, ErrorsOfNodesArriveAsTheyAre) {
  struct Case {
    int status;
    const char* headers;
  };
  Case now{};
  ScriptedNode& consumer = decode([&](const ScriptedExchange& exchange) {
    exchange.respond(now.status, R"({"error":{"message":"of the node"}})", now.headers);
  });
  start();
  for (const Case& one : {Case{400, ""}, {429, "Retry-After: 9\r\n"}, {503, ""}, {500, ""}}) {
    now = one;
    const std::string answer = ask(post("/v1/completions", kPrompt));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + std::to_string(one.status) + " "));
    EXPECT_THAT(answer, EndsWith(R"({"error":{"message":"of the node"}})"));
    EXPECT_THAT(answer, HasSubstr(one.headers));
  }
  EXPECT_EQ(consumer.requests(), 4) << "none was tried twice";
}

TEST_F(RouterTest, WhatAProducerRefusesIsNotDecoded) {
  prefill([](const ScriptedExchange& exchange) { exchange.respond(400, "{\"error\":1}"); });
  const ScriptedNode& consumer = decode(answer_ok);
  start();
  const std::string answer = ask(post("/v1/chat/completions", R"({"messages":[]})"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer, EndsWith("{\"error\":1}"));
  EXPECT_EQ(consumer.requests(), 0);
}

TEST_F(RouterTest, AProducerWithoutRoomLeavesTheWholeRequestToAConsumer) {
  std::string code = "kv_transfer_failed";
  prefill([&](const ScriptedExchange& exchange) {
    exchange.respond(503, R"({"error":{"code":")" + code + "\"}}");
  });
  const ScriptedNode& consumer = decode(answer_ok);
  start();
  EXPECT_THAT(ask(post("/v1/completions", kPrompt)), HasSubstr("decoded"));
  EXPECT_THAT(consumer.last_request(), Not(HasSubstr("kv_transfer_params")));
  EXPECT_THAT(metrics(), HasSubstr("karez_route_decode_alone_total 1\n"));
  code = "overloaded";
  EXPECT_THAT(ask(post("/v1/completions", kPrompt)), StartsWith("HTTP/1.1 503 "));
}

TEST_F(RouterTest, WithoutAProducerAConsumerPrefillsItself) {
  ScriptedNode& lost = prefill([](const ScriptedExchange&) {});  // closes without an answer
  const ScriptedNode& consumer = decode(answer_ok);
  options_.health.interval = std::chrono::hours(1);
  start();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ask(post("/v1/completions", kPrompt)), HasSubstr("decoded"));
    EXPECT_THAT(consumer.last_request(), Not(HasSubstr("kv_transfer_params")));
  }
  EXPECT_EQ(lost.requests(), 1) << "it is out until a check succeeds";
  EXPECT_THAT(metrics(), HasSubstr("karez_route_decode_alone_total 2\n"));
}

TEST_F(RouterTest, SeveralPromptsGoToAConsumerAlone) {
  const ScriptedNode& producer = prefill(produce);
  decode(answer_ok);
  start();
  EXPECT_THAT(ask(post("/v1/completions", R"({"prompt":["a","b"]})")), HasSubstr("decoded"));
  EXPECT_EQ(producer.requests(), 0);
}

TEST_F(RouterTest, ANodeThatRefusesTheConnectionIsReplacedOnce) {
  options_.health.interval = std::chrono::hours(1);
  for (int i = 0; i < 3; ++i) {
    decode(answer_ok);
  }
  start();
  nodes_[0]->stop();
  nodes_[1]->stop();
  // Different prompts have different first choices. At most one request meets two stopped nodes;
  // after it both are out.
  constexpr int kRequests = 30;
  int failed = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string answer =
        ask(post("/v1/completions", R"({"prompt":")" + std::to_string(i) + R"("})"));
    failed += answer.starts_with("HTTP/1.1 502 ") ? 1 : 0;
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 502 ") || answer.find("decoded") < answer.size());
  }
  EXPECT_LE(failed, 1);
  EXPECT_EQ(nodes_[2]->requests(), kRequests - failed);
  EXPECT_THAT(ask(get("/health")), HasSubstr("cannot connect: "));
}

TEST_F(RouterTest, ANodeThatDiesBeforeItsAnswerIsA502) {
  ScriptedNode& consumer = decode([](const ScriptedExchange& exchange) {
    exchange.send(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{");
  });
  options_.health.interval = milliseconds(10);
  start();
  const std::string answer = ask(post("/v1/completions", kPrompt));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 502 "));
  EXPECT_THAT(answer, HasSubstr("\"code\":\"node_failed\""));
  EXPECT_THAT(answer, Not(HasSubstr(std::to_string(consumer.port())))) << "no addresses";
  EXPECT_TRUE(eventually([&] { return ask(get("/health")).starts_with("HTTP/1.1 200 "); }))
      << "its checks bring it back";
}

TEST_F(RouterTest, ANodeThatDiesInAStreamEndsItWithAnErrorEvent) {
  std::atomic<bool> is_ill{true};
  decode([&](const ScriptedExchange& exchange) {
    exchange.begin_chunked("text/event-stream");
    exchange.chunk("data: {\"a\":1}\n\ndata: {\"half");
    if (!is_ill) {
      exchange.chunk("\":2}\n\n");
      exchange.end_chunks();
    }
  });
  options_.health.interval = milliseconds(10);
  start();
  const std::string answer = ask(post("/v1/completions", R"({"prompt":"hi","stream":true})", ""));
  EXPECT_THAT(answer, HasSubstr("data: {\"a\":1}\n\n"));
  EXPECT_THAT(answer, Not(HasSubstr("half")));
  EXPECT_THAT(answer, HasSubstr("data: {\"error\":"));
  EXPECT_THAT(answer, EndsWith("0\r\n\r\n"));
  is_ill = false;
  EXPECT_TRUE(eventually([&] {
    return ask(post("/v1/completions", R"({"prompt":"hi","stream":true})")).find("half") <
           std::string::npos;
  }));
}

TEST_F(RouterTest, AnAnswerThatIsNoStreamOfEventsIsCutVisibly) {
  decode([](const ScriptedExchange& exchange) {
    exchange.begin_chunked("application/json");
    exchange.chunk("{\"a\":");
  });
  start();
  const std::string answer = ask(post("/v1/completions", kPrompt, ""));
  EXPECT_THAT(answer, HasSubstr("{\"a\":"));
  EXPECT_THAT(answer, Not(EndsWith("0\r\n\r\n")));
}

TEST_F(RouterTest, AClientThatLeavesTakesItsRequestWithIt) {
  std::atomic<int> waiting{0};
  std::atomic<int> left{0};
  const auto wait = [&](const ScriptedExchange& exchange) {
    ++waiting;
    exchange.wait();
    ++left;
  };
  prefill(wait);
  decode(wait);
  start();
  for (const char* prompt : {R"({"prompt":"a"})", R"({"prompt":["a","b"]})"}) {
    waiting = 0;
    left = 0;
    {
      const RawClient client(router_->port());
      client.send(post("/v1/completions", prompt));
      ASSERT_TRUE(eventually([&] { return waiting == 1; }));
    }
    EXPECT_TRUE(eventually([&] { return left == 1; })) << "the node sees the end too";
  }
  EXPECT_TRUE(eventually(
      [&] { return metrics().find("outcome=\"client_left\"} 2\n") != std::string::npos; }));
  EXPECT_THAT(metrics(), HasSubstr("role=\"decode\"} 0\n"));
  for (const NodeState& node : router_->nodes()) {
    EXPECT_EQ(node.in_flight, 0);
    EXPECT_TRUE(node.is_healthy) << "it is not the node's fault";
  }
}

TEST_F(RouterTest, ASlowClientSlowsItsNode) {
  std::atomic<std::size_t> sent{0};
  decode([&](const ScriptedExchange& exchange) {
    exchange.begin_chunked("text/event-stream");
    const std::string line = "data: " + std::string(64 * 1024, 'x') + "\n\n";
    for (int i = 0; i < 2000 && exchange.chunk(line); ++i) {
      sent += line.size();
    }
  });
  start();
  const RawClient client(router_->port());
  client.send(post("/v1/completions", R"({"prompt":"a","stream":true})"));
  EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(eventually([&] {
    const std::size_t before = sent;
    std::this_thread::sleep_for(milliseconds(300));
    return sent == before;
  })) << "it stops";
  EXPECT_LT(sent, 64U << 20U) << "of 125 MiB: what the kernel holds";
}

TEST_F(RouterTest, ANodeThatFallsSilentIsGivenUp) {
  ScriptedNode& consumer = decode([](const ScriptedExchange& exchange) { exchange.wait(); });
  // The limit is also that of the checks before, which a slow machine must answer in time.
  options_.health = {.interval = milliseconds(10), .timeout = std::chrono::seconds(2)};
  options_.route.node_timeout = milliseconds(50);
  start();
  ASSERT_TRUE(eventually([&] { return router_->nodes()[0].is_healthy; }));
  const RawClient client(router_->port());
  client.send(post("/v1/completions", kPrompt));
  ASSERT_TRUE(eventually([&] { return consumer.requests() == 1; }));
  consumer.set_health(0);
  EXPECT_THAT(client.receive_all(), StartsWith("HTTP/1.1 502 "));
  EXPECT_THAT(ask(post("/v1/completions", kPrompt)), HasSubstr("\"code\":\"no_node\""));
}

TEST_F(RouterTest, HealthListsTheNodesForThoseWithAKey) {
  options_.route.access.api_keys = {"k"};
  prefill(produce).set_health(503);
  ScriptedNode& consumer = decode(answer_ok);
  options_.health.interval = milliseconds(10);
  start();
  const std::string health = ask(get("/health", "Authorization: Bearer k\r\n"));
  EXPECT_THAT(health, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(health, HasSubstr("\"role\":\"prefill\",\"healthy\":false"));
  EXPECT_THAT(health, HasSubstr("\"problem\":\"/health says 503\""));
  EXPECT_THAT(health, HasSubstr("\"role\":\"decode\",\"healthy\":true"));
  EXPECT_THAT(ask(get("/health")), EndsWith("\r\n\r\n{\"status\":\"ok\"}"));
  EXPECT_THAT(ask(post("/v1/completions", kPrompt)), StartsWith("HTTP/1.1 401 "));
  EXPECT_EQ(consumer.requests(), 0);
  consumer.set_health(500);
  EXPECT_TRUE(eventually([&] { return ask(get("/health")).starts_with("HTTP/1.1 503 "); }));
}

TEST_F(RouterTest, OtherRoutesAreAnsweredByOneNode) {
  const ScriptedNode& consumer = decode(answer_ok);
  start();
  EXPECT_THAT(ask(get("/v1/models")), HasSubstr("decoded"));
  EXPECT_THAT(consumer.last_request(), StartsWith("GET /v1/models HTTP/1.1\r\n"));
  EXPECT_THAT(ask(post("/tokenize", R"({"content":"x"})")), HasSubstr("decoded"));
  EXPECT_THAT(consumer.last_request(), EndsWith("\r\n\r\n{\"content\":\"x\"}"));
  EXPECT_THAT(ask("HEAD /props HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
              EndsWith("Content-Length: 18\r\n\r\n"));
  EXPECT_THAT(ask(get("/nothing")), StartsWith("HTTP/1.1 404 "));
}

TEST_F(RouterTest, HeadOfAnAnswerThatIsPassedOnAsItComesHasNoBody) {
  std::atomic<bool> is_chunked{true};
  decode([&](const ScriptedExchange& exchange) {
    if (is_chunked) {
      exchange.begin_chunked("application/json");
      exchange.chunk("{\"a\":1}");
      exchange.end_chunks();
    } else {
      exchange.respond(200, std::string((std::size_t{1} << 20U) + 1, ' '));
    }
  });
  start();
  for (const bool chunked : {true, false}) {
    is_chunked = chunked;
    const RawClient client(router_->port());
    client.send("HEAD /props HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/health"));
    const std::string answers = client.receive_all();
    EXPECT_THAT(answers.substr(0, 200), StartsWith("HTTP/1.1 200 "));
    const std::size_t header_end = answers.find("\r\n\r\n");
    ASSERT_NE(header_end, std::string::npos);
    const std::string next = answers.substr(header_end + 4, 2000);
    EXPECT_THAT(next, StartsWith("HTTP/1.1 200 ")) << "chunked: " << chunked;
    EXPECT_THAT(next, HasSubstr("\"status\":\"ok\""));
  }
}

TEST_F(RouterTest, WrongBodiesGoNowhere) {
  const ScriptedNode& consumer = decode(answer_ok);
  start();
  EXPECT_THAT(ask(post("/v1/completions", "{")), HasSubstr("invalid_json"));
  EXPECT_THAT(ask(post("/v1/completions", R"({"prompt":"a","kv_transfer_params":{}})")),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(consumer.requests(), 0);
  EXPECT_THAT(metrics(), HasSubstr("karez_route_requests_total{outcome=\"refused\"} 2\n"));
}

TEST_F(RouterTest, ShuttingDownCutsWhatDoesNotEndAndSaysSo) {
  decode([](const ScriptedExchange& exchange) {
    exchange.begin_chunked("text/event-stream");
    exchange.chunk("data: {}\n\n");
    exchange.wait();
  });
  start();
  const RawClient client(router_->port());
  client.send(post("/v1/completions", R"({"prompt":"a","stream":true})", ""));
  EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 200 "));
  EXPECT_FALSE(router_->shut_down(milliseconds(20)));
  EXPECT_THAT(client.receive_all(), HasSubstr("the router is shutting down"));
}

TEST(RouterOptions, NodesThatCannotBeReachedAreOutAndTheRouterRuns) {
  RouterOptions options;
  options.http.port = 0;
  options.decode = {*parse_node_url("http://127.0.0.1:1")};
  auto router = Router::start(options);
  ASSERT_TRUE(router);
  EXPECT_FALSE((*router)->nodes()[0].is_healthy);
  EXPECT_THAT((*router)->nodes()[0].problem, StartsWith("cannot connect: "));
  EXPECT_TRUE((*router)->shut_down(milliseconds(0)));
}

}  // namespace router_test
}  // namespace karez
