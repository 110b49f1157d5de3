#include "engine/kv_consumer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "engine/exported_index.h"
#include "engine/kv_producer.h"
#include "kv/residency.h"
#include "kv/window_blocks.h"
#include "remote/wire_blocks.h"

namespace karez {
namespace {

// Reads that are asked for at a time: enough to keep a link busy, and few enough that others that
// read in the middle of a step do not wait long behind them.
constexpr std::int64_t kMaxReadsInFlight = 256;

PeerAddress producer_of(const Request& request) {
  const KvTransfer& transfer = *request.kv_transfer;
  return {transfer.remote_host, static_cast<std::uint16_t>(transfer.remote_port)};
}

}  // namespace

KvConsumer::KvConsumer(KVCacheManager& kv, const KeyIndex* index, std::shared_ptr<PeerPool> pool,
                       RemoteTier* tier, Options options, const Clock& clock)
    : kv_(kv),
      index_(index),
      pool_(std::move(pool)),
      tier_(tier),
      options_(options),
      clock_(clock) {}

KvConsumer::~KvConsumer() {
  for (Arrival& arrival : arrivals_) {
    if (!arrival.fetch.is_none()) {
      pool_->cancel(arrival.fetch);
    }
    pool_->release(arrival.manifest.lease);
  }
  // Slots that a peer may still write to must not be given to others before it has let go.
  while (!tickets_.empty()) {
    pool_->wait_until(clock_.now() + std::chrono::milliseconds(10));
    poll_peers();
  }
  for (Arrival& arrival : arrivals_) {
    if (!arrival.kv.is_none()) {
      kv_.close(arrival.kv);
    }
  }
  for (const auto& [request, lease] : leases_) {
    pool_->release(lease);
  }
}

void KvConsumer::start(std::shared_ptr<const Request> request) {
  KAREZ_CHECK(request->kv_transfer && request->kv_transfer->role == KvTransfer::Role::kConsume,
              "a request that consumes");
  const KvTransfer& transfer = *request->kv_transfer;
  Arrival& arrival = arrivals_.emplace_back();
  arrival.request = request;
  arrival.begun = clock_.now();
  arrival.deadline = arrival.begun + options_.timeout;
  const auto key = RequestKey::parse(transfer.remote_request_id);
  if (!key) {
    stop(arrival, key.error());
    return;
  }
  arrival.fetch = pool_->fetch(producer_of(*request), *key, epoch_of(transfer.remote_engine_id),
                               arrival.deadline, FetchContents::kOnDemand);
}

std::size_t KvConsumer::manifest_bytes() const {
  std::size_t bytes = 0;
  for (const Arrival& arrival : arrivals_) {
    bytes += arrival.manifest_bytes;
  }
  return bytes;
}

// In one step, as open() takes them.
std::int64_t KvConsumer::slots_to_read(int num_tokens) const {
  return kv_.spec().slots_for_sequence(num_tokens, std::max(num_tokens, 1));
}

std::int64_t KvConsumer::slots_held() const {
  std::int64_t slots = 0;
  for (const Arrival& arrival : arrivals_) {
    if (!arrival.kv.is_none()) {
      slots += slots_to_read(kv_.num_tokens(arrival.kv) - arrival.num_remote_tokens);
    }
  }
  return slots;
}

// In the order of start(): a large one is not passed by small ones for ever.
void KvConsumer::fetch_manifests() {
  std::size_t bytes = manifest_bytes();
  bool has_turn = true;
  for (Arrival& arrival : arrivals_) {
    if (arrival.stage != Stage::kLeasing && arrival.stage != Stage::kQueued) {
      continue;
    }
    const std::optional<std::size_t> size = pool_->manifest_bytes(arrival.fetch);
    if (!size) {
      continue;
    }
    arrival.stage = Stage::kQueued;
    has_turn = has_turn && (bytes == 0 || bytes + *size <= options_.max_manifest_bytes);
    if (has_turn) {
      bytes += *size;
      arrival.manifest_bytes = *size;
      arrival.deadline = clock_.now() + options_.timeout;
      arrival.stage = Stage::kFetching;
      pool_->fetch_contents(arrival.fetch, arrival.deadline);
    }
  }
}

void KvConsumer::poll_peers() {
  pool_->poll();
  results_.clear();
  pool_->take_reads(results_, RemoteReader::kAdmission);
  for (const RemoteReadResult& result : results_) {
    const auto found = tickets_.find(result.ticket);
    KAREZ_CHECK(found != tickets_.end(), "a result of a read that was asked for");
    Arrival& arrival = *found->second;
    tickets_.erase(found);
    --arrival.reads_in_flight;
    if (result.status == TransferStatus::kOk) {
      // The limit is of standing still: a long prompt takes many steps to come.
      arrival.deadline = clock_.now() + options_.timeout;
    } else if (!arrival.error) {
      stop(arrival, Status(StatusCode::kUnavailable,
                           fmt::format("the KV of the prompt could not be read from {}: {}",
                                       producer_of(*arrival.request).to_string(),
                                       to_string(result.status))));
    }
  }
}

void KvConsumer::poll(const HasRoom& has_room, std::vector<Ready>& ready) {
  poll_peers();
  fetch_manifests();
  for (auto it = arrivals_.begin(); it != arrivals_.end();) {
    it = advance(*it, has_room, ready) ? arrivals_.erase(it) : std::next(it);
  }
}

bool KvConsumer::advance(Arrival& arrival, const HasRoom& has_room, std::vector<Ready>& ready) {
  const bool is_moving = arrival.stage == Stage::kLeasing || arrival.stage == Stage::kFetching ||
                         arrival.stage == Stage::kReading;
  if (is_moving && clock_.now() >= arrival.deadline) {
    stop(arrival,
         Status(StatusCode::kDeadlineExceeded,
                fmt::format(
                    "nothing of the prompt's KV came for {} s",
                    std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count())));
  }
  if (!arrival.fetch.is_none()) {
    take_manifest(arrival);
  }
  if ((arrival.stage == Stage::kWaiting || arrival.stage == Stage::kReading) &&
      !pool_->is_alive(arrival.manifest.lease)) {
    stop(arrival,
         Status(StatusCode::kUnavailable, fmt::format("{}: the producer of the prompt's KV is gone",
                                                      producer_of(*arrival.request).to_string())));
  }
  if (arrival.stage == Stage::kWaiting && has_room(*arrival.request, num_remote_tokens(arrival))) {
    open(arrival);
  }
  if (arrival.stage == Stage::kReading) {
    read_more(arrival);
  }
  const bool has_all = arrival.stage == Stage::kReading &&
                       arrival.first_read >= num_blocks(kv_.num_tokens(arrival.kv));
  if (has_all) {
    prefetch_working_set(arrival);
  }
  if (arrival.reads_in_flight > 0 || (!has_all && arrival.stage != Stage::kStopping)) {
    return false;
  }
  finish(arrival, ready);
  return true;
}

void KvConsumer::take_manifest(Arrival& arrival) {
  auto outcome = pool_->take(arrival.fetch);
  if (!outcome) {
    return;
  }
  arrival.fetch = FetchId::none();
  if (!*outcome) {
    // Whatever it is between the nodes, the client's request is not wrong.
    const Status& error = outcome->error();
    stop(arrival, Status(error.code() == StatusCode::kDeadlineExceeded ? error.code()
                                                                       : StatusCode::kUnavailable,
                         error.message()));
    return;
  }
  arrival.manifest = std::move(**outcome);
  arrival.note = decode_transfer_note(arrival.manifest.note,
                                      static_cast<std::size_t>(std::max(options_.vocab_size, 0)));
  arrival.manifest.note = {};
  auto problem = check(arrival);
  if (!problem) {
    problem = find_lack_of_slots(arrival);
  }
  if (problem) {
    stop(arrival, std::move(*problem));
    return;
  }
  arrival.stage = Stage::kWaiting;
}

// The pool has checked shapes; what this is the KV of is checked here.
std::optional<Status> KvConsumer::check(const Arrival& arrival) const {
  const Manifest& manifest = arrival.manifest;
  if (manifest.tokens != arrival.request->prompt) {
    const auto differ = std::ranges::mismatch(manifest.tokens, arrival.request->prompt);
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the producer's KV is of another prompt: {} tokens there, {} here, "
                              "which differ from token {} on",
                              manifest.tokens.size(), arrival.request->prompt.size(),
                              differ.in1 - manifest.tokens.begin()));
  }
  if (index_ != nullptr && manifest.index.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the producer sends no key index, which sparse attention needs here");
  }
  return std::nullopt;
}

// What is read before the first step takes its slots at once.
std::optional<Status> KvConsumer::find_lack_of_slots(const Arrival& arrival) const {
  const int remote = num_remote_tokens(arrival);
  const int read = num_tokens(arrival) - remote;
  const std::int64_t needed = slots_to_read(read);
  const std::int64_t total = kv_.slots_for_sequences();
  if (needed <= total) {
    return std::nullopt;
  }
  if (remote > 0) {
    return Status(
        StatusCode::kResourceExhausted,
        fmt::format(
            "the last {} tokens of the prompt take {} blocks of the fast tier, which has {}", read,
            needed, total));
  }
  return Status(
      StatusCode::kResourceExhausted,
      fmt::format("the KV of the prompt takes {} blocks of the fast tier, which has {}; it "
                  "can be admitted with --kv-admit sparse, or computed here",
                  needed, total));
}

// One choice samples from them; several would have to before they are forked.
bool KvConsumer::has_logits(const Arrival& arrival) const {
  return arrival.request->num_choices == 1 && !arrival.note.logits.empty();
}

int KvConsumer::num_tokens(const Arrival& arrival) const {
  return static_cast<int>(arrival.request->prompt.size()) - (has_logits(arrival) ? 0 : 1);
}

int KvConsumer::num_remote_tokens(const Arrival& arrival) const {
  return options_.admit == KvAdmit::kSparse && tier_ != nullptr
             ? num_tokens(arrival) / kExtentTokens * kExtentTokens
             : 0;
}

void KvConsumer::open(Arrival& arrival) {
  const int count = num_tokens(arrival);
  const int whole = num_remote_tokens(arrival);
  arrival.kv = whole > 0 ? open_at_producer(arrival.manifest, whole) : kv_.open();
  if (arrival.kv.is_none()) {
    return;  // later, when others have ended
  }
  arrival.num_remote_tokens = whole;
  arrival.first_read = whole / kBlockSize;
  // The second call lets go of what is out of the window already.
  if (!kv_.extend(arrival.kv, count - whole) || !kv_.extend(arrival.kv, 0)) {
    kv_.close(std::exchange(arrival.kv, SequenceId::none()));
    return;  // likewise
  }
  import_records(arrival);
  arrival.next_read = 0;
  arrival.deadline = clock_.now() + options_.timeout;
  arrival.stage = Stage::kReading;
}

SequenceId KvConsumer::open_at_producer(const Manifest& manifest, int num_tokens) {
  bool has_room = true;
  const auto opened = kv_.open_at_home(num_tokens, [&](int layer, int head, std::int64_t first) {
    const auto extent = tier_->adopt_extent(
        manifest.lease,
        blocks_of(manifest, layer, head).subspan(static_cast<std::size_t>(first), kExtentBlocks));
    has_room = has_room && extent.has_value();
    return extent.value_or(ExtentId::none());
  });
  if (opened && !has_room) {
    kv_.close(*opened);
    return SequenceId::none();
  }
  return opened.value_or(SequenceId::none());
}

std::span<const RemoteBlock> KvConsumer::blocks_of(const Manifest& manifest, int layer,
                                                   int head) const {
  return manifest.blocks_of(pool_->config(), static_cast<std::uint32_t>(layer),
                            static_cast<std::uint32_t>(head));
}

void KvConsumer::import_records(const Arrival& arrival) {
  if (index_ == nullptr) {
    return;
  }
  const KVCacheSpec& spec = kv_.spec();
  const std::size_t bytes = exported_index_bytes(index_->kind(), spec.head_dim);
  const std::byte* in = arrival.manifest.index.data();
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const BlockTableView table = kv_.table(arrival.kv, kv_.group_of_layer(layer));
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      for (std::size_t i = 0; i < arrival.manifest.num_blocks; ++i, in += bytes) {
        if (i < table.size() && !table[i].is_none()) {
          import_index(index_->view(layer), head, table[i], spec.head_dim, in);
        }
      }
    }
  }
}

void KvConsumer::read_more(Arrival& arrival) {
  const KVCacheSpec& spec = kv_.spec();
  const std::int64_t end = num_blocks(kv_.num_tokens(arrival.kv));
  const std::size_t num_rows =
      static_cast<std::size_t>(spec.num_layers) * static_cast<std::size_t>(spec.num_kv_heads);
  batch_.clear();
  while (arrival.first_read < end &&
         arrival.reads_in_flight + static_cast<std::int64_t>(batch_.size()) < kMaxReadsInFlight) {
    const auto layer =
        static_cast<int>(arrival.next_read / static_cast<std::size_t>(spec.num_kv_heads));
    const auto head =
        static_cast<int>(arrival.next_read % static_cast<std::size_t>(spec.num_kv_heads));
    const std::span<const RemoteBlock> blocks = blocks_of(arrival.manifest, layer, head);
    const BlockTableView table = kv_.table(arrival.kv, kv_.group_of_layer(layer));
    RemoteRead read;
    read.reader = RemoteReader::kAdmission;
    read.lease = arrival.manifest.lease;
    const std::int64_t run_end = std::min<std::int64_t>(end, arrival.first_read + kExtentBlocks);
    for (std::int64_t i = arrival.first_read; i < run_end; ++i) {
      const auto place = static_cast<std::size_t>(i);
      if (table[place].is_none()) {
        continue;  // out of the window
      }
      const auto n = static_cast<std::size_t>(read.num_blocks++);
      read.blocks[n] = blocks[place];
      read.memory[n] = kv_.layer(layer).slot(head, table[place]);
    }
    if (read.num_blocks > 0) {
      read.ticket = ++last_ticket_;
      tickets_.emplace(read.ticket, &arrival);
      arrival.blocks_read += read.num_blocks;
      batch_.push_back(read);
    }
    if (++arrival.next_read == num_rows) {
      arrival.next_read = 0;
      arrival.first_read = run_end;
    }
  }
  arrival.reads_in_flight += static_cast<std::int64_t>(batch_.size());
  pool_->read(batch_);
}

// Behind the blocks that the first step waits for. A hint: what a producer names wrongly costs
// bytes.
void KvConsumer::prefetch_working_set(Arrival& arrival) {
  Residency* residency = kv_.residency();
  if (residency == nullptr || arrival.num_remote_tokens == 0) {
    return;
  }
  const std::uint32_t num_blocks = arrival.manifest.num_blocks;
  const auto num_kv_heads = static_cast<std::uint32_t>(kv_.spec().num_kv_heads);
  const auto end = static_cast<std::uint32_t>(arrival.num_remote_tokens / kBlockSize);
  for (const std::uint32_t place : std::exchange(arrival.note.working_set, {})) {
    const std::uint32_t entry = place % num_blocks;
    if (place >= arrival.manifest.blocks.size() || entry >= end) {
      continue;
    }
    const std::uint32_t row = place / num_blocks;
    const auto layer = static_cast<int>(row / num_kv_heads);
    const BlockId block = kv_.table(arrival.kv, kv_.group_of_layer(layer))[entry];
    if (!block.is_none()) {
      residency->hint(layer, static_cast<int>(row % num_kv_heads), block, LookaheadSource::kProbe);
    }
  }
  arrival.blocks_read += residency->prefetch_between_steps();
}

void KvConsumer::stop(Arrival& arrival, Status error) {
  if (!arrival.fetch.is_none()) {
    pool_->cancel(std::exchange(arrival.fetch, FetchId::none()));
  }
  if (!arrival.manifest.lease.is_none()) {
    pool_->release(arrival.manifest.lease);  // reads under way come back soon
  }
  arrival.manifest = {};
  arrival.manifest_bytes = 0;
  arrival.error = std::move(error);
  arrival.stage = Stage::kStopping;
}

void KvConsumer::finish(Arrival& arrival, std::vector<Ready>& ready) {
  Ready done;
  done.request = arrival.request->id;
  if (arrival.stage == Stage::kStopping) {
    if (!arrival.kv.is_none()) {
      kv_.close(arrival.kv);
    }
    counters_.failed += arrival.is_wanted ? 1 : 0;
    done.error = std::move(arrival.error);
  } else {
    const auto block_bytes = static_cast<std::int64_t>(kv_.spec().slot_bytes());
    const std::int64_t all = std::ranges::count_if(
        arrival.manifest.blocks, [](const RemoteBlock& block) { return !block.is_absent(); });
    done.kv = arrival.kv;
    done.num_remote_tokens = arrival.num_remote_tokens;
    if (has_logits(arrival)) {
      done.logits = std::move(arrival.note.logits);
    }
    done.is_exact = pool_->is_exact();
    kv_.write_home(arrival.kv);
    ++counters_.admitted;
    counters_.bytes_admitted +=
        arrival.manifest.bytes_received +
        arrival.blocks_read * static_cast<std::int64_t>(wire_block_bytes(pool_->config()));
    counters_.bytes_full += all * block_bytes;
    counters_.admit_seconds += std::chrono::duration<double>(clock_.now() - arrival.begun).count();
    if (done.num_remote_tokens == 0) {
      pool_->release(arrival.manifest.lease);
    } else {
      leases_.emplace(done.request, arrival.manifest.lease);
    }
  }
  if (arrival.is_wanted) {
    ready.push_back(std::move(done));
  } else if (!done.kv.is_none()) {
    kv_.close(done.kv);
  }
}

void KvConsumer::finished(RequestId request) {
  for (Arrival& arrival : arrivals_) {
    if (arrival.request->id == request && arrival.is_wanted) {
      arrival.is_wanted = false;
      if (arrival.stage != Stage::kStopping) {
        stop(arrival, Status(StatusCode::kCancelled, "the request was cancelled"));
      }
      return;
    }
  }
  if (const auto found = leases_.find(request); found != leases_.end()) {
    pool_->release(found->second);
    leases_.erase(found);
  }
}

KvConsumerStats KvConsumer::stats() const {
  KvConsumerStats stats = counters_;
  stats.pool = pool_->stats();
  return stats;
}

}  // namespace karez
