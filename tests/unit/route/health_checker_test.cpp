#include "route/health_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/server/scripted_node.h"

namespace karez {
namespace health_checker_test {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::seconds kPatience{20};
// A round takes so long while a look-up hangs, so it is short; a check that a slow machine does not
// answer in this time is made again.
constexpr HealthCheckOptions kOptions{.interval = milliseconds(5), .timeout = milliseconds(1000)};

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// Holds look-ups from the n-th on until it goes; they may outlive it.
class HangingResolver {
 public:
  HangingResolver(int num_answered, NodeEndpoints answer)
      : state_(std::make_shared<State>()), num_answered_(num_answered), answer_(std::move(answer)) {
    state_->is_open = state_->open.get_future().share();
  }
  ~HangingResolver() { state_->open.set_value(); }
  HangingResolver(const HangingResolver&) = delete;
  HangingResolver& operator=(const HangingResolver&) = delete;

  NameResolver resolver() const {
    return [state = state_, count = num_answered_,
            answer = answer_](const NodeUrl&) -> Expected<NodeEndpoints> {
      if (state->num_asked++ >= count) {
        state->is_open.wait();
        return fail(StatusCode::kUnavailable, "no answer");
      }
      return answer;
    };
  }

 private:
  struct State {
    std::promise<void> open;
    std::shared_future<void> is_open;
    std::atomic<int> num_asked = 0;
  };
  const std::shared_ptr<State> state_;
  const int num_answered_;
  const NodeEndpoints answer_;
};

NodeUrl named(int port) { return {.host = "node", .port = port, .base_path = {}}; }

TEST(HealthChecker, ANameThatIsNotLookedUpInTimeKeepsNobodyWaiting) {
  const ScriptedNode node([](const ScriptedExchange&) {});
  const HangingResolver dns(0, {});  // outlives the checker: its end must not need an answer
  NodeTable nodes({}, {named(1), *parse_node_url(node.url())}, dns.resolver());
  HealthChecker checker(kOptions, nodes, [](NodeId, const NodeState&) {});
  checker.wait_for_first_round(kPatience);
  EXPECT_FALSE(nodes.states()[0].is_healthy);
  EXPECT_THAT(nodes.states()[0].problem, HasSubstr("its name is not looked up yet"));
  EXPECT_TRUE(eventually([&] { return nodes.states()[1].is_healthy; }))
      << nodes.states()[1].problem;
}

TEST(HealthChecker, ChecksGoOnAtTheKnownAddressWhileDnsDoesNotAnswer) {
  ScriptedNode node([](const ScriptedExchange&) {});
  const HangingResolver dns(
      1, {{boost::asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(node.port())}});
  NodeTable nodes({}, {named(node.port())}, dns.resolver());
  std::promise<void> is_healthy;
  std::promise<void> is_out;
  const HealthChecker checker(kOptions, nodes,
                              [&, num_told = 0](NodeId, const NodeState& state) mutable {
                                if (num_told > 0) {  // the address is known from there on
                                  EXPECT_THAT(state.problem, Not(HasSubstr("looked up")));
                                }
                                if (num_told == 0 && state.is_healthy) {
                                  ++num_told;
                                  is_healthy.set_value();
                                } else if (num_told == 1 && state.problem == "/health says 500") {
                                  ++num_told;
                                  is_out.set_value();
                                }
                              });
  ASSERT_TRUE(is_healthy.get_future().wait_for(kPatience) == std::future_status::ready);
  node.set_health(500);
  EXPECT_TRUE(is_out.get_future().wait_for(kPatience) == std::future_status::ready);
}

}  // namespace health_checker_test
}  // namespace karez
