#include "remote/wire_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/remote/two_nodes.h"

namespace karez {
namespace wire_messages_test {

using testing::HasSubstr;

std::span<const std::byte> body_of(const std::vector<std::byte>& frame) {
  return std::span(frame).subspan(kWireHeaderBytes);
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<std::size_t>(byte) / 16];
    text += kDigits[std::to_integer<std::size_t>(byte) % 16];
  }
  return text;
}

template <typename T>
std::string error_of(const Expected<T>& result) {
  return result ? "" : result.error().to_string();
}

HelloMessage hello() {
  HelloMessage message;
  std::iota(message.nonce.begin(), message.nonce.end(), std::uint8_t{1});
  message.config = test::small_config();
  return message;
}

ManifestMessage manifest() {
  ManifestMessage message;
  message.lease = 7;
  message.epoch = 9;
  message.num_tokens = 33;
  message.num_blocks = 3;
  message.index_bytes = std::uint64_t{3} * 2 * 2 * 64;
  message.note_bytes = 5;
  return message;
}

TEST(WireMessages, AHelloLooksAsTheFormatsPageSays) {
  EXPECT_EQ(hex(body_of(encode(1, hello()))),
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"  // nonce
            "ab00000000000000000000000000000000000000000000000000000000000000"  // model digest
            "02000000"                                                          // layers
            "02000000"                                                          // KV heads
            "10000000"                                                          // head dim
            "10000000"                                                          // block tokens
            "0004000000000000"                                                  // block bytes
            "4000000000000000"                                                  // index bytes
            "00010000"                                                          // most tokens
            "00000000"                                                          // zero
            "62663136000000000000000000000000"                                  // "bf16"
            "72320000000000000000000000000000"                                  // "r2"
            "6e617469766500000000000000000000");                                // "native"
}

TEST(WireMessages, OthersLookAsTheFormatsPageSays) {
  EXPECT_EQ(hex(body_of(encode(1, manifest()))),
            "0700000000000000"
            "0900000000000000"
            "21000000"
            "03000000"
            "0003000000000000"
            "05000000"
            "00000000");
  EXPECT_EQ(hex(body_of(encode(1, FetchPartMessage{7, ManifestSection::kIndex, 16, 256}))),
            "0700000000000000"
            "03000000"
            "10000000"
            "0001000000000000");
  EXPECT_EQ(hex(body_of(encode(1, ReadBlocksMessage{7, {1, 258}}))),
            "0700000000000000"
            "02000000"
            "01000000"
            "02010000");
  EXPECT_EQ(hex(body_of(encode_heartbeat(1, {{7, 8}}))),
            "02000000"
            "0700000000000000"
            "0800000000000000");
  EXPECT_EQ(hex(body_of(encode(1, ErrorMessage{StatusCode::kNotFound, "no"}))),
            "01000000"
            "02000000"
            "6e6f");
  ReadyMessage ready;
  ready.lease_ms = 30000;
  ready.memory_address = 0x1000;
  ready.memory_bytes = 0x2000;
  ready.shared_key = {std::byte{0xAA}};
  EXPECT_EQ(hex(body_of(encode(1, ready))),
            "3075000000000000"
            "0010000000000000"
            "0020000000000000"
            "00000000"
            "01000000"
            "aa"
            "00000000"
            "00000000");
}

TEST(WireMessages, AreReadBack) {
  const Expected<HelloMessage> read = decode_hello(body_of(encode(1, hello())));
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  EXPECT_EQ(read->nonce, hello().nonce);
  EXPECT_EQ(read->config, hello().config);

  const std::vector<std::byte> part = encode(
      3, PartMessage{{7, ManifestSection::kNote, 2, 4}, std::array{std::byte{1}, std::byte{2}}});
  const Expected<PartMessage> read_part = decode_part(body_of(part));
  ASSERT_TRUE(read_part.has_value());
  EXPECT_EQ(read_part->part.offset, 4U);
  EXPECT_EQ(read_part->bytes.size(), 2U);
}

TEST(WireMessages, EveryMessageThatIsCutOrPaddedIsAnError) {
  const PeerConfig config = test::small_config();
  const auto expect_strict = [](const std::vector<std::byte>& frame, auto decode) {
    const std::span<const std::byte> body = body_of(frame);
    EXPECT_TRUE(decode(body).has_value());
    for (std::size_t size = 0; size < body.size(); ++size) {
      EXPECT_FALSE(decode(body.first(size)).has_value()) << size;
    }
    std::vector<std::byte> padded(body.begin(), body.end());
    padded.push_back(std::byte{0});
    EXPECT_FALSE(decode(std::span<const std::byte>(padded)).has_value());
  };
  using Bytes = std::span<const std::byte>;
  expect_strict(encode(1, hello()), [](Bytes body) { return decode_hello(body); });
  expect_strict(encode(1, HelloReplyMessage{{}, {}, test::small_config()}),
                [](Bytes body) { return decode_hello_reply(body); });
  expect_strict(encode(1, ConfirmMessage{}), [](Bytes body) { return decode_confirm(body); });
  ReadyMessage ready;
  ready.lease_ms = 1;
  ready.shared_key.resize(3);
  expect_strict(encode(1, ready), [](Bytes body) { return decode_ready(body); });
  expect_strict(encode(1, FetchMessage{}), [](Bytes body) { return decode_fetch(body); });
  expect_strict(encode(1, manifest()),
                [&](Bytes body) { return decode_manifest(body, config, 1 << 20); });
  expect_strict(encode(1, FetchPartMessage{1, ManifestSection::kIndex, 1, 0}),
                [](Bytes body) { return decode_fetch_part(body); });
  expect_strict(
      encode(1, PartMessage{{1, ManifestSection::kIndex, 1, 0}, std::array{std::byte{1}}}),
      [](Bytes body) { return decode_part(body); });
  expect_strict(encode_heartbeat(1, {{1, 2}}), [](Bytes body) { return decode_leases(body); });
  expect_strict(encode(1, ReleaseMessage{1}), [](Bytes body) { return decode_release(body); });
  expect_strict(encode(1, ReadBlocksMessage{1, {2}}),
                [&](Bytes body) { return decode_read_blocks(body, config); });
  expect_strict(encode(1, ErrorMessage{StatusCode::kIoError, "x"}),
                [](Bytes body) { return decode_error(body); });
}

TEST(WireMessages, CountsOfAManifestAreThoseOfTheConfiguration) {
  const PeerConfig config = test::small_config();
  const auto error = [&](const auto& change) {
    ManifestMessage changed = manifest();
    change(changed);
    return error_of(decode_manifest(body_of(encode(1, changed)), config, 1 << 20));
  };
  EXPECT_THAT(error([](auto& m) { m.num_tokens = 257; }),
              HasSubstr("tokens of a manifest message is 257, allowed are up to 256"));
  EXPECT_THAT(error([](auto& m) { m.num_tokens = 0; }), HasSubstr("tokens"));
  EXPECT_THAT(error([](auto& m) { m.num_blocks = 0xFFFFFFFF; }),
              HasSubstr("blocks of a manifest message is 4294967295, allowed are up to 3"));
  EXPECT_THAT(error([](auto& m) { m.num_blocks = 2; }), HasSubstr("blocks"));
  EXPECT_THAT(error([](auto& m) { m.index_bytes = std::uint64_t{1} << 60U; }),
              HasSubstr("key index in bytes of a manifest message is 1152921504606846976"));
  EXPECT_THAT(error([](auto& m) { m.note_bytes = (1 << 22) + 1; }), HasSubstr("note"));
  EXPECT_EQ(error([](auto& m) { m.index_bytes = 0; }), "");
  // This node's limit counts, too.
  EXPECT_THAT(error_of(decode_manifest(body_of(encode(1, manifest())), config, 700)),
              HasSubstr("allowed are up to 700"));
}

TEST(WireMessages, CountsOfOthersHaveLimits) {
  const PeerConfig config = test::small_config();
  EXPECT_EQ(blocks_per_message(config), 128U);
  PeerConfig r4 = config;
  r4.wire_type = "r4";
  EXPECT_EQ(blocks_per_message(r4), 399U);  // of 328 bytes
  for (const std::size_t bytes : {327U, 328U, 329U, 656U, 1024U}) {
    const std::vector<std::byte> data(bytes);
    const std::vector<std::byte> frame = WireWriter(WireType::kBlockData, 1)
                                             .put(std::uint64_t{1})
                                             .put(std::uint32_t{1})
                                             .put(std::uint32_t{0})
                                             .put_bytes(data)
                                             .finish();
    EXPECT_EQ(decode_block_data(body_of(frame), r4).has_value(), bytes == 328) << bytes;
    EXPECT_EQ(decode_block_data(body_of(frame), config).has_value(), bytes == 1024) << bytes;
  }
  ReadBlocksMessage read{1, std::vector<std::uint32_t>(129)};
  EXPECT_THAT(error_of(decode_read_blocks(body_of(encode(1, read)), config)),
              HasSubstr("blocks of a read blocks message is 129, allowed are up to 128"));
  read.blocks.clear();
  EXPECT_FALSE(decode_read_blocks(body_of(encode(1, read)), config).has_value());
  EXPECT_THAT(error_of(decode_fetch_part(
                  body_of(encode(1, FetchPartMessage{1, ManifestSection{5}, 1, 0})))),
              HasSubstr("section"));
  EXPECT_THAT(error_of(decode_fetch_part(body_of(
                  encode(1, FetchPartMessage{1, ManifestSection::kIndex, kPartBytes + 1, 0})))),
              HasSubstr("length"));
  ReadyMessage ready;
  ready.lease_ms = 1;
  ready.memory_address = ~std::uint64_t{0} - 4;
  ready.memory_bytes = 5;
  EXPECT_THAT(error_of(decode_ready(body_of(encode(1, ready)))), HasSubstr("memory"));
}

TEST(WireMessages, TextOfAPeerIsMadePrintable) {
  const Expected<ErrorMessage> read =
      decode_error(body_of(encode(1, ErrorMessage{StatusCode::kNotFound, "a\x1b[31m\n\xff"})));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->text, "a?[31m??");
  EXPECT_EQ(read->code, StatusCode::kNotFound);
}

TEST(WireMessages, NamesOfAPeerAreAsciiWithoutHoles) {
  const std::vector<std::byte> frame = encode(1, hello());
  std::vector<std::byte> body(frame.begin() + kWireHeaderBytes, frame.end());
  const std::size_t kv_type = body.size() - 48;
  body[kv_type + 6] = std::byte{'x'};
  EXPECT_FALSE(decode_hello(body).has_value());
}

TEST(RequestKey, IsRandomAndItsTextIsReadBack) {
  const RequestKey a = RequestKey::random().value();
  EXPECT_NE(a, RequestKey::random().value());
  EXPECT_EQ(a.to_string().size(), 32U);
  EXPECT_EQ(RequestKey::parse(a.to_string()), a);
  EXPECT_FALSE(RequestKey::parse("").has_value());
  EXPECT_FALSE(RequestKey::parse(std::string(32, 'g')).has_value());
}

}  // namespace wire_messages_test
}  // namespace karez
