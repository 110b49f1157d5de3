// The map of a sequence whose aged windows are compressed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include "engine/engine.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace engine_compress_map_test {

constexpr int kVocabSize = 40;
constexpr std::int64_t kSlots = 3000;

TEST(EngineCompressMap, TheMapOfACompressedSequenceHasAllItsCells) {
  EngineOptions options;
  options.context_tokens = 2000;
  options.compress = true;
  options.compression.window_tokens = 64;
  options.compression.recent_tokens = 32;
  options.compression.score = CompressScore::kRandom;
  options.compression.archive = CompressArchive::kOff;
  // One layer with a window among layers without: two groups of blocks.
  const KVCacheSpec spec = PagedFakeRunner::kv_spec({0, 40, 0, 0});
  auto kv =
      KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * kSlots).value();
  Request request;
  for (int i = 0; i < 20; ++i) {
    request.prompt.push_back((3 + i * 7) % kVocabSize);
  }
  request.max_tokens = 900;
  request.ignore_eos = true;

  Engine* running = nullptr;
  std::shared_ptr<const KvMap> map;  // the first one of so many tokens
  std::promise<void> finished;
  auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
  // Asked for in each step: that of the step before comes, so none is missed on a slow machine.
  runner->before_forward = [&](int) {
    auto latest = running->kv_map();
    if (map == nullptr && latest != nullptr && latest->num_tokens >= 300) {
      map = std::move(latest);
    }
    return true;
  };
  const FakeVocabulary vocabulary(kVocabSize);
  const std::unique_ptr<Engine> engine =
      Engine::create(options, std::move(runner), std::move(kv), vocabulary).value();
  running = engine.get();
  const auto id = engine->submit(std::move(request), [&](const GenerationEvent& event) {
    if (event.finished) {
      finished.set_value();
    }
  });
  ASSERT_TRUE(id.has_value());
  finished.get_future().wait();

  ASSERT_NE(map, nullptr);
  ASSERT_EQ(map->cells.size(), static_cast<std::size_t>(map->num_layers * map->num_blocks));
  const auto in_layer = [&](int layer, std::uint8_t cell) {
    const auto begin = map->cells.begin() + std::ptrdiff_t{layer} * map->num_blocks;
    return std::count(begin, begin + map->num_blocks, cell);
  };
  EXPECT_GT(in_layer(0, KvMap::kNowhere), 2);
  EXPECT_EQ(in_layer(0, KvMap::kNowhere), in_layer(3, KvMap::kNowhere));
  EXPECT_GT(in_layer(1, KvMap::kNowhere), 10);
}

}  // namespace engine_compress_map_test
}  // namespace karez::test
