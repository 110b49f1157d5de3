// Requests whose prompt another node has prefilled, or whose prompt is prefilled for another.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/working_set.h"

namespace karez {

void EngineLoop::advance_peers() {
  if (peers_.producer != nullptr) {
    peers_.producer->poll();
  }
  if (peers_.consumer == nullptr) {
    return;
  }
  std::vector<KvConsumer::Ready> ready;
  peers_.consumer->poll(
      // The scheduler does not know yet of those that are ready.
      [this, &ready](const Request& request, int num_remote_tokens) {
        return ready.empty() && scheduler_.has_room_for(request, num_remote_tokens);
      },
      ready);
  for (const KvConsumer::Ready& arrived : ready) {
    const Submission& submission = active_.at(arrived.request).submission;
    if (!arrived.error) {
      start_admitted(arrived);
    } else if (peers_.load_failure == KvLoadFailure::kRecompute) {
      note_recomputed(arrived.request, arrived.error->message());
      scheduler_.add(*submission.request, submission.compression);
    } else {
      end_choices(arrived.request, 0, submission.request->num_choices, FinishReason::kError,
                  arrived.error);
    }
  }
}

void EngineLoop::start_admitted(const KvConsumer::Ready& arrived) {
  ActiveRequest& active = active_.at(arrived.request);
  const std::shared_ptr<const Request> request = active.submission.request;
  const CompressionSchedule compression = active.submission.compression;
  StepOutput first;
  if (!arrived.logits.empty()) {
    active.cached_tokens = kv_.num_tokens(arrived.kv);
    active.scheduled_seconds = active.first_token_seconds = clock_();
    totals_.prompt_tokens += static_cast<std::int64_t>(request->prompt.size());
    if (!sample_one(active, 0, arrived.logits, first)) {
      kv_.close(arrived.kv);
      if (active.num_unfinished == 0) {
        forget(arrived.request);
      }
      return;
    }
  }
  std::vector<TokenId> generated;
  for (const SampledToken& sample : first.samples) {
    generated.push_back(sample.token);
  }
  scheduler_.add_computed(*request, compression, arrived.kv,
                          {arrived.num_remote_tokens, arrived.is_exact}, generated);
}

bool EngineLoop::waits_for_peers() const {
  return peers_.consumer != nullptr && peers_.consumer->has_arrivals();
}

std::optional<std::chrono::milliseconds> EngineLoop::next_turn() const {
  // How late an engine that has nothing else to do may see that a read has come, a deadline has
  // passed, or a heartbeat is due.
  constexpr std::chrono::milliseconds kReads{1};
  constexpr std::chrono::milliseconds kDeadlines{20};
  constexpr std::chrono::milliseconds kHeartbeats{200};
  if (waits_for_peers() || (waits_for_slots_ && has_work())) {
    return kReads;
  }
  if (is_restoring()) {
    return kDeadlines;
  }
  const bool holds_any = peers_.producer != nullptr && peers_.producer->holds_any();
  const bool has_leases = peers_.consumer != nullptr && peers_.consumer->has_leases();
  return holds_any || has_leases ? std::optional(kHeartbeats) : std::nullopt;
}

bool EngineLoop::produces(const PlannedSequence& planned) const {
  if (peers_.producer == nullptr || planned.is_lost) {
    return false;  // what is lost may have ended
  }
  const auto& transfer = active_.at(planned.request).submission.request->kv_transfer;
  return transfer && transfer->role == KvTransfer::Role::kProduce;
}

bool EngineLoop::keep_for_consumer(const PlannedSequence& planned, ActiveRequest& active,
                                   std::span<const float> logits, StepOutput& output) {
  const Request& request = *active.submission.request;
  if (!produces(planned) || active.kv_transfer) {
    return true;
  }
  std::vector<ListedBlock> working_set;
  if (key_index_ != nullptr && loader_ != nullptr) {
    const auto likeliest = std::ranges::max_element(logits) - logits.begin();
    working_set = find_working_set(runner_, kv_, *key_index_, *loader_, planned.kv,
                                   static_cast<TokenId>(likeliest));
  }
  auto transfer = peers_.producer->hold(planned.kv, request.prompt, logits, working_set);
  if (transfer) {
    active.kv_transfer = std::move(*transfer);
    return true;
  }
  for (int i = 0; i < planned.num_choices; ++i) {
    output.samples.push_back({0, true});
  }
  end_choices(request.id, planned.choice, planned.num_choices, FinishReason::kError,
              transfer.error());
  return false;
}

bool EngineLoop::is_recomputed_when_lost(RequestId request) {
  if (peers_.consumer == nullptr || !peers_.consumer->reads_from_peer(request)) {
    return true;
  }
  peers_.consumer->note_lost();
  if (peers_.load_failure != KvLoadFailure::kRecompute) {
    return false;
  }
  note_recomputed(request, "blocks that it needed could not be read");
  return true;
}

// A producer that is gone fails many requests: one line in a while, with how many there were.
void EngineLoop::note_recomputed(RequestId request, std::string_view reason) {
  constexpr double kPauseSeconds = 5;
  const double now = clock_();
  if (!peers_.log || now < next_recompute_note_seconds_) {
    ++unnoted_recomputes_;
    return;
  }
  next_recompute_note_seconds_ = now + kPauseSeconds;
  const KvTransfer& transfer = *active_.at(request).submission.request->kv_transfer;
  // The pool's reasons begin with the peer.
  const std::string peer = fmt::format("{} port {}: ", transfer.remote_host, transfer.remote_port);
  reason.remove_prefix(reason.starts_with(peer) ? peer.size() : 0);
  std::string line = fmt::format("KV from {} port {} is computed here instead: {}",
                                 transfer.remote_host, transfer.remote_port, reason);
  if (const std::int64_t others = std::exchange(unnoted_recomputes_, 0); others > 0) {
    line += fmt::format(" ({} more since the last such line)", others);
  }
  peers_.log(line);
}

void EngineLoop::end_lost() {
  for (const RequestId id : std::exchange(lost_, {})) {
    const auto found = active_.find(id);
    if (found == active_.end()) {
      continue;
    }
    scheduler_.cancel(id);
    end_choices(id, 0, found->second.submission.request->num_choices, FinishReason::kError,
                Status(StatusCode::kUnavailable,
                       "keys and values could not be read from the node that prefilled the prompt "
                       "(--kv-load-failure recompute computes them again)"));
  }
}

void EngineLoop::forget(RequestId id) {
  active_.erase(id);
  if (peers_.consumer != nullptr) {
    peers_.consumer->finished(id);
  }
}

}  // namespace karez
