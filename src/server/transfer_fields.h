// The object kv_transfer_params of requests and answers, with vLLM's keys: which node prefills and
// which one decodes.
//
// Keys and limits: docs/api.md.
// Thread: pure.
#pragma once

#include "engine/allowed_peers.h"
#include "engine/role_options.h"
#include "sched/request.h"
#include "server/field_reader.h"

namespace karez {

// Reads kv_transfer_params into request.kv_transfer. role: of this server; what it does not do is
// refused with the flag that it needs. allowed: whom a consumer connects to.
void read_transfer_fields(FieldReader& reader, KvRole role, const AllowedPeers& allowed,
                          Request& request);

// What a producer's answer holds, for the request to the consumer as it is.
Json transfer_json(const KvTransfer& produced);

}  // namespace karez
