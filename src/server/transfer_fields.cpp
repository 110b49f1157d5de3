#include "server/transfer_fields.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/hex.h"

namespace karez {
namespace {

constexpr std::string_view kField = "kv_transfer_params";
constexpr std::size_t kMaxHostBytes = 255;
constexpr std::size_t kMaxEngineIdBytes = 128;
constexpr std::size_t kRequestIdDigits = 32;

std::string read_text(FieldReader& reader, std::string_view field, std::size_t max_bytes) {
  const auto text = reader.string(field);
  if (!text || text->empty() || text->size() > max_bytes) {
    reader.wrong(field, text ? fmt::format("a string of {} bytes", text->size()) : "absent",
                 fmt::format("strings of 1 to {} bytes", max_bytes));
    return {};
  }
  return *text;
}

// Where the producer's answer said that the KV is.
KvTransfer read_source(FieldReader& reader, const AllowedPeers& allowed) {
  KvTransfer transfer;
  transfer.role = KvTransfer::Role::kConsume;
  transfer.remote_engine_id = read_text(reader, "remote_engine_id", kMaxEngineIdBytes);
  transfer.remote_host = read_text(reader, "remote_host", kMaxHostBytes);
  const auto port = reader.integer("remote_port", 1, 65'535);
  if (!port) {
    reader.wrong("remote_port", "absent", "integers from 1 to 65535");
  }
  transfer.remote_port = static_cast<int>(port.value_or(0));
  transfer.remote_request_id = reader.string("remote_request_id").value_or("");
  if (transfer.remote_request_id.size() != kRequestIdDigits ||
      !is_lower_hex(transfer.remote_request_id)) {
    reader.wrong("remote_request_id",
                 reader.find("remote_request_id") == nullptr
                     ? std::string("absent")
                     : fmt::format("a string of {} bytes", transfer.remote_request_id.size()),
                 fmt::format("strings of {} digits from 0 to f", kRequestIdDigits));
  }
  if (!reader.failed() && !allowed.allow(transfer.remote_host, transfer.remote_port)) {
    reader.wrong(
        "remote_host",
        fmt::format("'{}' with remote_port {}", transfer.remote_host, transfer.remote_port),
        fmt::format("IP addresses of {}", allowed.is_default() ? "this machine (--kv-allow-peers)"
                                                               : "this server's --kv-allow-peers"));
  }
  return transfer;
}

}  // namespace

void read_transfer_fields(FieldReader& reader, KvRole role, const AllowedPeers& allowed,
                          Request& request) {
  const Json* params = reader.object(kField);
  if (params == nullptr) {
    return;
  }
  FieldReader inner(*params, std::string(kField), reader.problem());
  const bool produce = inner.boolean("do_remote_decode").value_or(false);
  const bool consume = inner.boolean("do_remote_prefill").value_or(false);
  if (produce && consume) {
    inner.fail("do_remote_decode",
               "kv_transfer_params.do_remote_decode and do_remote_prefill are both true, allowed "
               "is one of them");
  }
  RoleOptions here;
  here.role = role;
  const auto needs = [&](std::string_view field, KvRole needed) {
    inner.fail(field, fmt::format("kv_transfer_params.{} is true, which needs a server with "
                                  "--kv-role {} or kv_both; this one has {}",
                                  field, to_string(needed), to_string(role)));
  };
  if (produce && !here.produces()) {
    needs("do_remote_decode", KvRole::kProducer);
  }
  if (consume && !here.consumes()) {
    needs("do_remote_prefill", KvRole::kConsumer);
  }
  if (produce && request.num_choices > 1) {
    reader.wrong("n", std::to_string(request.num_choices),
                 "1 with kv_transfer_params.do_remote_decode");
  }
  if (reader.failed() || (!produce && !consume)) {
    return;
  }
  request.kv_transfer = consume ? read_source(inner, allowed) : KvTransfer{};
}

Json transfer_json(const KvTransfer& produced) {
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"remote_engine_id", produced.remote_engine_id},
          {"remote_request_id", produced.remote_request_id},
          {"remote_host", produced.remote_host},
          {"remote_port", produced.remote_port},
          {"remote_block_ids", nullptr}};
}

}  // namespace karez
