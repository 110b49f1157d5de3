// The fields that chat and completion requests share: how tokens are chosen and when it ends.
//
// Thread: pure.
#pragma once

#include "sched/request.h"
#include "server/field_reader.h"
#include "server/text_codec.h"

namespace karez {

// Fills everything of the request but its prompt. Problems go to the reader.
void read_sampling_fields(FieldReader& reader, const TextCodec& codec, Request& request);

}  // namespace karez
