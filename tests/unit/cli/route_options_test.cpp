#include "cli/route_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace karez {
namespace route_options_test {

using ::testing::HasSubstr;

Expected<CheckedRoute> parse(std::vector<std::string> arguments) {
  CLI::App app;
  RouteFlags flags;
  add_route_flags(app, flags);
  std::ranges::reverse(arguments);
  app.parse(arguments);
  return check_route_flags(flags);
}

TEST(RouteOptions, NodesAreRepeatedOrListed) {
  const auto options =
      parse({"--prefill", "http://a:1,http://a:2", "--prefill", "http://b:3", "--decode",
             "http://c:4/", "--port", "0", "--api-key", "k", "--node-timeout", "5"});
  ASSERT_TRUE(options) << options.error().message();
  ASSERT_EQ(options->router.prefill.size(), 3U);
  EXPECT_EQ(options->router.prefill[2].text(), "http://b:3");
  ASSERT_EQ(options->router.decode.size(), 1U);
  EXPECT_EQ(options->router.decode[0].text(), "http://c:4");
  EXPECT_EQ(options->router.http.port, 0);
  EXPECT_THAT(options->router.route.access.api_keys, testing::ElementsAre("k"));
  EXPECT_EQ(options->router.route.node_timeout, std::chrono::seconds(5));
}

TEST(RouteOptions, WrongOnesSayWhatIsAllowed) {
  struct Case {
    std::vector<std::string> arguments;
    const char* says;
  };
  for (const Case& bad : {
           Case{{}, "--decode is missing"},
           {{"--prefill", "http://a:1"}, "--decode is missing"},
           {{"--decode", "a:1"}, "--decode 'a:1' does not begin with http://"},
           {{"--prefill", "http://a:0", "--decode", "http://c:4"}, "--prefill 'http://a:0' has"},
           {{"--decode", "http://c:4,http://C:4/"}, "--decode names http://c:4 twice"},
           {{"--decode", "http://c:4", "--node-timeout", "0"}, "--node-timeout is 0"},
           {{"--decode", "http://c:4", "--port", "70000"}, "--port is 70000"},
           {{"--decode", "http://c:4", "--api-key", ""}, "--api-key is empty"},
       }) {
    const auto options = parse(bad.arguments);
    ASSERT_FALSE(options) << bad.says;
    EXPECT_THAT(options.error().message(), HasSubstr(bad.says));
  }
}

}  // namespace route_options_test
}  // namespace karez
