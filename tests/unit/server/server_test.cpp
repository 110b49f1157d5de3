// The whole server over loopback sockets, in front of the fake engine: what the sanitizers are to
// see of connections, streams and their ends.
#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/server/fake_codec.h"
#include "support/server/fake_engine.h"
#include "support/server/raw_client.h"

namespace karez {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// In front of another engine: submit() waits until it is let through.
class GatedEngine final : public EngineClient {
 public:
  explicit GatedEngine(EngineClient& engine) : engine_(engine) {}

  Expected<RequestId> submit(Request request, Callback callback) override {
    {
      std::unique_lock lock(mutex_);
      is_reached_ = true;
      changed_.notify_all();
      // Not for good: a server that waits for this would never end.
      if (!changed_.wait_for(lock, std::chrono::seconds(20), [this] { return is_open_; })) {
        came_too_late_ = true;
      }
    }
    return engine_.submit(std::move(request), std::move(callback));
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  EngineStats stats() const override { return engine_.stats(); }

  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Whether a submit() gave up waiting for open().
  bool came_too_late() const {
    const std::lock_guard lock(mutex_);
    return came_too_late_;
  }

 private:
  EngineClient& engine_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
  bool is_open_ = false;
  bool came_too_late_ = false;
};

// Refuses prompts with an exclamation mark, for the field that their salt of the cache names.
class RefusingEngine final : public EngineClient {
 public:
  Expected<RequestId> submit(Request request, Callback /*callback*/) override {
    if (std::ranges::find(request.prompt, '!') == request.prompt.end()) {
      return RequestId{1};
    }
    return fail_field(request.cache_salt, "no");
  }
  void cancel(RequestId /*id*/) override {}
  EngineStats stats() const override { return {}; }
};

class ServerTest : public testing::Test {
 protected:
  void start() {
    options_.http.port = 0;
    auto server = Server::start(options_);
    ASSERT_TRUE(server);
    server_ = std::move(*server);
    port_ = server_->port();
  }
  void start_with_model() { start_with_engine(engine_); }
  void start_with_engine(EngineClient& engine) {
    start();
    ServerBackend backend;
    backend.engine = &engine;
    backend.codec = &codec_;
    backend.model = {
        .name = "fake", .context_tokens = 100'000, .max_num_seqs = 32, .kv_role = role_};
    server_->set_backend(backend);
  }
  std::string ask(const std::string& request) const {
    const RawClient client(port_);
    client.send(request);
    return client.receive_all();
  }
  // Whether the engine has nothing to do, now or soon.
  bool becomes_idle() const {
    for (int i = 0; i < 1000; ++i) {
      const EngineStats stats = engine_.stats();
      if (stats.requests_running + stats.requests_waiting == 0) {
        return true;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  FakeCodec codec_;
  FakeEngine engine_;
  KvRole role_ = KvRole::kNone;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

TEST_F(ServerTest, TellsItsProgressUntilAModelIsThere) {
  start();
  server_->set_progress(0.25, "loading weights");
  const std::string health = ask(get("/health"));
  EXPECT_THAT(health, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(health, HasSubstr("Retry-After: "));
  EXPECT_THAT(health, HasSubstr("\"progress\":0.25"));
  EXPECT_THAT(health, HasSubstr("\"phase\":\"loading weights\""));
  const std::string answer = ask(post("/v1/completions", R"({"prompt":"x"})"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(answer, HasSubstr("\"code\":\"loading\""));
  EXPECT_THAT(ask(get("/metrics")), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ServerTest, StreamsAnAnswer) {
  start_with_model();
  EXPECT_THAT(ask(get("/health")), HasSubstr("{\"status\":\"ok\"}"));
  const std::string answer = ask(post("/v1/completions", R"({"prompt":"hi","stream":true})"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(answer, HasSubstr("\"finish_reason\":\"stop\""));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]\n\n"));
}

// The two steps of a proxy, against one server that does both.
TEST_F(ServerTest, AProxyTakesThePlaceOfTheKvFromTheFirstAnswerToTheSecond) {
  role_ = KvRole::kBoth;
  start_with_model();
  const std::string first = ask(post("/v1/completions", R"({"prompt":"hi","max_tokens":1,
      "kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}})"));
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(engine_.last_request().kv_transfer, KvTransfer{});
  const Json answer = Json::parse(first.substr(first.find("\r\n\r\n")));
  const Json second = {{"prompt", "hi"}, {"kv_transfer_params", answer["kv_transfer_params"]}};
  const std::string decoded = ask(post("/v1/completions", second.dump()));
  EXPECT_THAT(decoded, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(decoded, Not(HasSubstr("kv_transfer_params")));
  KvTransfer expected = FakeEngine::produced();
  expected.role = KvTransfer::Role::kConsume;
  EXPECT_EQ(engine_.last_request().kv_transfer, expected);
}

TEST_F(ServerTest, ClientsThatComeAndGoLeaveNothingBehind) {
  start_with_model();
  constexpr int kThreads = 6;
  constexpr int kRequests = 24;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      for (int i = 0; i < kRequests; ++i) {
        const bool stream = (thread + i) % 2 == 0;
        const std::string fields = stream ? R"(,"stream":true})" : "}";
        switch (i % 4) {
          case 0:  // stays to the end
            EXPECT_THAT(ask(post("/v1/completions", R"({"prompt":"hi")" + fields)),
                        StartsWith("HTTP/1.1 200 "));
            break;
          case 1: {  // leaves without reading
            const RawClient client(port_);
            client.send(post("/v1/completions", R"({"prompt":"<forever>")" + fields));
            break;
          }
          case 2: {  // leaves in the stream, or closes its sending side
            const RawClient client(port_);
            client.send(post("/v1/completions", R"({"prompt":"<forever>")" + fields));
            if (stream) {
              EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 200 "));
            } else {
              client.stop_sending();
              client.receive_all();
            }
            break;
          }
          default:  // does not get far
            EXPECT_THAT(ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(engine_.stats().slots_used, 0);
}

TEST_F(ServerTest, AnEngineThatTakesItsTimeToTakeARequestHoldsUpNoOtherConnection) {
  GatedEngine gated(engine_);
  options_.http.io_threads = 1;
  start_with_engine(gated);
  const RawClient client(port_);
  client.send(post("/v1/completions", R"({"prompt":"hi"})"));
  const RawClient left(port_);
  left.send(post("/v1/completions", R"({"prompt":"<forever>"})"));
  left.stop_sending();
  gated.wait_until_reached();
  EXPECT_THAT(ask(get("/health")), StartsWith("HTTP/1.1 200 "));
  gated.open();
  EXPECT_THAT(client.receive_all(), HasSubstr("\"finish_reason\":\"stop\""));
  EXPECT_FALSE(gated.came_too_late());
  EXPECT_TRUE(becomes_idle());
  // Before the engine that it uses.
  server_.reset();
}

TEST_F(ServerTest, AFieldThatTheEngineRefusesIsNamedAsTheClientNamedIt) {
  RefusingEngine refusing;
  start_with_engine(refusing);
  const auto param = [this](const std::string& route, const std::string& fields,
                            const std::string& field) {
    const std::string answer =
        ask(post("/v1/" + route, "{" + fields + R"(,"cache_salt":")" + field + R"("})"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 "));
    return Json::parse(answer.substr(answer.find("\r\n\r\n")))["error"]["param"];
  };
  const std::string messages = R"("messages":[{"role":"user","content":"hi!"}])";
  EXPECT_EQ(param("chat/completions", messages, "prompt"), "messages");
  EXPECT_EQ(param("chat/completions", messages + R"(,"max_completion_tokens":3)", "max_tokens"),
            "max_completion_tokens");
  EXPECT_EQ(param("completions", R"("prompt":"hi!")", "prompt"), "prompt");
  EXPECT_EQ(param("completions", R"("prompt":["hi","hi!"])", "prompt"), "prompt[1]");
  EXPECT_EQ(param("completions", R"("prompt":"hi!","n_predict":3)", "max_tokens"), "n_predict");
  EXPECT_EQ(param("completions", R"("prompt":"hi!","n":33)", "n"), "n");
  EXPECT_EQ(param("completions", R"("prompt":"hi!")", ""), nullptr);
  // Before the engine that it uses.
  server_.reset();
}

TEST_F(ServerTest, AFullQueueRefusesWithoutReadingTheRequest) {
  FakeEngine full({.max_waiting = 0});
  start_with_engine(full);
  for (const char* body : {R"({"prompt":"hi"})", R"({"prompt":7})", "{"}) {
    const std::string answer = ask(post("/v1/completions", body));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 ")) << body;
    EXPECT_THAT(answer, HasSubstr("Retry-After: "));
    EXPECT_THAT(answer, HasSubstr("\"code\":\"overloaded\""));
  }
  // Before the engine that it uses.
  server_.reset();
}

TEST_F(ServerTest, ShuttingDownCutsWhatDoesNotEndAndSaysSo) {
  start_with_model();
  const RawClient client(port_);
  client.send(post("/v1/completions", R"({"prompt":"<forever>","stream":true})", ""));
  EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 200 "));
  EXPECT_FALSE(server_->shut_down(milliseconds(50)));
  EXPECT_THAT(client.receive_all(), HasSubstr("the server is shutting down"));
  EXPECT_TRUE(becomes_idle());
}

TEST_F(ServerTest, ShuttingDownLetsAnAnswerEnd) {
  start_with_model();
  const RawClient client(port_);
  client.send(post("/v1/completions", R"({"prompt":"hi","stream":true})", ""));
  const std::string first = client.receive();
  EXPECT_TRUE(server_->shut_down(std::chrono::seconds(60)));
  EXPECT_THAT(first + client.receive_all(), HasSubstr("data: [DONE]"));
}

// Case I8: what a client sends as its salt never makes it share with another key.
TEST_F(ServerTest, TheSaltOfTheCacheComesFromTheKey) {
  options_.api.access.api_keys = {"key-a", "key-b"};
  start_with_model();
  const auto salt = [this](const std::string& key, const std::string& body) {
    EXPECT_THAT(ask(post("/v1/completions", body,
                         "Connection: close\r\nAuthorization: Bearer " + key + "\r\n")),
                StartsWith("HTTP/1.1 200 "));
    return engine_.last_request().cache_salt;
  };
  const std::string plain = R"({"prompt":"hi"})";
  const std::string salted = R"({"prompt":"hi","cache_salt":"s"})";
  EXPECT_EQ(salt("key-a", plain), salt("key-a", plain));
  EXPECT_NE(salt("key-a", plain), salt("key-b", plain));
  EXPECT_EQ(salt("key-a", salted), salt("key-a", salted));
  EXPECT_NE(salt("key-a", salted), salt("key-a", plain));
  EXPECT_NE(salt("key-a", salted), salt("key-b", salted));
  // The other key's salt, sent by a client, is not that salt.
  const std::string forged = R"({"prompt":"hi","cache_salt":")" + salt("key-b", plain) + R"("})";
  EXPECT_NE(salt("key-a", forged), salt("key-b", plain));
  EXPECT_THAT(salt("key-a", plain), Not(HasSubstr("key-a")));
}

TEST_F(ServerTest, AllKeysShareTheCacheIfAsked) {
  options_.api.access.api_keys = {"key-a", "key-b"};
  options_.api.shared_prefix_cache = true;
  start_with_model();
  for (const char* key : {"key-a", "key-b"}) {
    ask(post("/v1/completions", R"({"prompt":"hi"})",
             std::string("Connection: close\r\nAuthorization: Bearer ") + key + "\r\n"));
    EXPECT_EQ(engine_.last_request().cache_salt, "");
  }
}

TEST_F(ServerTest, LogsALineForEachRequestWithoutTextsAndKeys) {
  options_.api.access.api_keys = {"key-a"};
  options_.api.log_jsonl = testing::TempDir() + "karez_server_test.jsonl";
  std::remove(options_.api.log_jsonl.c_str());
  start_with_model();
  const std::string headers = "Connection: close\r\nAuthorization: Bearer key-a\r\n";
  ask(post("/v1/completions", R"({"prompt":"a secret"})", headers));
  ask(post("/v1/completions", R"({"prompt":7})", headers));
  ask(post("/tokenize", R"({"content":"a secret"})", headers));
  ask("GET /secret HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  ask("GET /props HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
      "Authorization: Bearer secret\r\n\r\n");
  ask("no secret HTTP\r\n\r\n");
  server_.reset();
  std::FILE* file = std::fopen(options_.api.log_jsonl.c_str(), "re");
  ASSERT_NE(file, nullptr);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::remove(options_.api.log_jsonl.c_str());
  EXPECT_EQ(std::ranges::count(text, '\n'), 6);
  EXPECT_THAT(text, HasSubstr("\"status\":200,\"finish_reason\":\"stop\",\"prompt_tokens\":8"));
  for (const char* rejected :
       {"\"route\":\"/v1/completions\",\"status\":400,", "\"route\":\"\",\"status\":404,",
        "\"route\":\"/props\",\"status\":401,", "\"route\":\"\",\"status\":400,"}) {
    EXPECT_THAT(text, HasSubstr(std::string(rejected) + "\"finish_reason\":\"rejected\""));
  }
  EXPECT_THAT(text, HasSubstr("\"route\":\"/tokenize\",\"status\":200,\"finish_reason\":\"\""));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, Not(HasSubstr("key-a")));
}

}  // namespace
}  // namespace karez
