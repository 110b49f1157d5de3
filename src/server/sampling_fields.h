// The fields that chat and completion requests share: how tokens are chosen and when it ends.
//
// Thread: pure.
#pragma once

#include <map>
#include <string>

#include "sched/request.h"
#include "server/field_reader.h"
#include "server/text_codec.h"

namespace karez {

// Fills everything of the request but its prompt. Problems go to the reader.
void read_sampling_fields(FieldReader& reader, const TextCodec& codec, Request& request);

// How the request names what has several names, by the engine's name of it:
// {"max_tokens", "n_predict"}.
using FieldNames = std::map<std::string, std::string, std::less<>>;
FieldNames names_in_use(const FieldReader& reader);

}  // namespace karez
