// The browser page that GET / answers with: one HTML file (page/index.html), part of the binary.
//
// Thread: constant.
#pragma once

#include <string_view>

namespace karez {

std::string_view page_html();

}  // namespace karez
