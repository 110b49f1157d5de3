// Requests for engines with fake runners, and their answers.
//
// Thread: callbacks by engines' threads, the rest by the test's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine_client.h"

namespace karez::test {

// Others with another first token; ends at max_tokens.
inline Request fake_request(int vocab_size, int prompt_tokens, int max_tokens, TokenId first,
                            int num_choices = 1) {
  Request request;
  for (int i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back((first + i * 7 + i / 11) % vocab_size);
  }
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.num_choices = num_choices;
  return request;
}

struct CollectedAnswer {
  std::vector<TokenId> tokens;
  GenerationEvent last;
};

class AnswerCollector {
 public:
  using Answers = std::map<std::pair<std::size_t, int>, CollectedAnswer>;  // by request and choice

  EngineClient::Callback callback(std::size_t request, int num_choices) {
    const std::lock_guard lock(mutex_);
    num_open_ += num_choices;
    return [this, request](const GenerationEvent& event) {
      const std::lock_guard inner(mutex_);
      CollectedAnswer& answer = answers_[{request, event.choice}];
      for (const GeneratedToken& token : event.tokens) {
        answer.tokens.push_back(token.chosen.token);
      }
      answer.last = event;
      num_open_ -= event.finished ? 1 : 0;
      changed_.notify_all();
    };
  }
  // Until all choices have ended.
  Answers wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ == 0; });
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Answers answers_;
  int num_open_ = 0;
};

}  // namespace karez::test
