#include "support/attention_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "attention/archive_page.h"
#include "base/check.h"

namespace karez::test {
namespace {

std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

KVCacheSpec make_spec(const HarnessOptions& options) {
  KVCacheSpec spec;
  spec.num_layers = static_cast<int>(options.layer_windows.size());
  spec.num_kv_heads = options.num_kv_heads;
  spec.head_dim = options.head_dim;
  spec.type = options.type;
  spec.layer_windows = options.layer_windows;
  return spec;
}

float scale_of(const HarnessOptions& options) {
  return options.scale > 0.0F ? options.scale
                              : 1.0F / std::sqrt(static_cast<float>(options.head_dim));
}

}  // namespace

void run_on_threads(int num_threads, const std::function<void(int)>& body) {
  std::vector<std::thread> workers;
  for (int i = 1; i < num_threads; ++i) {
    workers.emplace_back(body, i);
  }
  body(0);
  for (std::thread& worker : workers) {
    worker.join();
  }
}

AttentionHarness::AttentionHarness(const HarnessOptions& options) : options_(options) {
  const KVCacheSpec spec = make_spec(options);
  const std::int64_t blocks = options.max_tokens / kBlockSize + 64;
  const std::int64_t cap =
      blocks * spec.num_layers * spec.num_kv_heads * static_cast<std::int64_t>(spec.slot_bytes());
  auto kv = KVCacheManager::create(spec, cap);
  KAREZ_CHECK(kv.has_value(), kv ? "" : kv.error().to_string());
  kv_ = std::move(*kv);
  AttentionOptions attention;
  attention.num_heads = options.num_heads;
  attention.scale = scale_of(options);
  attention.logit_softcap = options.softcap;
  attention.max_threads = options.max_threads;
  attention.cpu_level = options.cpu_level;
  attention.sparse = options.sparse;
  auto created = PagedAttention::create(spec, attention);
  KAREZ_CHECK(created.has_value(), created ? "" : created.error().to_string());
  attention_ = std::move(*created);
  attention_->set_selection_listener(&listener_);
  if (options.sparse.is_on()) {
    auto index =
        KeyIndex::create(spec, options.sparse.block_index, block_id_ranges(*kv_), {},
                         options.sparse.two_level_blocks,
                         options.has_pages ? pages_per_block(spec.type, spec.head_dim) : 0);
    KAREZ_CHECK(index.has_value(), index ? "" : index.error().to_string());
    index_.emplace(std::move(*index));
  }
  scatter_slots();
}

// Leaves the free slots in an order that no sequence would fill them in.
void AttentionHarness::scatter_slots() {
  std::vector<SequenceId> fillers;
  while (true) {
    const SequenceId filler = kv_->open();
    fillers.push_back(filler);
    if (!kv_->extend(filler, kBlockSize)) {
      break;
    }
  }
  std::shuffle(fillers.begin(), fillers.end(), std::mt19937(7));
  for (const SequenceId filler : fillers) {
    kv_->close(filler);
  }
}

void AttentionHarness::Listener::on_selected(int layer, std::span<SelectedBlocks> selected) {
  ++calls;
  if (before) {
    before(layer, selected);
  }
  for (const SelectedBlocks& row : selected) {
    selections[{layer, row.sequence, row.position, row.kv_head}] = {row.blocks.begin(),
                                                                    row.blocks.end()};
  }
}

// A shared block that is about to be written is copied; so must be its index.
void AttentionHarness::extend(SequenceId sequence, int num_rows) {
  const int num_groups = static_cast<int>(kv_->layer_groups().size());
  std::vector<BlockId> last;
  const int num_tokens = kv_->num_tokens(sequence);
  for (int group = 0; group < num_groups && num_tokens > 0; ++group) {
    last.push_back(kv_->table(sequence, group).back());
  }
  KAREZ_CHECK(kv_->extend(sequence, num_rows), "the harness' cap is too small");
  for (std::size_t group = 0; group < last.size() && index_; ++group) {
    const BlockId now = kv_->table(
        sequence, static_cast<int>(group))[static_cast<std::size_t>((num_tokens - 1) / kBlockSize)];
    if (now != last[group] && !now.is_none() && !last[group].is_none()) {
      index_->copy_block(last[group], now);
    }
  }
}

SequenceId AttentionHarness::open(std::uint32_t content, int position_shift) {
  const SequenceId id = kv_->open();
  contents_[id] = {};
  contents_[id].numbers = content;
  contents_[id].shift = position_shift;
  return id;
}

SequenceId AttentionHarness::fork(SequenceId parent, int num_tokens) {
  const auto id = kv_->fork(parent, num_tokens);
  KAREZ_CHECK(id.has_value(), "the harness forked out of the window");
  contents_[*id] = contents_.at(parent);
  return *id;
}

void AttentionHarness::close(SequenceId sequence) {
  kv_->close(sequence);
  contents_.erase(sequence);
}

float AttentionHarness::number(Kind kind, std::uint32_t content, int position, int head,
                               int i) const {
  if (content == kInfiniteContent && kind != Kind::kQuery) {
    return INFINITY;
  }
  std::uint32_t h = mix(static_cast<std::uint32_t>(kind) + 4 * content + 0x9e3779b9U);
  h = mix(h ^ static_cast<std::uint32_t>(position));
  h = mix(h ^ static_cast<std::uint32_t>(head * 1024 + i));
  const float unit = static_cast<float>(h >> 8) / 8388608.0F - 1.0F;
  switch (kind) {
    case Kind::kQuery:
      return unit * options_.query_range;
    case Kind::kKey:
      return unit * options_.key_range;
    case Kind::kValue:
      break;
  }
  return unit;
}

std::vector<float> AttentionHarness::row(Kind kind, std::uint32_t content, int position) const {
  const int heads = kind == Kind::kQuery ? options_.num_heads : options_.num_kv_heads;
  std::vector<float> out;
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < options_.head_dim; ++i) {
      out.push_back(number(kind, content, position, head, i));
    }
  }
  return out;
}

std::vector<float> AttentionHarness::step(const std::vector<RowRange>& ranges, int num_threads,
                                          bool attend) {
  const int num_groups = static_cast<int>(kv_->layer_groups().size());
  std::vector<SequenceRows> sequences;
  std::vector<float> queries;
  std::vector<float> keys;
  std::vector<float> values;
  int num_rows = 0;
  for (const RowRange& range : ranges) {
    SequenceRows rows;
    rows.first_position = kv_->num_tokens(range.sequence);
    rows.num_rows = range.num_rows;
    rows.first_row = num_rows;
    num_rows += range.num_rows;
    rows.first_sparse_position = range.first_sparse_position;
    rows.num_hint_rows = range.num_hint_rows;
    rows.queries = range.queries;
    rows.num_gone = contents_.at(range.sequence).num_gone();
    extend(range.sequence, range.num_rows);
    for (int r = 0; r < range.num_rows; ++r) {
      const int position = rows.first_position + r;
      const Content& content = contents_.at(range.sequence);
      const auto append = [&](std::vector<float>& to, Kind kind) {
        const std::vector<float> numbers = row(kind, content.numbers, position + content.shift);
        to.insert(to.end(), numbers.begin(), numbers.end());
      };
      append(queries, Kind::kQuery);
      append(keys, Kind::kKey);
      append(values, Kind::kValue);
    }
    sequences.push_back(rows);
  }
  std::vector<std::vector<BlockId>> packed_tables(ranges.size());
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    const Content& content = contents_.at(ranges[s].sequence);
    for (int group = 0; group < num_groups; ++group) {
      const BlockTableView whole = kv_->table(ranges[s].sequence, group);
      sequences[s].tables.push_back(whole);
      if (kv_->layer_groups()[static_cast<std::size_t>(group)].window == 0 &&
          content.compressed_end > 0) {
        packed_tables[s] = content.blocks;
        sequences[s].archived = {static_cast<int>(content.blocks.size()), content.num_blocks(),
                                 content.pages};
        packed_tables[s].insert(packed_tables[s].end(), content.page_blocks.begin(),
                                content.page_blocks.end());
        packed_tables[s].insert(packed_tables[s].end(),
                                whole.begin() + content.compressed_end / kBlockSize, whole.end());
        sequences[s].tables.back() = packed_tables[s];
      }
    }
  }
  const auto head_dim = static_cast<std::size_t>(options_.head_dim);
  const std::size_t query_floats = static_cast<std::size_t>(options_.num_heads) * head_dim;
  const std::size_t kv_floats = static_cast<std::size_t>(options_.num_kv_heads) * head_dim;
  const std::size_t layer_floats = static_cast<std::size_t>(num_rows) * query_floats;
  std::vector<float> out(options_.layer_windows.size() * layer_floats, NAN);
  listener_.selections.clear();
  listener_.calls = 0;
  attention_->plan(sequences);
  for (std::size_t i = 0; i < options_.layer_windows.size(); ++i) {
    const int layer = static_cast<int>(i);
    const KVLayerView view = kv_->layer(layer);
    const KeyIndexView index = index_ ? index_->view(layer) : KeyIndexView();
    run_on_threads(num_threads, [&](int thread) {
      attention_->store(layer, view, index, {keys.data(), kv_floats}, {values.data(), kv_floats},
                        thread, num_threads);
    });
    if (attend) {
      if (index_) {
        run_on_threads(num_threads, [&](int thread) {
          attention_->select(layer, index, {queries.data(), query_floats}, thread, num_threads);
        });
      }
      run_on_threads(num_threads, [&](int thread) {
        attention_->attend(layer, view, {queries.data(), query_floats},
                           out.data() + i * layer_floats, thread, num_threads);
      });
    }
  }
  return out;
}

std::vector<float> AttentionHarness::run(const std::vector<RowRange>& ranges, int num_threads) {
  return step(ranges, num_threads, true);
}

void AttentionHarness::fill(SequenceId sequence, int num_tokens) {
  if (num_tokens > 0) {
    step({{sequence, num_tokens}}, 1, false);
  }
}

int AttentionHarness::windowless_group() const {
  const auto& groups = kv_->layer_groups();
  const auto found = std::ranges::find(groups, 0, &LayerGroup::window);
  KAREZ_CHECK(found != groups.end(), "a layer without a window");
  return static_cast<int>(found - groups.begin());
}

AttentionHarness::Pairs AttentionHarness::pairs_of(const Content& content, int kv_head,
                                                   std::span<const int> positions) const {
  Pairs out;
  for (const int position : positions) {
    for (int i = 0; i < options_.head_dim; ++i) {
      const int at = position + content.shift;
      out.keys.push_back(number(Kind::kKey, content.numbers, at, kv_head, i));
      out.values.push_back(number(Kind::kValue, content.numbers, at, kv_head, i));
    }
  }
  return out;
}

AttentionHarness::Pairs AttentionHarness::coded(const Pairs& pairs) const {
  const auto dim = static_cast<std::size_t>(options_.head_dim);
  std::vector<std::byte> page(ArchiveLayout::of(options_.head_dim).page_bytes);
  Pairs out = pairs;
  for (std::size_t at = 0; at < pairs.keys.size(); at += std::size_t{kBlockSize} * dim) {
    write_archive_page(options_.head_dim, page.data(), {&pairs.keys[at], dim},
                       {&pairs.values[at], dim});
    decode_archive_page(options_.head_dim, page.data(), &out.keys[at], &out.values[at]);
  }
  return out;
}

void AttentionHarness::write_block(const Pairs& pairs, std::size_t first, int layer, int kv_head,
                                   BlockId block) {
  const auto dim = static_cast<std::size_t>(options_.head_dim);
  std::byte* slot = kv_->layer(layer).slot(kv_head, block);
  store_in_block(options_.type, options_.head_dim, slot, 0, kBlockSize,
                 {&pairs.keys[first * dim], dim}, {&pairs.values[first * dim], dim});
  if (index_) {
    index_stored_block(index_->view(layer), kv_head, block, options_.head_dim, options_.type, slot);
  }
}

bool AttentionHarness::index_follows_from_slots(SequenceId sequence) {
  const std::size_t record_bytes = key_index_block_bytes(index_->kind(), options_.head_dim);
  bool follows = true;
  for (int layer = 0; layer < kv_->spec().num_layers; ++layer) {
    const KeyIndexView view = index_->view(layer);
    if (view.is_none()) {
      continue;
    }
    const BlockTableView table = kv_->table(sequence, kv_->group_of_layer(layer));
    const int num_complete = kv_->num_tokens(sequence) / kBlockSize;
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      for (const BlockId block : table.first(static_cast<std::size_t>(num_complete))) {
        const std::byte* record = view.record(head, block);
        const std::vector<std::byte> before(record, record + record_bytes);
        index_stored_block(view, head, block, options_.head_dim, options_.type,
                           kv_->layer(layer).slot(head, block));
        follows = follows && std::equal(before.begin(), before.end(), record);
      }
    }
  }
  return follows;
}

void AttentionHarness::archive(Content& content, std::span<const int> layers,
                               const KeptPairs& archived) {
  const auto dim = static_cast<std::size_t>(options_.head_dim);
  const int in_block = pages_per_block(options_.type, options_.head_dim);
  const auto num_pages = static_cast<int>(archived(layers.front(), 0).size()) / kBlockSize;
  const SequenceId owner = kv_->open();
  KAREZ_CHECK(kv_->extend(owner, (num_pages + in_block - 1) / in_block * kBlockSize),
              "the harness' cap is too small");
  const BlockTableView blocks = kv_->table(owner, windowless_group());
  for (int page = 0; page < num_pages; ++page) {
    content.page_blocks.push_back(blocks[static_cast<std::size_t>(page / in_block)]);
    content.pages.push_back(static_cast<std::uint8_t>(page % in_block));
  }
  for (const int layer : layers) {
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      const std::vector<int> positions = archived(layer, head);
      KAREZ_CHECK(static_cast<int>(positions.size()) == num_pages * kBlockSize, "equally many");
      std::vector<int>& all = content.page_positions[{layer, head}];
      all.insert(all.end(), positions.begin(), positions.end());
      const Pairs pairs = pairs_of(content, head, positions);
      for (int page = 0; page < num_pages; ++page) {
        const BlockId block = blocks[static_cast<std::size_t>(page / in_block)];
        std::byte* at = kv_->layer(layer).slot(head, block) +
                        archive_page_offset(options_.head_dim, page % in_block);
        const std::size_t first = static_cast<std::size_t>(page * kBlockSize) * dim;
        write_archive_page(options_.head_dim, at, {&pairs.keys[first], dim},
                           {&pairs.values[first], dim});
        if (index_) {
          index_archive_page(index_->view(layer), head, block, page % in_block, options_.head_dim,
                             at);
        }
      }
    }
  }
}

void AttentionHarness::compress(SequenceId sequence, int begin, int end, const KeptPairs& kept,
                                const KeptPairs& archived) {
  const int group = windowless_group();
  Content& content = contents_.at(sequence);
  const BlockTableView old = kv_->table(sequence, group);
  const auto old_blocks = old.subspan(static_cast<std::size_t>(begin / kBlockSize),
                                      static_cast<std::size_t>((end - begin) / kBlockSize));
  std::vector<BlockId> replaced(old_blocks.begin(), old_blocks.end());
  for (const auto& [other, unused] : contents_) {
    if (other != sequence) {
      std::erase_if(replaced, [table = kv_->table(other, group)](BlockId block) {
        return std::ranges::find(table, block) != table.end();
      });
    }
  }
  if (content.blocks.empty()) {
    content.blocks.assign(old.begin(), old.begin() + begin / kBlockSize);
  } else {
    KAREZ_CHECK(begin == content.compressed_end, "windows follow each other");
  }
  const std::size_t first_place = content.blocks.size() * std::size_t{kBlockSize};
  const std::vector<int> layers = kv_->layer_groups()[static_cast<std::size_t>(group)].layers;
  const std::size_t num_kept = kept(layers.front(), 0).size();
  // Its own sequence has the new blocks; it stays open.
  const SequenceId owner = kv_->open();
  KAREZ_CHECK(kv_->extend(owner, static_cast<int>(num_kept)), "the harness' cap is too small");
  const BlockTableView packed = kv_->table(owner, group);
  Content infinite;
  infinite.numbers = kInfiniteContent;
  const Pairs infinities = pairs_of(infinite, 0, std::vector<int>(std::size_t{kBlockSize}, 0));
  for (const int layer : layers) {
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      const std::vector<int> positions = kept(layer, head);
      KAREZ_CHECK(positions.size() == num_kept && num_kept % kBlockSize == 0, "equally many");
      std::vector<int>& places = content.positions[{layer, head}];
      for (auto p = static_cast<int>(places.size()); p < static_cast<int>(first_place); ++p) {
        places.push_back(p);
      }
      places.insert(places.end(), positions.begin(), positions.end());
      const Pairs pairs = pairs_of(content, head, positions);
      for (std::size_t b = 0; b < packed.size(); ++b) {
        write_block(pairs, b * std::size_t{kBlockSize}, layer, head, packed[b]);
      }
      for (const BlockId block : replaced) {
        write_block(infinities, 0, layer, head, block);
      }
    }
  }
  content.blocks.insert(content.blocks.end(), packed.begin(), packed.end());
  if (archived) {
    archive(content, layers, archived);
  }
  content.compressed_end = end;
}

void AttentionHarness::overwrite(SequenceId sequence, int first_place, const KeptPairs& kept,
                                 bool coded_pairs) {
  const int group = windowless_group();
  const Content& content = contents_.at(sequence);
  const BlockTableView table = kv_->table(sequence, group);
  for (const int layer : kv_->layer_groups()[static_cast<std::size_t>(group)].layers) {
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      std::vector<int> positions = kept(layer, head);
      for (int& position : positions) {
        position -= content.shift;
      }
      Pairs pairs = pairs_of(content, head, positions);
      if (coded_pairs) {
        pairs = coded(pairs);
      }
      for (std::size_t b = 0; b < positions.size() / std::size_t{kBlockSize}; ++b) {
        write_block(pairs, b * std::size_t{kBlockSize}, layer, head,
                    table[static_cast<std::size_t>(first_place / kBlockSize) + b]);
      }
    }
  }
}

ReferenceTokens AttentionHarness::packed_tokens(const Content& content, int layer,
                                                const ReferenceTokens& tokens,
                                                int num_places) const {
  const auto dim = static_cast<std::size_t>(options_.head_dim);
  const auto heads = static_cast<std::size_t>(options_.num_kv_heads);
  ReferenceTokens out;
  out.keys.resize(static_cast<std::size_t>(num_places) * heads * dim);
  out.values.resize(out.keys.size());
  for (std::size_t head = 0; head < heads; ++head) {
    const std::pair<int, int> at{layer, static_cast<int>(head)};
    const std::vector<int>& kept = content.positions.at(at);
    const auto pages = content.page_positions.find(at);
    const Pairs archived = pages == content.page_positions.end()
                               ? Pairs{}
                               : coded(pairs_of(content, static_cast<int>(head), pages->second));
    for (std::size_t place = 0; place < static_cast<std::size_t>(num_places); ++place) {
      const std::size_t to = (place * heads + head) * dim;
      const std::size_t page_pair = place - kept.size();
      if (place >= kept.size() && page_pair < archived.keys.size() / dim) {
        std::copy_n(&archived.keys[page_pair * dim], dim, &out.keys[to]);
        std::copy_n(&archived.values[page_pair * dim], dim, &out.values[to]);
        continue;
      }
      const std::size_t position = place < kept.size()
                                       ? static_cast<std::size_t>(kept[place])
                                       : place + static_cast<std::size_t>(content.num_gone());
      const std::size_t from = (position * heads + head) * dim;
      std::copy_n(&tokens.keys[from], dim, &out.keys[to]);
      std::copy_n(&tokens.values[from], dim, &out.values[to]);
    }
  }
  return out;
}

const ReferenceTokens& AttentionHarness::reference_tokens(const Content& content, int num_tokens) {
  ReferenceTokens& tokens = references_[{content.numbers, content.shift}];
  const std::size_t row_floats =
      static_cast<std::size_t>(options_.num_kv_heads) * static_cast<std::size_t>(options_.head_dim);
  const auto append = [&](std::vector<float>& to, Kind kind) {
    for (int p = static_cast<int>(to.size() / row_floats); p < num_tokens; ++p) {
      std::vector<float> numbers = row(kind, content.numbers, p + content.shift);
      for (std::size_t at = 0; at < numbers.size();
           at += static_cast<std::size_t>(options_.head_dim)) {
        const std::span<float> head(&numbers[at], static_cast<std::size_t>(options_.head_dim));
        if (options_.type == KvType::kBf16) {
          std::transform(head.begin(), head.end(), head.begin(), through_bf16);
        } else if (options_.type == KvType::kQ8_0) {
          std::ranges::copy(through_q8_0(head), head.begin());
        }
      }
      to.insert(to.end(), numbers.begin(), numbers.end());
    }
  };
  append(tokens.keys, Kind::kKey);
  append(tokens.values, Kind::kValue);
  return tokens;
}

std::vector<float> AttentionHarness::expected(const std::vector<RowRange>& ranges) {
  ReferenceShape shape;
  shape.num_heads = options_.num_heads;
  shape.num_kv_heads = options_.num_kv_heads;
  shape.head_dim = options_.head_dim;
  shape.scale = static_cast<double>(scale_of(options_));
  shape.softcap = static_cast<double>(options_.softcap);
  std::vector<float> out;
  for (std::size_t layer = 0; layer < options_.layer_windows.size(); ++layer) {
    shape.window = options_.layer_windows[layer];
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      const RowRange& range = ranges[r];
      const Content& content = contents_.at(range.sequence);
      const int end = kv_->num_tokens(range.sequence);
      const bool is_packed = shape.window == 0 && content.compressed_end > 0;
      const int num_gone = is_packed ? content.num_gone() : 0;
      ReferenceTokens tokens = reference_tokens(content, end);
      if (is_packed) {
        tokens = packed_tokens(content, static_cast<int>(layer), tokens, end - num_gone);
      }
      for (int position = end - range.num_rows; position < end; ++position) {
        std::vector<float> query = row(Kind::kQuery, content.numbers, position + content.shift);
        if (options_.type != KvType::kF32) {
          std::transform(query.begin(), query.end(), query.begin(), through_bf16);
        }
        std::vector<std::span<const std::int32_t>> blocks;
        for (int head = 0; head < options_.num_kv_heads; ++head) {
          const auto selected = listener_.selections.find(
              {static_cast<int>(layer), static_cast<int>(r), position, head});
          if (selected != listener_.selections.end()) {
            blocks.emplace_back(selected->second);
          }
        }
        const std::vector<float> result =
            reference_attention(shape, tokens, query, position - num_gone, blocks);
        out.insert(out.end(), result.begin(), result.end());
      }
    }
  }
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  KAREZ_CHECK(a.size() == b.size(), "only equal shapes can be compared");
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(difference)) {
      return difference;
    }
    largest = std::max(largest, difference);
  }
  return largest;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace karez::test
