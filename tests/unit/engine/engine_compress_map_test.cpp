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

struct Maps {
  std::shared_ptr<const KvMap> before;  // the first one
  std::shared_ptr<const KvMap> after;   // the first one of 300 tokens
};

// Of an answer whose windows are positions 32 to 96, 96 to 160, ..., each compressed when 32 tokens
// lie behind it.
Maps maps_of(CompressArchive archive) {
  EngineOptions options;
  options.context_tokens = 2000;
  options.compress = true;
  options.compression.window_tokens = 64;
  options.compression.recent_tokens = 32;
  options.compression.score = CompressScore::kRandom;
  options.compression.archive = archive;
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
  Maps maps;
  std::promise<void> finished;
  auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
  // Asked for in each step: that of the step before comes, so none is missed on a slow machine.
  runner->before_forward = [&](int) {
    auto latest = running->kv_map();
    if (maps.before == nullptr) {
      maps.before = latest;
    }
    if (maps.after == nullptr && latest != nullptr && latest->num_tokens >= 300) {
      maps.after = std::move(latest);
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
  EXPECT_TRUE(id.has_value());
  finished.get_future().wait();
  return maps;
}

std::ptrdiff_t in_layer(const KvMap& map, int layer, std::uint8_t cell) {
  const auto begin = map.cells.begin() + std::ptrdiff_t{layer} * map.num_blocks;
  return std::count(begin, begin + map.num_blocks, cell);
}

TEST(EngineCompressMap, TheMapOfACompressedSequenceHasAllItsCells) {
  const std::shared_ptr<const KvMap> map = maps_of(CompressArchive::kOff).after;
  ASSERT_NE(map, nullptr);
  ASSERT_EQ(map->cells.size(), static_cast<std::size_t>(map->num_layers * map->num_blocks));
  EXPECT_GT(in_layer(*map, 0, KvMap::kNowhere), 2);
  EXPECT_EQ(in_layer(*map, 0, KvMap::kNowhere), in_layer(*map, 3, KvMap::kNowhere));
  EXPECT_GT(in_layer(*map, 1, KvMap::kNowhere), 10);
}

TEST(EngineCompressMap, TheMapSaysWhatItsWindowsWereAndAre) {
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    SCOPED_TRACE(to_string(archive));
    const Maps maps = maps_of(archive);
    ASSERT_NE(maps.before, nullptr);
    EXPECT_EQ(maps.before->compressed.num_before, 0);
    ASSERT_NE(maps.after, nullptr);
    // Three windows of four blocks: of each two are kept, and two archived pages share a block.
    ASSERT_LE(maps.after->num_tokens, 320);
    const KVCacheManager::CompressedPart& part = maps.after->compressed;
    const bool has_archive = archive == CompressArchive::kR4;
    EXPECT_EQ(part.first_entry, 2);
    EXPECT_EQ(part.num_before, 12);
    EXPECT_EQ(part.num_kept, 6);
    EXPECT_EQ(part.num_archived_pages, has_archive ? 6 : 0);
    EXPECT_EQ(part.num_archived_blocks, has_archive ? 3 : 0);
    EXPECT_EQ(in_layer(*maps.after, 0, KvMap::kNowhere),
              part.num_before - part.num_kept - part.num_archived_pages);
  }
}

}  // namespace engine_compress_map_test
}  // namespace karez::test
