#include "model/default_system_message.h"

#include <gtest/gtest.h>

#include <string>

namespace karez {
namespace {

TEST(DefaultSystemMessage, IsReadFromALiteralWithNewlines) {
  // As in SmolLM2's template.
  EXPECT_EQ(default_system_message("{% if loop.first and messages[0]['role'] != 'system' %}"
                                   "{{ '<|im_start|>system\nYou are named S.<|im_end|>\n' }}"
                                   "{% endif %}{{'<|im_start|>' + message['role'] + '\n'}}"),
            "You are named S.");
}

TEST(DefaultSystemMessage, IsReadFromALiteralWithEscapes) {
  EXPECT_EQ(default_system_message(R"({{- "<|im_start|>system\nIt's \"Q\".\n\\o/<|im_end|>\n" }})"),
            "It's \"Q\".\n\\o/");
  EXPECT_EQ(default_system_message(R"({{ '<|im_start|>system\nIt\'s me.<|im_end|>\n' }})"),
            "It's me.");
}

TEST(DefaultSystemMessage, IsTheFirstThatIsOneLiteral) {
  // As in the template of Qwen 2.5, whose first branches are for tools and for the user's message.
  EXPECT_EQ(default_system_message(
                R"({%- if tools %}{{- '<|im_start|>system\n' }}{{- 'You are Q.' }}{%- else %})"
                R"({{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }})"
                R"({%- else %}{{- '<|im_start|>system\nYou are Q.<|im_end|>\n' }}{%- endif %})"),
            "You are Q.");
}

TEST(DefaultSystemMessage, IsReadFromTextOutsideOfThePrograms) {
  EXPECT_EQ(default_system_message("{% if x %}<|im_start|>system\nPlain.<|im_end|>{% endif %}"),
            "Plain.");
}

TEST(DefaultSystemMessage, IsEmptyWhereThereIsNone) {
  for (const std::string text :
       {"", "chatml", "<|im_start|>system", "<|im_start|>system\n", "<|im_start|>system\nNo end",
        "'<|im_start|>system\\", "<|im_start|>system\n<|im_end|>",
        "<|im_start|>system\n{{ message }}<|im_end|>", "{{ '<|im_start|>' + role + '\\n' }}",
        "{{ '<|im_start|>systematic\\nx<|im_end|>' }}"}) {
    EXPECT_EQ(default_system_message(text), "") << text;
  }
}

}  // namespace
}  // namespace karez
