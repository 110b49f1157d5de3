// docs/metrics.md against what GET /metrics really gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "server/server_metrics.h"

namespace karez {
namespace {

std::set<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

TEST(MetricsDoc, NamesExactlyTheMetricsOfThePage) {
  ServerMetrics metrics;
  EngineStats stats;
  stats.has_speculation = true;
  stats.has_store = true;
  stats.peers.produces = true;
  stats.peers.consumes = true;
  metrics.set_engine([stats] { return stats; }, 16, 8);
  metrics.set_connections([] { return std::size_t{0}; });
  const std::set<std::string> on_page =
      all_matches(metrics.page(), std::regex("# TYPE ([a-z0-9_:]+) "));
  std::ifstream file(KAREZ_DOCS_DIR "/metrics.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::set<std::string> in_doc =
      all_matches(text.str(), std::regex("\\| `((?:vllm:|karez_(?!route_))[a-z0-9_]+)"));
  EXPECT_GT(on_page.size(), 20U);
  EXPECT_EQ(on_page, in_doc);
}

TEST(ServerMetrics, SaysWhatCompressionHasDone) {
  ServerMetrics metrics;
  EngineStats stats;
  stats.compression = {.windows = 3,
                       .early_windows = 2,
                       .pairs_kept = 500,
                       .pairs_archived = 300,
                       .pairs_dropped = 200,
                       .pairs_brought_back = 64,
                       .bytes_saved = 4096,
                       .seconds = 0.5,
                       .query_bytes = 77};
  metrics.set_engine([stats] { return stats; }, 16, 8);
  const std::string page = metrics.page();
  for (const char* line : {
           "karez_compressed_windows_total 3\n",
           "karez_compression_early_windows_total 2\n",
           "karez_compression_pairs_total{fate=\"kept\"} 500\n",
           "karez_compression_pairs_total{fate=\"archived\"} 300\n",
           "karez_compression_pairs_total{fate=\"dropped\"} 200\n",
           "karez_compression_brought_back_pairs_total 64\n",
           "karez_compression_saved_bytes_total 4096\n",
           "karez_compression_seconds_total 0.5\n",
           "karez_compression_query_bytes 77\n",
       }) {
    EXPECT_THAT(page, testing::HasSubstr(line));
  }
}

TEST(ServerMetrics, CountsWhatItIsTold) {
  ServerMetrics metrics;
  metrics.observe_request(0.4, FinishReason::kLength);
  metrics.observe_first_token(0.03);
  metrics.count_response(404);
  const std::string page = metrics.page();
  for (const char* line : {
           "vllm:request_success_total{finished_reason=\"length\"} 1\n",
           "vllm:request_success_total{finished_reason=\"stop\"} 0\n",
           "vllm:time_to_first_token_seconds_bucket{le=\"0.02\"} 0\n",
           "vllm:time_to_first_token_seconds_bucket{le=\"0.04\"} 1\n",
           "vllm:e2e_request_latency_seconds_count 1\n",
           "karez_http_responses_total{status=\"404\"} 1\n",
       }) {
    EXPECT_THAT(page, testing::HasSubstr(line));
  }
}

}  // namespace
}  // namespace karez
