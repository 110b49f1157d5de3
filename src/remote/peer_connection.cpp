#include "remote/peer_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "remote/peer_secret.h"

namespace karez {

namespace {

constexpr std::size_t kPartsAtATime = 4;
constexpr int kHeartbeatsPerLease = 3;

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
    send_fetch(fetch);
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
  } else if (Fetch* fetch = fetch_of_request(frame.request)) {
    const auto ending = std::find_if(fetches_.begin(), fetches_.end(),
                                     [&](const auto& entry) { return &entry.second == fetch; });
    end_fetch(ending->first, fail(status));
  } else if (status.code() == StatusCode::kCorruption ||
             status.code() == StatusCode::kInvalidArgument) {
    break_off(status);
  }
}

// --- manifests ----------------------------------------------------------------------------------

void PeerConnection::fetch(FetchId id, const RequestKey& key, std::uint64_t epoch,
                           Clock::TimePoint deadline) {
  if (is_broken()) {
    fetch_ends_.push_back({id, fail(problem_)});
    return;
  }
  Fetch& made = fetches_[next_request()];
  made.id = id;
  made.key = key;
  made.epoch = epoch;
  made.deadline = deadline;
  if (is_ready()) {
    send_fetch(made);
  }
}

void PeerConnection::send_fetch(Fetch& fetch) {
  const auto request = std::find_if(fetches_.begin(), fetches_.end(), [&](const auto& entry) {
                         return &entry.second == &fetch;
                       })->first;
  fetch.sent = seen_;  // or later
  fetch.is_sent = true;
  send_(encode(request, FetchMessage{fetch.key, fetch.epoch}));
}

void PeerConnection::cancel_fetch(FetchId id) {
  const auto found = std::find_if(fetches_.begin(), fetches_.end(),
                                  [&](const auto& entry) { return entry.second.id == id; });
  if (found != fetches_.end()) {
    if (found->second.lease != 0) {
      release(found->second.lease);
    }
    fetches_.erase(found);
  }
}

PeerConnection::Fetch* PeerConnection::fetch_of_request(std::uint64_t request) {
  if (const auto found = fetches_.find(request); found != fetches_.end()) {
    return &found->second;
  }
  for (auto& [key, fetch] : fetches_) {
    if (fetch.asked.contains(request)) {
      return &fetch;
    }
  }
  return nullptr;
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
  fetch.manifest.epoch = manifest->epoch;
  fetch.manifest.num_blocks = manifest->num_blocks;
  fetch.manifest.bytes_received = static_cast<std::int64_t>(frame.body.size() + kWireHeaderBytes);
  fetch.manifest.tokens.resize(manifest->num_tokens);
  fetch.manifest.index.resize(manifest->index_bytes);
  fetch.manifest.note.resize(manifest->note_bytes);
  fetch.block_bytes.resize(std::size_t{manifest->num_blocks} * options_.config.num_layers *
                           options_.config.num_kv_heads * kWireBlockBytes);
  plan_parts(fetch, *manifest);
  ask_parts(fetch);
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

void PeerConnection::plan_parts(Fetch& fetch, const ManifestMessage& manifest) {
  for (const ManifestSection section : {ManifestSection::kNote, ManifestSection::kTokens,
                                        ManifestSection::kBlocks, ManifestSection::kIndex}) {
    const std::uint64_t size = section_of(fetch, section).size();
    for (std::uint64_t offset = 0; offset < size; offset += kPartBytes) {
      fetch.missing.push_back(
          {manifest.lease, section,
           static_cast<std::uint32_t>(std::min<std::uint64_t>(kPartBytes, size - offset)), offset});
    }
  }
}

void PeerConnection::ask_parts(Fetch& fetch) {
  while (!fetch.missing.empty() && fetch.asked.size() < kPartsAtATime) {
    const std::uint64_t request = next_request();
    fetch.asked[request] = fetch.missing.front();
    send_(encode(request, fetch.missing.front()));
    fetch.missing.pop_front();
  }
}

void PeerConnection::take_part(const WireFrame& frame) {
  const Expected<PartMessage> part = decode_part(frame.body);
  if (!part) {
    break_off(part.error());
    return;
  }
  Fetch* fetch = fetch_of_request(frame.request);
  if (fetch == nullptr) {
    return;  // cancelled
  }
  const auto asked = fetch->asked.find(frame.request);
  if (asked == fetch->asked.end() || asked->second.lease != part->part.lease ||
      asked->second.section != part->part.section || asked->second.offset != part->part.offset ||
      asked->second.length != part->part.length) {
    break_off({StatusCode::kCorruption, "a part of a manifest came that was not asked for"});
    return;
  }
  std::memcpy(section_of(*fetch, part->part.section).data() + part->part.offset, part->bytes.data(),
              part->bytes.size());
  fetch->manifest.bytes_received += static_cast<std::int64_t>(frame.body.size() + kWireHeaderBytes);
  fetch->asked.erase(asked);
  ask_parts(*fetch);
  if (!fetch->asked.empty()) {
    return;
  }
  fetch->manifest.blocks.resize(fetch->block_bytes.size() / kWireBlockBytes);
  WireReader reader(fetch->block_bytes);
  for (std::size_t i = 0; i < fetch->manifest.blocks.size(); ++i) {
    RemoteBlock& block = fetch->manifest.blocks[i];
    block.offset = reader.get<std::uint64_t>();
    block.checksum = reader.get<std::uint64_t>();
    block.index = static_cast<std::uint32_t>(i);
  }
  const auto ending = std::find_if(fetches_.begin(), fetches_.end(),
                                   [&](const auto& entry) { return &entry.second == fetch; });
  end_fetch(ending->first, std::move(fetch->manifest));
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
