#include "kv/lookahead.h"

#include <gtest/gtest.h>

namespace karez {
namespace {

TEST(Lookahead, ListsOfSourcesAreReadBack) {
  for (const char* text : {"off", "previous", "draft", "probe", "self", "layer", "previous,layer",
                           "previous,draft,probe,self,layer"}) {
    const auto sources = parse_lookahead(text);
    ASSERT_TRUE(sources.has_value()) << text;
    EXPECT_EQ(to_string(*sources), text);
  }
}

TEST(Lookahead, OrderAndRepetitionDoNotMatter) {
  EXPECT_EQ(*parse_lookahead("layer,draft,layer"), *parse_lookahead("draft,layer"));
  EXPECT_TRUE(parse_lookahead("layer,draft")->contains(LookaheadSource::kDraft));
  EXPECT_FALSE(parse_lookahead("layer,draft")->contains(LookaheadSource::kProbe));
  EXPECT_TRUE(parse_lookahead("off")->is_empty());
}

TEST(Lookahead, WhatIsNoSourceIsRefusedWithTheList) {
  for (const char* text : {"", "on", "off,draft", "draft,", ",draft", "draft, probe", "Layer"}) {
    const auto sources = parse_lookahead(text);
    ASSERT_FALSE(sources.has_value()) << text;
    EXPECT_EQ(sources.error().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(parse_lookahead("draft,next").error().message(),
            "the lookahead is 'draft,next': 'next' is no source; allowed are off, or a comma list "
            "of previous, draft, probe, self, layer");
}

}  // namespace
}  // namespace karez
