#include "remote/export_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "remote/peer_secret.h"

namespace karez {

namespace {

// Bytes [offset, offset + to.size()) of a section; false: it has not so many.
bool copy_section(const KvExport& exported, ManifestSection section, std::uint64_t offset,
                  std::span<std::byte> to) {
  const auto is_inside = [&](std::size_t size) {
    return to.size() <= size && offset <= size - to.size();
  };
  const auto copy_raw = [&](std::span<const std::byte> from) {
    if (!is_inside(from.size())) {
      return false;
    }
    std::memcpy(to.data(), from.data() + offset, to.size());
    return true;
  };
  switch (section) {
    case ManifestSection::kTokens:
      return copy_raw(std::as_bytes(std::span(exported.tokens)));
    case ManifestSection::kIndex:
      return copy_raw(exported.index);
    case ManifestSection::kNote:
      return copy_raw(exported.note);
    case ManifestSection::kBlocks:
      break;
  }
  if (!is_inside(exported.blocks.size() * kWireBlockBytes) || offset % kWireBlockBytes != 0 ||
      to.size() % kWireBlockBytes != 0) {
    return false;
  }
  for (std::size_t i = 0; i < to.size() / kWireBlockBytes; ++i) {
    const RemoteBlock& block = exported.blocks[offset / kWireBlockBytes + i];
    std::memcpy(to.data() + i * kWireBlockBytes, &block.offset, sizeof block.offset);
    std::memcpy(to.data() + i * kWireBlockBytes + sizeof block.offset, &block.checksum,
                sizeof block.checksum);
  }
  return true;
}

Status lease_has_ended() {
  return {StatusCode::kNotFound, "the lease has ended, or is another connection's"};
}

}  // namespace

ExportSession::Answer ExportSession::handle(std::span<const std::byte> bytes,
                                            Clock::TimePoint now) {
  if (state_ == State::kRefused) {
    return {.frame = {}, .closes = true};
  }
  const Expected<WireFrame> frame = read_frame(bytes);
  if (!frame) {
    return bad_message(0, frame.error());
  }
  switch (state_) {
    case State::kNew:
      return frame->type == WireType::kHello
                 ? hello(*frame)
                 : bad_message(frame->request,
                               {StatusCode::kCorruption, "the first message is not a hello"});
    case State::kGreeted:
      return frame->type == WireType::kConfirm
                 ? confirm(*frame)
                 : bad_message(frame->request,
                               {StatusCode::kCorruption, "the second message is not a confirm"});
    case State::kReady:
      return ready(*frame, now);
    case State::kRefused:
      break;
  }
  return {.frame = {}, .closes = true};
}

ExportSession::Answer ExportSession::hello(const WireFrame& frame) {
  const Expected<HelloMessage> hello = decode_hello(frame.body);
  if (!hello) {
    return bad_message(frame.request, hello.error());
  }
  if (is_wire_type(hello->config.wire_type)) {
    config_.wire_type = hello->config.wire_type;
  }
  // The consumer reads this text: "here" is the consumer.
  if (const std::optional<Status> mismatch = find_mismatch(hello->config, config_)) {
    Answer answer = refuse(frame.request, *mismatch);
    refusal_ = find_mismatch(config_, hello->config);
    return answer;
  }
  if (const std::optional<Status> problem = check_peer_config(hello->config)) {
    return refuse(frame.request, *problem);
  }
  wire_ = WireBlocks(config_);
  if (const std::optional<Status> problem = fill_random(own_nonce_)) {
    return refuse(frame.request, *problem);
  }
  consumer_nonce_ = hello->nonce;
  state_ = State::kGreeted;
  return {encode(frame.request, HelloReplyMessage{own_nonce_,
                                                  make_proof(context_.secret, PeerSide::kProducer,
                                                             consumer_nonce_, own_nonce_),
                                                  config_}),
          false};
}

ExportSession::Answer ExportSession::confirm(const WireFrame& frame) {
  const Expected<ConfirmMessage> confirm = decode_confirm(frame.body);
  if (!confirm) {
    return bad_message(frame.request, confirm.error());
  }
  if (!is_same_proof(confirm->proof, make_proof(context_.secret, PeerSide::kConsumer,
                                                consumer_nonce_, own_nonce_))) {
    return refuse(frame.request,
                  {StatusCode::kInvalidArgument, "peers do not fit: their secrets differ"});
  }
  state_ = State::kReady;
  ++context_.stats->handshakes;
  return {encode(frame.request, context_.ready), false};
}

ExportSession::Answer ExportSession::ready(const WireFrame& frame, Clock::TimePoint now) {
  switch (frame.type) {
    case WireType::kFetch:
      return fetch(frame, now);
    case WireType::kFetchPart:
      return fetch_part(frame, now);
    case WireType::kHeartbeat:
      return heartbeat(frame, now);
    case WireType::kReadBlocks:
      return read_blocks(frame, now);
    case WireType::kRelease: {
      const Expected<ReleaseMessage> release = decode_release(frame.body);
      if (!release) {
        return bad_message(frame.request, release.error());
      }
      context_.table->release(release->lease, id_);
      return {};
    }
    default:
      return bad_message(frame.request, {StatusCode::kCorruption,
                                         fmt::format("a consumer does not send messages of type {}",
                                                     static_cast<unsigned>(frame.type))});
  }
}

ExportSession::Answer ExportSession::fetch(const WireFrame& frame, Clock::TimePoint now) {
  const Expected<FetchMessage> fetch = decode_fetch(frame.body);
  if (!fetch) {
    return bad_message(frame.request, fetch.error());
  }
  const Expected<std::uint64_t> lease = context_.table->open(fetch->key, fetch->epoch, id_, now);
  if (!lease) {
    return error(frame.request, lease.error());
  }
  const KvExport* exported = context_.table->find(*lease, id_, now);
  if (exported == nullptr) {  // a lease of no length
    return error(frame.request, lease_has_ended());
  }
  ++context_.stats->manifests;
  ManifestMessage manifest;
  manifest.lease = *lease;
  manifest.epoch = exported->epoch;
  manifest.num_tokens = static_cast<std::uint32_t>(exported->tokens.size());
  manifest.num_blocks = exported->num_blocks;
  manifest.index_bytes = exported->index.size();
  manifest.note_bytes = static_cast<std::uint32_t>(exported->note.size());
  return {encode(frame.request, manifest), false};
}

ExportSession::Answer ExportSession::fetch_part(const WireFrame& frame, Clock::TimePoint now) {
  const Expected<FetchPartMessage> part = decode_fetch_part(frame.body);
  if (!part) {
    return bad_message(frame.request, part.error());
  }
  const KvExport* exported = context_.table->find(part->lease, id_, now);
  if (exported == nullptr) {
    return error(frame.request, lease_has_ended());
  }
  std::vector<std::byte> bytes(part->length);
  if (!copy_section(*exported, part->section, part->offset, bytes)) {
    return bad_message(
        frame.request,
        {StatusCode::kCorruption,
         fmt::format("a fetch part message asks for {} bytes at {} of section {}, "
                     "which has not so many",
                     part->length, part->offset, static_cast<unsigned>(part->section))});
  }
  return {encode(frame.request, PartMessage{*part, bytes}), false};
}

ExportSession::Answer ExportSession::heartbeat(const WireFrame& frame, Clock::TimePoint now) {
  const Expected<LeasesMessage> leases = decode_leases(frame.body);
  if (!leases) {
    return bad_message(frame.request, leases.error());
  }
  LeasesMessage alive;
  std::copy_if(leases->leases.begin(), leases->leases.end(), std::back_inserter(alive.leases),
               [&](std::uint64_t lease) { return context_.table->prolong(lease, id_, now); });
  return {encode_heartbeat_ack(frame.request, alive), false};
}

ExportSession::Answer ExportSession::read_blocks(const WireFrame& frame, Clock::TimePoint now) {
  const Expected<ReadBlocksMessage> read = decode_read_blocks(frame.body, config_);
  if (!read) {
    return bad_message(frame.request, read.error());
  }
  const KvExport* exported = context_.table->find(read->lease, id_, now);
  if (exported == nullptr) {
    context_.stats->reads_refused += static_cast<std::int64_t>(read->blocks.size());
    return error(frame.request, lease_has_ended());
  }
  WireWriter writer(WireType::kBlockData, frame.request);
  writer.put(read->lease)
      .put(static_cast<std::uint32_t>(read->blocks.size()))
      .put(std::uint32_t{0});
  const std::span<std::byte> room = writer.put_room(read->blocks.size() * wire_.bytes());
  for (std::size_t i = 0; i < read->blocks.size(); ++i) {
    const std::uint32_t index = read->blocks[i];
    if (index >= exported->blocks.size() || exported->blocks[index].is_absent()) {
      return bad_message(frame.request,
                         {StatusCode::kCorruption,
                          fmt::format("a read blocks message asks for block {} of {}, which is not "
                                      "there",
                                      index, exported->blocks.size())});
    }
    wire_.put(context_.memory.data() + exported->blocks[index].offset,
              room.data() + i * wire_.bytes());
  }
  context_.stats->blocks_sent += static_cast<std::int64_t>(read->blocks.size());
  return {writer.finish(), false};
}

ExportSession::Answer ExportSession::refuse(std::uint64_t request, const Status& status) {
  count_refusal(status);
  return error(request, status);
}

void ExportSession::count_refusal(const Status& why) {
  state_ = State::kRefused;
  refusal_ = why;
  ++context_.stats->refused;
}

void ExportSession::end(const Status& why) {
  if (state_ == State::kGreeted) {
    count_refusal({StatusCode::kInvalidArgument,
                   "it went away when it had this node's proof of the secret: their secrets "
                   "differ, or the connection broke"});
  } else if (state_ == State::kNew && why.code() == StatusCode::kCorruption) {
    count_refusal(why);
  }
}

ExportSession::Answer ExportSession::bad_message(std::uint64_t request, const Status& status) {
  ++context_.stats->bad_messages;
  if (state_ != State::kReady) {
    return refuse(request, status);
  }
  state_ = State::kRefused;
  return error(request, status);
}

ExportSession::Answer ExportSession::error(std::uint64_t request, const Status& status) {
  return {encode(request, ErrorMessage{status.code(), status.message()}), false};
}

}  // namespace karez
