#include "kv/store/redis_connection.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "support/store/redis_server.h"
#include "support/store/test_certificates.h"

namespace karez::test {
namespace redis_connection_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::milliseconds kPatience{10'000};  // where no limit is meant to strike

// What a call that must fail says.
std::string problem_at(const RedisAddress& address, const TlsFiles& tls = {},
                       std::chrono::milliseconds connect_limit = kPatience,
                       std::chrono::milliseconds answer_limit = kPatience) {
  RedisConnection connection({.address = address,
                              .tls = tls,
                              .connect_limit = connect_limit,
                              .answer_limit = answer_limit,
                              .max_answer_bytes = 100'000});
  const auto reply = connection.ask_one({"EXISTS", "a"});
  return reply ? std::string("no problem") : reply.error().message();
}

// A server that answers whatever it is sent with the same bytes.
class Liar {
 public:
  // again: without end. pause: after each time.
  explicit Liar(std::string answer, bool again = false, std::chrono::milliseconds pause = {})
      : answer_(std::move(answer)), again_(again), pause_(pause) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    KAREZ_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                    listen(listener_, 16) == 0 &&
                    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                "a loopback port is free");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;
  ~Liar() {
    is_over_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  RedisAddress address() const { return {"127.0.0.1", port_, "", 0, "", false}; }

 private:
  void run() {
    while (!is_over_) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) {
        continue;
      }
      char asked[4096];
      while (recv(client, asked, sizeof asked, 0) > 0) {
        while (send(client, answer_.data(), answer_.size(), MSG_NOSIGNAL) > 0 && again_) {
          std::this_thread::sleep_for(pause_);
        }
      }
      close(client);
    }
  }

  const std::string answer_;
  const bool again_;
  const std::chrono::milliseconds pause_;
  std::atomic<bool> is_over_ = false;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

TEST(RedisConnection, SpeaksTlsAsAUserWithAPasswordAndACertificate) {
  const TestCertificates made;
  const RedisServer server(made, {"--user", "node", "on", ">its password", "~karez:*", "+exists",
                                  "+set", "+getrange", "+del"});
  RedisAddress address = server.tls_address();
  address.user = "node";
  address.password = "its password";
  address.database = 0;
  const TlsFiles tls = {made.file("ca"), made.file("client"), made.file("key")};
  RedisConnection connection({.address = address, .tls = tls, .max_answer_bytes = 2 << 20U});
  const std::string value(1 << 20U, 'v');  // of many TLS records
  ASSERT_TRUE(connection.ask_one({"SET", "karez:x", value}));
  const auto got = connection.ask_one({"GETRANGE", "karez:x", "0", "-1"});
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->text, value);
  const auto foreign = connection.ask_one({"SET", "other:x", "v"});
  ASSERT_FALSE(foreign);
  EXPECT_THAT(foreign.error().message(), HasSubstr("NOPERM"));
  address.password = "wrong password";
  EXPECT_THAT(problem_at(address, tls),
              AllOf(HasSubstr("WRONGPASS"), Not(HasSubstr("wrong pass"))));
}

TEST(RedisConnection, SaysWhatIsWrongWithTls) {
  const TestCertificates made;
  const RedisServer server(made);
  const RedisAddress address = server.tls_address();
  const TlsFiles tls = {made.file("ca"), made.file("client"), made.file("key")};
  EXPECT_EQ(problem_at(address, tls), "no problem");
  TlsFiles other = tls;
  other.ca = made.file("other_ca");
  EXPECT_THAT(problem_at(address, other), HasSubstr("its certificate is not accepted"));
  other.ca.clear();  // the system's
  EXPECT_THAT(problem_at(address, other), HasSubstr("its certificate is not accepted"));
  RedisAddress elsewhere = address;
  elsewhere.host = "localhost";
  EXPECT_THAT(problem_at(elsewhere, tls), HasSubstr("hostname mismatch"));
  EXPECT_THAT(problem_at(address, {made.file("ca"), "", ""}),
              HasSubstr("certificate of this client"));
  EXPECT_THAT(problem_at(address, {made.file("ca") + "x", "", ""}), HasSubstr("No such file"));

  RedisAddress plain_at_tls = address;
  plain_at_tls.use_tls = false;
  EXPECT_THAT(problem_at(plain_at_tls), HasSubstr("it speaks TLS, rediss:// is needed"));
  RedisAddress tls_at_plain = server.address();
  tls_at_plain.use_tls = true;
  EXPECT_THAT(problem_at(tls_at_plain, tls, std::chrono::milliseconds(200)),
              HasSubstr("no TLS handshake in time"));

  RedisConnection admin({.address = server.address()});
  ASSERT_TRUE(admin.ask_one({"CONFIG", "SET", "tls-cert-file", made.file("expired")}));
  EXPECT_THAT(problem_at(address, tls), HasSubstr("certificate has expired"));
}

TEST(RedisConnection, AServerThatAnswersTlsWithSomethingElseDoesNotSpeakIt) {
  const Liar liar("-ERR what is this?\r\n");
  RedisAddress address = liar.address();
  address.use_tls = true;
  EXPECT_THAT(problem_at(address), HasSubstr("it does not speak TLS"));
}

TEST(RedisConnection, AnAnswerThatNoCommandHasEndsTheConnectionAndTakesNoMemory) {
  EXPECT_THAT(problem_at(Liar("*1000000000\r\n").address()), HasSubstr("a list"));
  EXPECT_THAT(problem_at(Liar(":1\r\n:1\r\n").address()), HasSubstr("more than it was asked"));
  EXPECT_THAT(problem_at(Liar("$1000000000\r\nabcdefgh", true).address()),
              HasSubstr("more than 100000 bytes"));
  EXPECT_THAT(problem_at(Liar("\x15\x03\x03").address()), HasSubstr("it speaks TLS"));
  EXPECT_THAT(problem_at(Liar("$-2\r\n").address()), HasSubstr("127.0.0.1"));
  EXPECT_THAT(problem_at(Liar("HTTP/1.1 400\r\n").address()), HasSubstr("Protocol error"));
  EXPECT_THAT(problem_at(Liar("-ERR \x1b[2J\r\n").address()), "ERR ?[2J");
}

TEST(RedisConnection, AnAnswerThatComesInDropsIsLateAsAWhole) {
  const Liar liar("+x", true, std::chrono::milliseconds(1));
  EXPECT_THAT(problem_at(liar.address(), {}, kPatience, std::chrono::milliseconds(50)),
              HasSubstr("no answer in time"));
}

TEST(RedisConnection, AServerThatRepeatsThePasswordIsNotQuoted) {
  for (const char* answer :
       {"-ERR unknown command 'AUTH', with args beginning with: 'a-long-secret-word'\r\n",
        "-a-long-secret-word\r\n", "-ERR 'a-long-secret-wo\r\n"}) {
    const Liar liar(answer);
    RedisAddress address = liar.address();
    address.password = "a-long-secret-word";
    EXPECT_THAT(problem_at(address), AllOf(HasSubstr("refuses"), Not(HasSubstr("a-long"))))
        << answer;
  }
}

TEST(RedisConnection, WhatMakesNoSenseIsAFailureOrAnAnswerAndNothingElse) {
  std::mt19937 dice(7);
  constexpr std::string_view kLikely = "+-:$*\r\n\r\n0123456789ax";
  for (int round = 0; round < 60; ++round) {
    std::string answer;
    for (std::uint32_t left = 1 + dice() % 30; left > 0; --left) {
      answer +=
          dice() % 4 == 0 ? static_cast<char>(dice() % 256) : kLikely[dice() % kLikely.size()];
    }
    const Liar liar(answer);
    EXPECT_FALSE(problem_at(liar.address(), {}, kPatience, std::chrono::milliseconds(5)).empty());
  }
}

TEST(RedisConnection, AConnectionThatWasClosedWhileIdleIsMadeAnewWithoutAFailure) {
  const RedisServer server;
  RedisConnection connection({.address = server.address()});
  RedisConnection admin({.address = server.address()});
  ASSERT_TRUE(connection.ask_one({"PING"}));
  const auto killed = admin.ask_one({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  ASSERT_TRUE(killed && killed->integer >= 1);
  EXPECT_TRUE(connection.ask_one({"PING"}));
}

}  // namespace redis_connection_test
}  // namespace karez::test
