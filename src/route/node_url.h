// The address of a node as a user writes it: "http://host:port", with a path before its routes or
// without.
//
// Thread: values.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

struct NodeUrl {
  std::string host;  // a name or an address, IPv6 without brackets
  int port = 80;
  std::string base_path;  // "" or "/a/b"

  // "http://host:port/base", as one node is written only one way.
  std::string text() const;
  // Of the header Host.
  std::string authority() const;
  bool operator==(const NodeUrl&) const = default;
};

// Fails: kInvalidArgument with the text and what is wrong with it.
Expected<NodeUrl> parse_node_url(std::string_view text);

}  // namespace karez
