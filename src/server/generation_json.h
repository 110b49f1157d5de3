// The JSON of answers, in OpenAI's shapes: whole ones and the chunks of a stream.
//
// Thread: one caller at a time; one writer per HTTP request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine_client.h"
#include "server/generation_request.h"

namespace karez {

class GenerationJson {
 public:
  // id and time are the caller's, so that output can be compared.
  GenerationJson(const GenerationRequest& request, const ModelInfo& model, std::string id,
                 std::int64_t created_unix_seconds);

  // Takes an event of the engine request `prompt`. For a stream: the "data: ..." texts to send for
  // it, possibly none. Otherwise: nothing, the answer is kept for whole().
  std::string take(int prompt, const GenerationEvent& event);

  // After the last event. The end of a stream: usage chunk, if asked for, and [DONE].
  std::string stream_end() const;
  // The whole answer.
  std::string whole() const;

  bool all_finished() const { return num_finished_ == static_cast<int>(choices_.size()); }

 private:
  struct Choice {
    bool started = false;
    std::string text;
    Json logprobs;            // of a whole answer: all so far
    std::int64_t offset = 0;  // characters of text before the next token (text_offset)
    std::string finish_reason;
    GenerationEvent last;  // without text and tokens
  };

  std::string chunk(int index, Json choice) const;
  Json head(std::string_view object) const;
  Json logprobs_of(Choice& choice, const std::vector<GeneratedToken>& tokens) const;
  Json usage() const;
  Json timings(const GenerationEvent& event) const;

  const GenerationRequest& request_;
  std::string model_name_;
  std::string id_;
  std::int64_t created_unix_seconds_;
  std::vector<Choice> choices_;
  int num_finished_ = 0;
};

// A piece of a token may be part of a character; it becomes U+FFFD, `bytes` beside it has the
// truth.
std::string dump(const Json& value);
// "data: {json}\n\n"
std::string sse(const std::string& json);

std::string_view to_string(FinishReason reason);

}  // namespace karez
