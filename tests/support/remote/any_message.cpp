#include "support/remote/any_message.h"

#include <algorithm>

#include "attention/archive_page.h"
#include "base/check.h"
#include "kv/block_layout.h"
#include "kv/tier/home_space.h"
#include "remote/wire_blocks.h"
#include "remote/wire_messages.h"
#include "support/remote/direct_link.h"

namespace karez::test {

namespace {

KvExport export_of(const DirectLink& link) {
  KvExport made;
  made.epoch = 1;
  made.tokens.assign(40, 7);
  made.num_blocks = 3;
  made.blocks.resize(std::size_t{3} * 2 * 2);
  for (std::size_t i = 0; i < made.blocks.size(); ++i) {
    made.blocks[i].offset = i * link.context.config.block_bytes;
    made.blocks[i].checksum =
        block_checksum(link.memory.data() + made.blocks[i].offset, link.context.config.block_bytes);
  }
  made.index.resize(made.blocks.size() * link.context.config.index_bytes);
  made.note.resize(9);
  return made;
}

void check_answer(std::span<const std::byte> frame) {
  KAREZ_CHECK(frame.empty() || read_frame(frame).has_value(), "an answer is a proper frame");
}

void follow(std::span<const std::byte> script, std::string_view wire_type) {
  PeerConfig consumer = small_config();
  consumer.wire_type = wire_type;
  DirectLink link(consumer);
  const RequestKey key = link.table.add(export_of(link), link.clock.now()).value();
  link.pump();
  std::vector<std::byte> memory(link.context.config.block_bytes);
  const std::optional<Expected<Manifest>> manifest = link.fetch(key, 1);
  KAREZ_CHECK(manifest && *manifest, "the way is clear");
  RemoteRead read;
  read.num_blocks = 1;
  read.blocks[0] = (*manifest)->blocks[0];
  read.memory[0] = memory.data();
  link.connection->read(link.lease, read);
  link.connection->flush(link.clock.now());
  link.connection->fetch(FetchId(2), key, 1, link.clock.now() + std::chrono::seconds(9));
  bool is_new = false;
  while (script.size() >= 2) {
    const auto how = std::to_integer<unsigned>(script[0]);
    const std::size_t size =
        std::min<std::size_t>(std::to_integer<std::size_t>(script[1]), script.size() - 2);
    const std::span<const std::byte> bytes = script.subspan(2, size);
    script = script.subspan(2 + size);
    std::vector<std::byte> frame(bytes.begin(), bytes.end());
    if ((how & 2U) != 0) {
      // Requests that are under way have small numbers; the first byte of the body is one.
      const std::uint64_t request = size > 0 ? std::to_integer<std::uint64_t>(bytes[0]) : 0;
      frame = WireWriter(static_cast<WireType>(how >> 4U), request)
                  .put_bytes(bytes.subspan(std::min<std::size_t>(size, 1)))
                  .finish();
    }
    if ((how & 8U) != 0 && !std::exchange(is_new, true)) {
      link.session = std::make_unique<ExportSession>(link.context, 2);
    }
    if ((how & 1U) != 0) {
      const ExportSession::Answer answer = link.session->handle(frame, link.clock.now());
      check_answer(answer.frame);
    } else {
      link.connection->on_frame(frame, link.clock.now());
    }
    if ((how & 4U) != 0) {
      link.pump();
      link.clock.advance(std::chrono::seconds(1));
    }
  }
  for (const std::vector<std::byte>& frame : link.to_producer) {
    check_answer(frame);
  }
}

// A script's steps are too short for a block: whatever bits one in 4 bits has, it can be stored.
void restore_any_page(std::span<const std::byte> bytes) {
  constexpr int kHeadDim = 16;
  std::vector<std::byte> page(ArchiveLayout::of(kHeadDim).page_bytes);
  std::copy_n(bytes.begin(), std::min(bytes.size(), page.size()), page.rbegin());
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    std::vector<std::byte> block(BlockLayout::of(type, kHeadDim).slot_bytes);
    restore_block(type, kHeadDim, page.data(), block.data());
    archive_block(type, kHeadDim, block.data(), page.data());
  }
}

}  // namespace

void read_any_message(std::span<const std::byte> script) {
  follow(script, kNativeWire);
  follow(script, kR4Wire);
  restore_any_page(script);
}

}  // namespace karez::test
