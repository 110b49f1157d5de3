#include "remote/peer_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "remote/peer_secret.h"

namespace karez {

namespace {

// Of 256 KiB. Enough to keep a link busy; the exporter holds the answers until they are read.
constexpr std::size_t kPartsAtATime = 32;
constexpr std::size_t kPartsOfAFetch = 4;

}  // namespace

PeerConnection::PeerConnection(const PeerPoolOptions& options, PeerPoolStats& stats, Send send,
                               Clock::TimePoint now)
    : options_(options),
      wire_(options.config),
      stats_(stats),
      send_(std::move(send)),
      problem_(StatusCode::kUnavailable, "not connected"),
      connect_deadline_(now + options.connect_timeout),
      seen_(now),
      heard_(now),
      last_tick_(now) {
  if (const std::optional<Status> problem = fill_random(nonce_)) {
    break_off(*problem);
    return;
  }
  send_(encode(next_request(), HelloMessage{nonce_, options_.config}));
}

void PeerConnection::on_frame(std::span<const std::byte> bytes, Clock::TimePoint now) {
  if (is_broken()) {
    return;
  }
  on_heard(now);
  stats_.bytes_received += static_cast<std::int64_t>(bytes.size());
  const Expected<WireFrame> frame = read_frame(bytes);
  if (!frame) {
    break_off(frame.error());
    return;
  }
  if (frame->type == WireType::kError) {
    take_error(*frame);
  } else if (state_ == State::kGreeting && frame->type == WireType::kHelloReply) {
    take_hello_reply(*frame);
  } else if (state_ == State::kConfirming && frame->type == WireType::kReady) {
    take_ready(*frame);
  } else if (state_ != State::kReady) {
    break_off({StatusCode::kCorruption, fmt::format("a message of type {} during the handshake",
                                                    static_cast<unsigned>(frame->type))});
  } else if (frame->type == WireType::kManifest) {
    take_manifest(*frame);
  } else if (frame->type == WireType::kPart) {
    take_part(*frame);
  } else if (frame->type == WireType::kHeartbeatAck) {
    take_heartbeat_ack(*frame);
  } else if (frame->type == WireType::kBlockData) {
    take_block_data(*frame);
    flush(now);
  } else {
    break_off({StatusCode::kCorruption, fmt::format("an exporter does not send messages of type {}",
                                                    static_cast<unsigned>(frame->type))});
  }
}

void PeerConnection::on_heard(Clock::TimePoint now) {
  seen_ = heard_ = now;
  is_silent_ = false;
  for (auto& [request, fetch] : fetches_) {
    fetch.silence = {};
  }
}

void PeerConnection::take_hello_reply(const WireFrame& frame) {
  const Expected<HelloReplyMessage> reply = decode_hello_reply(frame.body);
  if (!reply) {
    break_off(reply.error());
    return;
  }
  if (const std::optional<Status> mismatch = find_mismatch(options_.config, reply->config)) {
    break_off(*mismatch);
    return;
  }
  if (!is_same_proof(reply->proof,
                     make_proof(options_.secret, PeerSide::kProducer, nonce_, reply->nonce))) {
    break_off({StatusCode::kInvalidArgument, "peers do not fit: their secrets differ"});
    return;
  }
  state_ = State::kConfirming;
  send_(encode(next_request(), ConfirmMessage{make_proof(options_.secret, PeerSide::kConsumer,
                                                         nonce_, reply->nonce)}));
}

void PeerConnection::take_ready(const WireFrame& frame) {
  Expected<ReadyMessage> ready = decode_ready(frame.body);
  if (!ready) {
    break_off(ready.error());
    return;
  }
  state_ = State::kReady;
  ++stats_.connects;
  lease_duration_ = std::chrono::milliseconds(ready->lease_ms);
  new_ready_ = std::move(*ready);
  for (auto& [request, fetch] : fetches_) {
    send_fetch(request, fetch);
  }
}

void PeerConnection::take_error(const WireFrame& frame) {
  const Expected<ErrorMessage> error = decode_error(frame.body);
  if (!error) {
    break_off(error.error());
    return;
  }
  const Status status(error->code, error->text);
  if (state_ != State::kReady) {
    break_off(status);
    return;
  }
  if (const auto message = read_messages_.find(frame.request); message != read_messages_.end()) {
    if (status.code() == StatusCode::kNotFound) {
      lose_lease(message->second.lease);
    } else {
      break_off(status);
    }
    return;
  }
  const std::optional<AskedPart> part = take_asked_part(frame.request);
  const std::uint64_t fetch = part ? part->fetch : frame.request;
  if (fetches_.contains(fetch)) {
    end_fetch(fetch, fail(status));
  } else if (status.code() == StatusCode::kCorruption ||
             status.code() == StatusCode::kInvalidArgument) {
    break_off(status);
    return;
  }
  ask_parts();
}

// --- manifests ----------------------------------------------------------------------------------

void PeerConnection::fetch(FetchId id, const RequestKey& key, std::uint64_t epoch,
                           Clock::TimePoint deadline, FetchContents contents) {
  if (is_broken()) {
    fetch_ends_.push_back({id, fail(problem_)});
    return;
  }
  const std::uint64_t request = next_request();
  Fetch& made = fetches_[request];
  made.id = id;
  made.key = key;
  made.epoch = epoch;
  made.deadline = deadline;
  made.wants_contents = contents == FetchContents::kAtOnce;
  if (is_ready()) {
    send_fetch(request, made);
  }
}

void PeerConnection::send_fetch(std::uint64_t request, Fetch& fetch) {
  fetch.sent = seen_;  // or later
  fetch.is_sent = true;
  send_(encode(request, FetchMessage{fetch.key, fetch.epoch}));
}

PeerConnection::Fetches::iterator PeerConnection::find_fetch(FetchId id) {
  return std::find_if(fetches_.begin(), fetches_.end(),
                      [&](const auto& entry) { return entry.second.id == id; });
}

PeerConnection::Fetches::const_iterator PeerConnection::find_fetch(FetchId id) const {
  return std::find_if(fetches_.begin(), fetches_.end(),
                      [&](const auto& entry) { return entry.second.id == id; });
}

std::optional<std::size_t> PeerConnection::manifest_bytes(FetchId id) const {
  const auto found = find_fetch(id);
  if (found == fetches_.end() || found->second.lease == 0) {
    return std::nullopt;
  }
  const ManifestMessage& manifest = found->second.described;
  return std::size_t{manifest.num_tokens} * sizeof(TokenId) +
         num_manifest_blocks(manifest) * sizeof(RemoteBlock) + manifest.index_bytes +
         manifest.note_bytes;
}

void PeerConnection::fetch_contents(FetchId id, Clock::TimePoint deadline) {
  const auto found = find_fetch(id);
  if (found == fetches_.end() || std::exchange(found->second.wants_contents, true)) {
    return;
  }
  Fetch& fetch = found->second;
  fetch.deadline = deadline;
  fetch.silence = {};
  if (fetch.lease != 0) {
    begin_contents(fetch);
  }
}

void PeerConnection::cancel_fetch(FetchId id) {
  const auto found = find_fetch(id);
  if (found != fetches_.end()) {
    if (found->second.lease != 0) {
      release(found->second.lease);
    }
    fetches_.erase(found);
  }
}

void PeerConnection::take_manifest(const WireFrame& frame) {
  const Expected<ManifestMessage> manifest =
      decode_manifest(frame.body, options_.config, options_.max_index_bytes);
  if (!manifest) {
    break_off(manifest.error());
    return;
  }
  const auto found = fetches_.find(frame.request);
  if (found == fetches_.end()) {
    send_(encode(next_request(), ReleaseMessage{manifest->lease}));  // nobody waits for it any more
    return;
  }
  Fetch& fetch = found->second;
  if (fetch.lease != 0 || manifest->lease == 0 || leases_.contains(manifest->lease) ||
      manifest->epoch != fetch.epoch) {
    break_off(
        {StatusCode::kCorruption,
         fmt::format("a manifest of epoch {} and lease {} came, expected is epoch {} and a new "
                     "lease",
                     manifest->epoch, manifest->lease, fetch.epoch)});
    return;
  }
  fetch.lease = manifest->lease;
  // The exporter counts from when it was asked, which is later.
  leases_[fetch.lease] = {fetch.sent + lease_duration_};
  next_heartbeat_ = std::min(next_heartbeat_, fetch.sent + lease_duration_ / kHeartbeatsPerLease);
  fetch.described = *manifest;
  fetch.manifest.epoch = manifest->epoch;
  fetch.manifest.num_blocks = manifest->num_blocks;
  fetch.manifest.bytes_received = static_cast<std::int64_t>(frame.body.size() + kWireHeaderBytes);
  if (fetch.wants_contents) {
    begin_contents(fetch);
  } else {
    fetch.deadline = Clock::TimePoint::max();  // until somebody wants them
  }
}

std::size_t PeerConnection::num_manifest_blocks(const ManifestMessage& manifest) const {
  return std::size_t{manifest.num_blocks} * options_.config.num_layers *
         options_.config.num_kv_heads;
}

void PeerConnection::begin_contents(Fetch& fetch) {
  fetch.manifest.tokens.resize(fetch.described.num_tokens);
  fetch.manifest.index.resize(fetch.described.index_bytes);
  fetch.manifest.note.resize(fetch.described.note_bytes);
  fetch.block_bytes.resize(num_manifest_blocks(fetch.described) * kWireBlockBytes);
  plan_parts(fetch);
  ask_parts();
}

std::span<std::byte> PeerConnection::section_of(Fetch& fetch, ManifestSection section) {
  switch (section) {
    case ManifestSection::kTokens:
      return std::as_writable_bytes(std::span(fetch.manifest.tokens));
    case ManifestSection::kBlocks:
      return fetch.block_bytes;
    case ManifestSection::kIndex:
      return fetch.manifest.index;
    case ManifestSection::kNote:
      break;
  }
  return fetch.manifest.note;
}

void PeerConnection::plan_parts(Fetch& fetch) {
  for (const ManifestSection section : {ManifestSection::kNote, ManifestSection::kTokens,
                                        ManifestSection::kBlocks, ManifestSection::kIndex}) {
    const std::uint64_t size = section_of(fetch, section).size();
    for (std::uint64_t offset = 0; offset < size; offset += kPartBytes) {
      fetch.missing.push_back(
          {fetch.lease, section,
           static_cast<std::uint32_t>(std::min<std::uint64_t>(kPartBytes, size - offset)), offset});
    }
  }
}

void PeerConnection::ask_parts() {
  std::size_t num_passed = 0;  // in a row, that need nothing now
  while (asked_parts_.size() < kPartsAtATime && num_passed < fetches_.size()) {
    // In turns, so that a long manifest does not hold up the others.
    auto next = fetches_.upper_bound(last_served_fetch_);
    if (next == fetches_.end()) {
      next = fetches_.begin();
    }
    last_served_fetch_ = next->first;
    Fetch& fetch = next->second;
    if (fetch.missing.empty() || fetch.parts_asked == kPartsOfAFetch) {
      ++num_passed;
      continue;
    }
    num_passed = 0;
    const std::uint64_t request = next_request();
    asked_parts_[request] = {next->first, fetch.missing.front()};
    ++fetch.parts_asked;
    send_(encode(request, fetch.missing.front()));
    fetch.missing.pop_front();
  }
}

std::optional<PeerConnection::AskedPart> PeerConnection::take_asked_part(std::uint64_t request) {
  const auto found = asked_parts_.find(request);
  if (found == asked_parts_.end()) {
    return std::nullopt;
  }
  const AskedPart asked = found->second;
  asked_parts_.erase(found);
  if (const auto fetch = fetches_.find(asked.fetch); fetch != fetches_.end()) {
    --fetch->second.parts_asked;
  }
  return asked;
}

void PeerConnection::take_part(const WireFrame& frame) {
  const Expected<PartMessage> part = decode_part(frame.body);
  if (!part) {
    break_off(part.error());
    return;
  }
  const std::optional<AskedPart> asked = take_asked_part(frame.request);
  if (!asked || asked->part.lease != part->part.lease ||
      asked->part.section != part->part.section || asked->part.offset != part->part.offset ||
      asked->part.length != part->part.length) {
    break_off({StatusCode::kCorruption, "a part of a manifest came that was not asked for"});
    return;
  }
  ask_parts();
  const auto found = fetches_.find(asked->fetch);
  if (found == fetches_.end()) {
    return;  // cancelled, or too late
  }
  Fetch& fetch = found->second;
  std::memcpy(section_of(fetch, part->part.section).data() + part->part.offset, part->bytes.data(),
              part->bytes.size());
  fetch.manifest.bytes_received += static_cast<std::int64_t>(frame.body.size() + kWireHeaderBytes);
  if (fetch.parts_asked > 0 || !fetch.missing.empty()) {
    return;
  }
  fetch.manifest.blocks.resize(num_manifest_blocks(fetch.described));
  WireReader reader(fetch.block_bytes);
  for (std::size_t i = 0; i < fetch.manifest.blocks.size(); ++i) {
    RemoteBlock& block = fetch.manifest.blocks[i];
    block.offset = reader.get<std::uint64_t>();
    block.checksum = reader.get<std::uint64_t>();
    block.index = static_cast<std::uint32_t>(i);
  }
  end_fetch(found->first, std::move(fetch.manifest));
}

void PeerConnection::end_fetch(std::uint64_t key, Expected<Manifest> outcome) {
  const auto found = fetches_.find(key);
  if (!outcome && found->second.lease != 0) {
    release(found->second.lease);
  }
  fetch_ends_.push_back({found->second.id, std::move(outcome), found->second.lease});
  fetches_.erase(found);
}

void PeerConnection::take_fetches(std::vector<FetchEnd>& ends) {
  std::move(fetch_ends_.begin(), fetch_ends_.end(), std::back_inserter(ends));
  fetch_ends_.clear();
}

}  // namespace karez
