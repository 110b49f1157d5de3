#include "cli/role_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace karez {
namespace role_flags_test {

using ::testing::HasSubstr;

Expected<RoleOptions> parse(std::vector<std::string> arguments) {
  CLI::App app;
  RoleFlags flags;
  add_role_flags(app, flags);
  std::ranges::reverse(arguments);
  app.parse(arguments);
  return check_role_flags(flags);
}

std::string error_of(const std::vector<std::string>& arguments) {
  const auto options = parse(arguments);
  return options ? "no error" : options.error().message();
}

TEST(RoleFlags, WithoutThemAServerDoesBothStepsForItself) {
  const auto options = parse({});
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->is_on());
  EXPECT_FALSE(options->produces());
  EXPECT_FALSE(options->consumes());
}

TEST(RoleFlags, ARoleOnLoopbackNeedsNothingElse) {
  const auto options = parse({"--kv-role", "kv_producer"});
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_TRUE(options->produces());
  EXPECT_FALSE(options->consumes());
  EXPECT_EQ(options->host, "127.0.0.1");
  EXPECT_EQ(options->port, 5600);
  EXPECT_EQ(options->lease.count(), 30);
  EXPECT_TRUE(parse({"--kv-role", "kv_both", "--kv-host", "::1"})->consumes());
}

TEST(RoleFlags, EveryFlagArrives) {
  const auto options = parse({"--kv-role",         "kv_both",
                              "--kv-host",         "localhost",
                              "--kv-port",         "0",
                              "--kv-admit",        "sparse",
                              "--kv-wire-type",    "r4",
                              "--kv-load-failure", "recompute",
                              "--kv-lease",        "7",
                              "--kv-transports",   "tcp",
                              "--kv-allow-peers",  "10.0.0.0/8:1",
                              "--kv-peer-secret",  "0123456789 secret"});
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_EQ(options->host, "127.0.0.1");
  EXPECT_EQ(options->port, 0);
  EXPECT_EQ(options->admit, KvAdmit::kSparse);
  EXPECT_TRUE(options->allowed_peers.allow("10.1.2.3", 1));
  EXPECT_FALSE(options->allowed_peers.allow("127.0.0.1", 1));
  EXPECT_EQ(options->wire_type, KvWireType::kR4);
  EXPECT_EQ(options->load_failure, KvLoadFailure::kRecompute);
  EXPECT_EQ(options->lease.count(), 7);
  EXPECT_EQ(options->transports, KvTransports::kTcp);
}

TEST(RoleFlags, TransportsAreLists) {
  struct Case {
    const char* list;
    bool shared_memory;
    bool network;
  };
  for (const Case& one : {Case{"shm,tcp", true, false},
                          {"tcp", false, false},
                          {"shm,ucx,tcp", true, true},
                          {"ucx,tcp", false, true}}) {
    const auto options = parse({"--kv-role", "kv_both", "--kv-transports", one.list});
    ASSERT_TRUE(options) << options.error().message();
    EXPECT_EQ(has_shared_memory(options->transports), one.shared_memory) << one.list;
    EXPECT_EQ(has_network(options->transports), one.network) << one.list;
    EXPECT_EQ(to_string(options->transports), one.list);
  }
}

TEST(RoleFlags, VllmsConfigSaysTheSame) {
  const auto options = parse(
      {"--kv-transfer-config",
       R"({"kv_connector":"NixlConnector","kv_role":"kv_both","kv_ip":"127.0.0.2","kv_port":7000,
           "kv_load_failure_policy":"recompute",
           "kv_connector_extra_config":{"kv_lease_duration":9}})"});
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_EQ(options->role, KvRole::kBoth);
  EXPECT_EQ(options->host, "127.0.0.2");
  EXPECT_EQ(options->port, 7000);
  EXPECT_EQ(options->load_failure, KvLoadFailure::kRecompute);
  EXPECT_EQ(options->lease.count(), 9);
}

TEST(RoleFlags, WrongOnesSayWhatIsAllowed) {
  const std::string role = "--kv-role";
  const std::string config = "--kv-transfer-config";
  struct Case {
    std::vector<std::string> arguments;
    const char* says;
  };
  for (const Case& bad : {
           Case{{role, "prefill"}, "kv_producer, kv_consumer, kv_both"},
           {{role, "kv_both", "--kv-port", "65536"}, "--kv-port is 65536, allowed are 0"},
           {{role, "kv_both", "--kv-port", "-1"}, "--kv-port is -1"},
           {{role, "kv_both", "--kv-host", "example.org"}, "--kv-host is 'example.org'"},
           {{role, "kv_both", "--kv-host", "0.0.0.0"}, "the peers can reach"},
           {{role, "kv_both", "--kv-host", "::ffff:0.0.0.0"}, "the peers can reach"},
           {{role, "kv_both", "--kv-host", "192.0.2.1"}, "must share a secret"},
           {{role, "kv_both", "--kv-admit", "some"}, "--kv-admit: there is no 'some'"},
           {{role, "kv_both", "--kv-wire-type", "r3"}, "allowed is native, r4"},
           {{role, "kv_both", "--kv-transports", "rdma"},
            "no 'rdma', allowed is shm,tcp or tcp or shm,ucx,tcp or ucx,tcp"},
           {{"--kv-transports", "tcp"}, "--kv-transports needs --kv-role"},
           {{role, "kv_both", "--kv-load-failure", "wait"}, "allowed is fail, recompute"},
           {{role, "kv_both", "--kv-lease", "0"}, "--kv-lease is 0, allowed are 1"},
           {{role, "kv_both", "--kv-allow-peers", "pool"}, "--kv-allow-peers: 'pool' is no peer"},
           {{role, "kv_both", "--kv-allow-peers", "any"}, "must share a secret"},
           {{role, "kv_producer", "--kv-allow-peers", "any"}, "kv_consumer or kv_both"},
           {{role, "kv_both", "--kv-peer-secret", "short"}, "5 bytes, allowed are 16"},
           {{"--kv-port", "1"}, "--kv-port needs --kv-role"},
           {{role, "kv_consumer", "--kv-lease", "3"}, "needs --kv-role kv_producer or kv_both"},
           {{role, "kv_producer", "--kv-wire-type", "r4"}, "needs --kv-role kv_consumer"},
           {{role, "kv_producer", "--kv-admit", "full"}, "needs --kv-role kv_consumer or kv_both"},
           {{config, "[]"}, "not a JSON object"},
           {{config, "{}"}, "kv_role is missing"},
           {{config, R"({"kv_role":7})"}, "kv_role is 7, allowed is a string"},
           {{config, R"({"kv_rank":0})"}, "there is no key 'kv_rank', there are kv_connector"},
           {{config, R"({"kv_connector":"LMCacheConnectorV1"})"}, "allowed is \"NixlConnector\""},
           {{config, R"({"kv_role":"kv_both","kv_port":1.5})"}, "kv_port is 1.5"},
           {{config, R"({"kv_role":"kv_both","kv_port":18446744073709551615})"}, "an integer"},
           {{config, R"({"kv_connector_extra_config":{"x":1}})"}, "there is kv_lease_duration"},
           {{config, R"({"kv_role":"kv_both"})", role, "kv_both"}, "allowed is one of the two"},
           {{config, R"({"kv_role":"kv_both","kv_port":1})", "--kv-port", "2"}, "one of the two"},
       }) {
    EXPECT_THAT(error_of(bad.arguments), HasSubstr(bad.says)) << bad.arguments[1];
  }
}

TEST(RoleFlags, TheSecretComesFromAFileOrTheEnvironment) {
  const std::vector<std::string> flags = {"--kv-role", "kv_both", "--kv-host", "192.0.2.1"};
  setenv("KAREZ_KV_SECRET", "0123456789 environment", 1);
  const auto from_environment = parse(flags);
  ASSERT_TRUE(from_environment) << from_environment.error().message();
  EXPECT_EQ(from_environment->peer_secret, "0123456789 environment");

  const std::string path = testing::TempDir() + "karez_role_flags_secret";
  std::ofstream(path) << "0123456789 of a file\r\n";
  std::vector<std::string> with_file = flags;
  with_file.insert(with_file.end(), {"--kv-peer-secret-file", path});
  const auto from_file = parse(with_file);
  ASSERT_TRUE(from_file) << from_file.error().message();
  EXPECT_EQ(from_file->peer_secret, "0123456789 of a file");
  std::ofstream(path, std::ios::trunc) << "\n";
  EXPECT_THAT(error_of(with_file), HasSubstr("is empty"));
  std::remove(path.c_str());
  EXPECT_THAT(error_of(with_file), HasSubstr("--kv-peer-secret-file"));
  unsetenv("KAREZ_KV_SECRET");
}

}  // namespace role_flags_test
}  // namespace karez
