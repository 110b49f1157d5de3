// The system message that a ChatML template writes when a conversation brings none.
//
// libllama renders the family of a template, not its text, so what is particular to a model is
// lost: SmolLM2 and Qwen 2.5 begin every conversation with a message of their own. It stands in the
// template as one literal between ChatML's marks, and is read from there; the template's program is
// not run.
// Thread: a function without state.
#pragma once

#include <string>
#include <string_view>

namespace karez {

// Empty if the template has none, or is no ChatML template.
std::string default_system_message(std::string_view chat_template);

}  // namespace karez
