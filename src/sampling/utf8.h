// UTF-8: is a text valid, and how to cut a stream of token pieces only between characters.
//
// A token may hold part of a character. Utf8Assembler keeps such a part back until the rest comes,
// so that what it gives out is valid UTF-8 whatever the model says. Bytes that can never become a
// character turn into U+FFFD, one for each longest possible beginning of a character (the Unicode
// standard, section 3.9, "Substitution of Maximal Subparts"; browsers and Python do the same).
// Thread: the function is pure; one caller at a time for an assembler.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace karez {

// The offset of the first byte that does not belong to a whole, valid character.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

class Utf8Assembler {
 public:
  // Returns what is complete now: valid UTF-8, possibly empty.
  std::string push(std::string_view bytes);
  // At the end of the text: one U+FFFD if part of a character was kept back, else nothing.
  std::string finish();

 private:
  std::string held_;  // at most 3 bytes: a valid beginning of a character
};

}  // namespace karez
