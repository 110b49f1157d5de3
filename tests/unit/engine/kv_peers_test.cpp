// A prompt's KV from the store of a producer into that of a consumer, byte by byte.
#include "engine/kv_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "attention/archive_page.h"
#include "attention/block_store.h"
#include "engine/role_home.h"
#include "kv/residency.h"
#include "kv/tier/host_tier.h"
#include "remote/remote_tier.h"
#include "remote/wire_blocks.h"

namespace karez {
namespace kv_peers_test {

constexpr int kPromptTokens = 100;  // the last block is not full
constexpr int kVocabSize = 7;
constexpr std::int64_t kSlots = 400;

KVCacheSpec spec() {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 2;
  spec.head_dim = 32;
  spec.layer_windows = {0, 48};
  return spec;
}

PeerConfig config_of(std::string_view wire_type) {
  PeerConfig config;
  config.num_layers = static_cast<std::uint32_t>(spec().num_layers);
  config.num_kv_heads = static_cast<std::uint32_t>(spec().num_kv_heads);
  config.head_dim = static_cast<std::uint32_t>(spec().head_dim);
  config.block_tokens = kBlockSize;
  config.block_bytes = spec().slot_bytes();
  config.kv_type = to_string(spec().type);
  config.index_kind = "none";
  config.wire_type = wire_type;
  config.max_tokens = 1000;
  return config;
}

std::vector<TokenId> prompt() {
  std::vector<TokenId> tokens;
  for (int i = 0; i < kPromptTokens; ++i) {
    tokens.push_back(i * 3);
  }
  return tokens;
}

struct KvPeersTest : testing::Test {
  KvPeersTest() {
    const std::int64_t bytes = kSlots * static_cast<std::int64_t>(spec().slot_bytes());
    memory = ExportMemory::create(static_cast<std::size_t>(bytes)).value();
    HostTierOptions host{.block_bytes = spec().slot_bytes(), .num_workers = 0};
    auto tier = HostTier::create(host, ExportMemory::arena(memory)).value();
    const std::int64_t extent_bytes = tier->capacity().extent_bytes;
    producer_kv = KVCacheManager::create(spec(), bytes, std::move(tier)).value();
    KvExporterOptions exporter;
    exporter.config = config_of(kNativeWire);
    producer = std::make_unique<KvProducer>(
        *producer_kv, nullptr, memory, KvExporter::create(exporter, memory).value(),
        KvProducer::Options{"127.0.0.1", "this one", extent_bytes});
    consumer_kv = KVCacheManager::create(spec(), bytes).value();
    fill();
  }
  ~KvPeersTest() override {
    consumer.reset();
    producer.reset();
  }

  // A prompt that has been computed: other numbers in each row.
  void fill() {
    computed = producer_kv->open();
    ASSERT_TRUE(producer_kv->extend(computed, kPromptTokens));
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> rows(static_cast<std::size_t>(2 * kBlockSize * spec().head_dim));
    const auto stride = static_cast<std::size_t>(spec().head_dim);
    for_each_block(*producer_kv, computed, [&](int, int, std::size_t, std::byte* slot) {
      std::ranges::generate(rows, [&] { return normal(random); });
      store_in_block(spec().type, spec().head_dim, slot, 0, kBlockSize, {rows.data(), stride},
                     {rows.data() + kBlockSize * stride, stride});
    });
  }

  static void for_each_block(
      const KVCacheManager& kv, SequenceId sequence,
      const std::function<void(int layer, int head, std::size_t entry, std::byte* slot)>& visit) {
    for (int layer = 0; layer < spec().num_layers; ++layer) {
      const BlockTableView table = kv.table(sequence, kv.group_of_layer(layer));
      for (int head = 0; head < spec().num_kv_heads; ++head) {
        for (std::size_t i = 0; i < table.size(); ++i) {
          if (!table[i].is_none()) {
            visit(layer, head, i, kv.layer(layer).slot(head, table[i]));
          }
        }
      }
    }
  }

  void start_consumer(KvConsumer::Options options, std::string_view wire_type = kNativeWire) {
    PeerPoolOptions pool;
    pool.config = config_of(wire_type);
    consumer = std::make_unique<KvConsumer>(*consumer_kv, nullptr, PeerPool::create(pool).value(),
                                            nullptr, options);
  }
  // What it does not read before the first step stays with the producer.
  void start_sparse_consumer() {
    PeerPoolOptions pool;
    pool.config = config_of(kNativeWire);
    const std::shared_ptr<PeerPool> peer_pool = PeerPool::create(pool).value();
    HostTierOptions host{.block_bytes = spec().slot_bytes(), .capacity_bytes = 1 << 20};
    auto tier = std::make_unique<RemoteTier>(HostTier::create(host).value(), peer_pool);
    RemoteTier* remote = tier.get();
    const std::int64_t bytes = kSlots * static_cast<std::int64_t>(spec().slot_bytes());
    consumer_kv = KVCacheManager::create(spec(), bytes, std::move(tier)).value();
    const KvConsumer::Options sparse{.admit = KvAdmit::kSparse, .vocab_size = kVocabSize};
    consumer = std::make_unique<KvConsumer>(*consumer_kv, nullptr, peer_pool, remote, sparse);
  }
  void start(RequestId id) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt = prompt();
    request->kv_transfer = *transfer;
    request->kv_transfer->role = KvTransfer::Role::kConsume;
    consumer->start(request);
  }
  // Polls until the condition holds; false if it takes too long.
  bool poll_until(const std::function<bool()>& condition) {
    const auto end = Clock::steady().now() + std::chrono::seconds(20);
    while (!condition()) {
      if (Clock::steady().now() > end) {
        return false;
      }
      consumer->poll([this](const Request&, int) { return has_room; }, ready);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  KvConsumer::Ready admit(std::string_view wire_type) {
    start_consumer(kFull, wire_type);
    start(1);
    ready.clear();
    return poll_until([&] { return !ready.empty(); }) ? ready.front() : KvConsumer::Ready{};
  }
  void hold(std::span<const ListedBlock> working_set = {}) {
    const std::vector<float> logits(kVocabSize, 1.0F);
    transfer = producer->hold(computed, prompt(), logits, working_set).value();
  }
  // Until the producer has heard that nobody needs it.
  bool is_freed() {
    return poll_until([&] {
      producer->poll();
      return !producer->holds_any();
    });
  }

  static constexpr KvConsumer::Options kFull = {.admit = KvAdmit::kFull, .vocab_size = kVocabSize};
  bool has_room = true;
  std::vector<KvConsumer::Ready> ready;
  std::shared_ptr<ExportMemory> memory;
  std::unique_ptr<KVCacheManager> producer_kv;
  std::unique_ptr<KVCacheManager> consumer_kv;
  std::unique_ptr<KvProducer> producer;
  std::unique_ptr<KvConsumer> consumer;
  SequenceId computed;
  std::optional<KvTransfer> transfer;
};

TEST_F(KvPeersTest, AConsumerHasWhatTheWireTypeMakesOfEachBlock) {
  const std::int64_t home_before = producer_kv->residency()->stats().home_bytes_used;
  double native_bytes = 0;
  for (const std::string_view wire_type : {kNativeWire, kR4Wire}) {
    hold();
    const KvConsumer::Ready ready = admit(wire_type);
    ASSERT_FALSE(ready.error.has_value()) << ready.error->to_string();
    ASSERT_FALSE(ready.kv.is_none());
    EXPECT_EQ(ready.is_exact, wire_type == kNativeWire);
    EXPECT_EQ(consumer_kv->num_tokens(ready.kv), kPromptTokens);
    int compared = 0;
    std::vector<std::byte> page(ArchiveLayout::of(spec().head_dim).page_bytes);
    std::vector<std::byte> expected(spec().slot_bytes());
    for_each_block(
        *consumer_kv, ready.kv, [&](int layer, int head, std::size_t entry, std::byte* slot) {
          const BlockTableView table =
              producer_kv->table(computed, producer_kv->group_of_layer(layer));
          const std::byte* from = producer_kv->layer(layer).slot(head, table[entry]);
          std::copy_n(from, expected.size(), expected.begin());
          if (wire_type == kR4Wire) {
            archive_block(spec().type, spec().head_dim, from, page.data());
            restore_block(spec().type, spec().head_dim, page.data(), expected.data());
          }
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), slot))
              << wire_type << " layer " << layer << " head " << head << " block " << entry;
          ++compared;
        });
    EXPECT_EQ(compared, 2 * 7 + 2 * 4);  // 48 of 100 tokens in the layer with a window
    const auto bytes = static_cast<double>(consumer->stats().bytes_admitted);
    native_bytes = wire_type == kNativeWire ? bytes : native_bytes;
    EXPECT_LE(bytes, wire_type == kNativeWire ? bytes : 0.45 * native_bytes);
    consumer_kv->close(ready.kv);
    consumer->finished(1);
    EXPECT_TRUE(is_freed());
    EXPECT_EQ(consumer_kv->stats().slots_used, 0);
    consumer.reset();
  }
  producer_kv->close(computed);
  EXPECT_EQ(producer_kv->stats().slots_used, 0);
  EXPECT_EQ(producer_kv->residency()->stats().home_bytes_used, home_before);
  EXPECT_EQ(producer->stats().port.exports, 0);
}

// Of 100 tokens 64 stay with the producer: four blocks, of which the layer with a window has one.
TEST_F(KvPeersTest, TheWorkingSetComesBeforeItIsAskedFor) {
  start_sparse_consumer();
  hold(std::vector<ListedBlock>{{0, 1, 2}, {0, 0, 1}, {0, 0, 6}, {0, 1, 7}, {1, 0, 0}, {1, 1, 3}});
  start(1);
  ASSERT_TRUE(poll_until([&] { return !ready.empty(); }));
  ASSERT_FALSE(ready.front().error.has_value()) << ready.front().error->to_string();
  EXPECT_EQ(ready.front().logits, std::vector<float>(kVocabSize, 1.0F));
  EXPECT_EQ(ready.front().num_remote_tokens, 64);
  const Residency& residency = *consumer_kv->residency();
  ASSERT_TRUE(poll_until([&] {
    consumer_kv->residency()->advance();
    return residency.num_fetching_slots() == 0;
  }));
  std::vector<ListedBlock> here;
  for_each_block(
      *consumer_kv, ready.front().kv, [&](int layer, int head, std::size_t entry, std::byte*) {
        const BlockId block =
            consumer_kv->table(ready.front().kv, consumer_kv->group_of_layer(layer))[entry];
        if (entry < 4 && !consumer_kv->layer(layer).slots_of_head(head)[block.value].is_none()) {
          here.push_back({layer, head, static_cast<std::int32_t>(entry)});
        }
      });
  EXPECT_THAT(
      here, testing::ElementsAre(ListedBlock{0, 0, 1}, ListedBlock{0, 1, 2}, ListedBlock{1, 1, 3}));
  EXPECT_EQ(residency.stats().prefetch.of(LookaheadSource::kProbe).fetched, 3);
  const BlockTableView from = producer_kv->table(computed, producer_kv->group_of_layer(0));
  const BlockTableView to = consumer_kv->table(ready.front().kv, consumer_kv->group_of_layer(0));
  const std::byte* wanted = producer_kv->layer(0).slot(1, from[2]);
  EXPECT_TRUE(
      std::equal(wanted, wanted + spec().slot_bytes(), consumer_kv->layer(0).slot(1, to[2])));
  consumer_kv->close(ready.front().kv);
  producer_kv->close(computed);
}

TEST_F(KvPeersTest, AProducerWithoutRoomIsNotAFaultOfTheRequest) {
  const std::vector<float> logits(kVocabSize, 1.0F);
  auto held = producer->hold(computed, prompt(), logits);
  for (int i = 0; i < kSlots && held; ++i) {
    producer_kv->close(computed);
    fill();  // what is held already takes no more room
    held = producer->hold(computed, prompt(), logits);
  }
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(held.error().message(), testing::HasSubstr("--kv-host-bytes"));
}

TEST(RoleHome, ModelAndKvTypeAreToldApart) {
  RoleHomeOptions options{.role = {.role = KvRole::kConsumer}, .context_tokens = 1000};
  KVCacheSpec other = spec();
  other.type = KvType::kQ8_0;
  const auto here = make_role_home(spec(), options).value();
  EXPECT_EQ(find_mismatch(here.config, make_role_home(other, options)->config)->message(),
            "peers do not fit: kv_type is bf16 here and q8_0 there");
  options.model_digest[0] = std::byte{1};
  EXPECT_THAT(find_mismatch(here.config, make_role_home(spec(), options)->config)->message(),
              testing::HasSubstr("model_digest is 00"));
}

TEST_F(KvPeersTest, AByteThatHasChangedAtTheProducerIsSeenWhateverTheWireType) {
  for (const std::string_view wire_type : {kNativeWire, kR4Wire}) {
    hold();
    memory->bytes()[3000] ^= std::byte{2};
    const KvConsumer::Ready ready = admit(wire_type);
    memory->bytes()[3000] ^= std::byte{2};
    ASSERT_TRUE(ready.error.has_value()) << wire_type;
    EXPECT_EQ(ready.error->code(), StatusCode::kUnavailable);
    EXPECT_THAT(ready.error->message(), testing::HasSubstr("could not be read"));
    EXPECT_TRUE(ready.kv.is_none());
    EXPECT_TRUE(is_freed());
    EXPECT_EQ(consumer_kv->stats().slots_used, 0);
    consumer.reset();
  }
  producer_kv->close(computed);
}

// Each lease is taken at once, so that the producer keeps what it has.
TEST_F(KvPeersTest, ManifestsOfThoseThatWaitKeepToTheirBudget) {
  constexpr int kNumRequests = 6;
  std::size_t one = 0;
  for (const std::size_t num_at_a_time : {0U, 1U, 2U}) {
    KvConsumer::Options options = kFull;
    // Less than one: it comes all the same, alone.
    options.max_manifest_bytes = num_at_a_time == 0 ? 1 : num_at_a_time * one;
    start_consumer(options);
    has_room = false;
    ready.clear();
    for (int i = 0; i < kNumRequests; ++i) {
      hold();
      start(static_cast<RequestId>(i + 1));
    }
    const int num_here = std::max(static_cast<int>(num_at_a_time), 1);
    ASSERT_TRUE(poll_until([&] {
      return consumer->stats().pool.leases == kNumRequests &&
             consumer->stats().pool.fetches == kNumRequests - num_here;
    }));
    one = num_at_a_time == 0 ? consumer->manifest_bytes() : one;
    EXPECT_EQ(one, kPromptTokens * sizeof(TokenId) + 2 * 2 * 7 * sizeof(RemoteBlock) +
                       kVocabSize * sizeof(float));
    has_room = true;
    while (ready.size() < kNumRequests) {
      const std::size_t before = ready.size();
      EXPECT_LE(consumer->manifest_bytes(), static_cast<std::size_t>(num_here) * one);
      ASSERT_TRUE(poll_until([&] {
        EXPECT_LE(consumer->manifest_bytes(), static_cast<std::size_t>(num_here) * one);
        return ready.size() > before;
      }));
    }
    for (int i = 0; i < kNumRequests; ++i) {
      const KvConsumer::Ready& done = ready[static_cast<std::size_t>(i)];
      EXPECT_FALSE(done.error.has_value()) << done.error->to_string();
      EXPECT_EQ(done.request, static_cast<RequestId>(i + 1));
      consumer_kv->close(done.kv);
    }
    EXPECT_TRUE(is_freed());
    consumer.reset();
  }
  producer_kv->close(computed);
}

TEST_F(KvPeersTest, APromptThatIsLargerThanTheFastTierFailsWhileOthersRun) {
  consumer_kv =
      KVCacheManager::create(spec(), 20 * static_cast<std::int64_t>(spec().slot_bytes())).value();
  const SequenceId other = consumer_kv->open();
  ASSERT_TRUE(consumer_kv->extend(other, 10));
  hold();
  const KvConsumer::Ready done = admit(kNativeWire);
  ASSERT_TRUE(done.error.has_value());
  EXPECT_EQ(done.error->code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(done.error->message(),
            "the KV of the prompt takes 28 blocks of the fast tier, which has 20; it can be "
            "admitted with --kv-admit sparse, or computed here");
  EXPECT_TRUE(is_freed());
  consumer_kv->close(other);
  producer_kv->close(computed);
}

TEST_F(KvPeersTest, SlotsAreHeldFromTheFirstReadUntilItIsReady) {
  start_consumer(kFull);
  has_room = false;
  hold();
  start(1);
  ASSERT_TRUE(poll_until([&] { return consumer->stats().pool.leases == 1; }));
  EXPECT_EQ(consumer->slots_held(), 0);
  has_room = true;
  ASSERT_TRUE(poll_until([&] { return consumer->slots_held() > 0; }));
  EXPECT_TRUE(ready.empty());
  EXPECT_EQ(consumer->slots_held(), 28) << "seven blocks of two layers and two heads";
  ASSERT_TRUE(poll_until([&] { return !ready.empty(); }));
  EXPECT_EQ(consumer->slots_held(), 0);
  consumer_kv->close(ready.front().kv);
  producer_kv->close(computed);
}

TEST_F(KvPeersTest, AClientThatLeavesIsNoFailure) {
  for (const bool has_lease : {false, true}) {
    start_consumer(kFull);
    has_room = false;
    hold();
    start(1);
    ASSERT_TRUE(poll_until([&] { return !has_lease || consumer->stats().pool.leases == 1; }));
    consumer->finished(1);
    EXPECT_TRUE(poll_until([&] { return !consumer->has_arrivals(); }));
    EXPECT_TRUE(ready.empty());
    EXPECT_EQ(consumer->stats().failed, 0);
    EXPECT_EQ(consumer->stats().admitted, 0);
    consumer.reset();
  }
  producer_kv->close(computed);
}

}  // namespace kv_peers_test
}  // namespace karez
