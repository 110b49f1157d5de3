#include "route/health_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/server/scripted_node.h"

namespace karez {
namespace health_checker_test {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::chrono::seconds kPatience{20};

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
  HealthChecker checker({.interval = milliseconds(5), .timeout = milliseconds(500)}, nodes,
                        [](NodeId, const NodeState&) {});
  checker.wait_for_first_round(kPatience);
  EXPECT_FALSE(nodes.states()[0].is_healthy);
  EXPECT_THAT(nodes.states()[0].problem, HasSubstr("its name is not looked up yet"));
  EXPECT_TRUE(nodes.states()[1].is_healthy) << nodes.states()[1].problem;
}

TEST(HealthChecker, ChecksGoOnAtTheKnownAddressWhileDnsDoesNotAnswer) {
  ScriptedNode node([](const ScriptedExchange&) {});
  const HangingResolver dns(
      1, {{boost::asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(node.port())}});
  NodeTable nodes({}, {named(node.port())}, dns.resolver());
  std::promise<std::string> is_healthy;
  std::promise<std::string> is_out;
  HealthChecker checker({.interval = milliseconds(5), .timeout = milliseconds(500)}, nodes,
                        [&, news = 0](NodeId, const NodeState& state) mutable {
                          if (news < 2) {
                            (news == 0 ? is_healthy : is_out).set_value(state.problem);
                          }
                          ++news;
                        });
  EXPECT_EQ(is_healthy.get_future().get(), "");
  node.set_health(500);
  EXPECT_EQ(is_out.get_future().get(), "/health says 500");
}

}  // namespace health_checker_test
}  // namespace karez
