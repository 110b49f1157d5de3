# cmake -DINPUT=index.html -DOUTPUT=page_html.cpp -P embed.cmake: the file's bytes as a C++ array.
# Bytes and not a string literal, because compilers need not accept long literals.
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE "${OUTPUT}" "#include \"server/page.h\"

namespace karez {
namespace {

constexpr unsigned char kBytes[] = {${bytes}};

}  // namespace

std::string_view page_html() { return {reinterpret_cast<const char*>(kBytes), sizeof kBytes}; }

}  // namespace karez
")
