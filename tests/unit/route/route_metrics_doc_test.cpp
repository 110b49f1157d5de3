// docs/metrics.md against what a router's GET /metrics really gives.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "route/route_metrics.h"

namespace karez {
namespace route_metrics_doc_test {

std::set<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

TEST(RouteMetricsDoc, NamesExactlyTheMetricsOfThePage) {
  const RouteMetrics metrics;
  const NodeTable nodes({}, {});
  std::ifstream file(KAREZ_DOCS_DIR "/metrics.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::set<std::string> on_page =
      all_matches(metrics.page(nodes), std::regex("# TYPE ([a-z0-9_:]+) "));
  EXPECT_GT(on_page.size(), 8U);
  EXPECT_EQ(on_page, all_matches(text.str(), std::regex("\\| `(karez_route_[a-z0-9_]+)")));
}

}  // namespace route_metrics_doc_test
}  // namespace karez
