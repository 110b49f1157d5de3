#include "sampling/grammar_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace karez {
namespace {

using ::testing::HasSubstr;

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

std::string problem_of(const std::string& gbnf) {
  const auto checked = check_grammar_cost(gbnf);
  return checked ? "" : checked.error().message();
}

TEST(GrammarCost, AcceptsEverydayGrammars) {
  for (const std::string gbnf : {
           R"(root ::= "yes" | "no")",
           "# a comment\nroot ::= ( \"a\" # inside\n | [b-z\\]] )* \"\\\"\" item{2,5} .\n"
           "item ::= [^\\n]+ \"-\"? root2\nroot2 ::= \"x\"{3} <|im_end|> !<[7]>\n\n",
           R"(root ::= "[" (root ("," root)*)? "]" | "1")",
       }) {
    EXPECT_EQ(problem_of(gbnf), "") << gbnf;
  }
  EXPECT_EQ(problem_of("root ::= \"x\"{0,2000} " + repeated("| \"a\" ", 4000)), "");
  EXPECT_EQ(problem_of("root ::= " + repeated("(", 90) + "\"x\"" + repeated(")", 90)), "");
}

TEST(GrammarCost, BoundsEachWayToBeExpensive) {
  std::string empty_rules = "root ::= r0\n";
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    empty_rules += "r" + std::to_string(i) + " ::= (" + next + " " + next + ")?\n";
  }
  for (int i = 0; i < 600; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  }
  for (const auto& [gbnf, reason] : {
           std::pair("root ::= " + repeated("(", 100'000), "nested too deep"),
           std::pair("root ::= " + repeated("(", 101) + "\"x\"" + repeated(")", 101),
                     "nested too deep"),
           std::pair(std::string(R"(root ::= "a"{3,1})"), "{3,1} has its numbers in the wrong"),
           std::pair(std::string(R"(root ::= "a"{2001})"), "repeats 2001 times"),
           std::pair(std::string(R"(root ::= "a"{99999999999999999999})"), "repeats 1000000 times"),
           std::pair("root ::= \"" + repeated("a", 1000) + "\"{2000}", "unrolled"),
           std::pair("root ::= " + repeated("(\"a\") ", 17'000), "too many rules"),
           std::pair(empty_rules + "r40 ::= \"x\"?\n", "can begin in too many ways"),
           std::pair("root ::= (\"a\"?" + repeated(" \"a\"?", 5000) + ") \"b\"",
                     "can begin in too many ways"),
           std::pair(chain + "r600 ::= \"x\"\n", "chains of up to 500"),
           std::pair(std::string("root ::= root \"x\" | \"y\""), "left recursion"),
           std::pair(std::string("root ::= (\"x\"? root)"), "left recursion"),
       }) {
    EXPECT_THAT(problem_of(gbnf), HasSubstr(reason)) << gbnf.substr(0, 100);
  }
}

TEST(GrammarCost, BoundsThePartsThatShareACharacter) {
  for (const std::string part :
       {"[a-z]* ", "[a-z]{0,2000} ", "[a-z]? ", "[a-z]+ ", "[^,]{2,} ", ". * ", "\"-\"* ", "w ",
        "(w) ", "[a-z]* [a-z] ", "[\\x61-\\u007A]* ", "([a-z])* ", "(\"a\" | \"b\")? ", "v* ",
        "[\xC3\xA4-\xC3\xBC]* ", "[0-9-]* "}) {
    const std::string rules = "\nw ::= [a-z]*\nv ::= [a-z]\n";
    EXPECT_EQ(problem_of("root ::= " + repeated(part, 8) + "\"!\"" + rules), "") << part;
    EXPECT_THAT(problem_of("root ::= " + repeated(part, 9) + "\"!\"" + rules),
                HasSubstr("may take the same character, allowed are up to 8"))
        << part;
    EXPECT_THAT(problem_of("root ::= \"x\" (\"y\" | " + repeated(part, 9) + ")" + rules),
                HasSubstr("may take the same character"))
        << part;
  }
  // Three rules of three.
  EXPECT_THAT(problem_of("root ::= w w w\nw ::= [a-z]* [a-z]? [a-z]*\n"),
              HasSubstr("may take the same character"));
  // What stands between them, or their own characters, tell them apart.
  for (const std::string part :
       {"[a-z]* \",\" ", "[a-z]* [0-9] ", "[a-z]{1,9} w ", "[a-z]+ \"ab\" ", "(\",\" [a-z]+)? "}) {
    EXPECT_EQ(problem_of("root ::= " + repeated(part, 100) + "\nw ::= \",\" | \";;\"\n"), "")
        << part;
  }
  EXPECT_EQ(problem_of(R"(root ::= "a"? "b"? "c"? "d"? [e-g]* [hi]* "j"? "k"? "l"? "m"? "n"?)"),
            "");
}

TEST(GrammarCost, SaysWhereTheSyntaxIsWrong) {
  for (const auto& [gbnf, reason] : {
           std::pair("hello", "a rule is NAME ::= ..."),
           std::pair("root ::= \"a", "the closing \" is missing"),
           std::pair("root ::= [a", "the closing ] is missing"),
           std::pair("root ::= (\"a\"", "a ) is missing"),
           std::pair("root ::= *", "nothing to repeat"),
           std::pair("root ::= \"a\"{x}", "a number of repetitions is missing"),
           std::pair("root ::= \"a\"{1;2}", "a repetition is {M}"),
           std::pair("root ::= <a", "a token is <NAME>"),
           std::pair("root ::= \"a\" )", "a rule is NAME ::= ..."),
       }) {
    EXPECT_THAT(problem_of(gbnf), HasSubstr(reason)) << gbnf;
  }
}

}  // namespace
}  // namespace karez
