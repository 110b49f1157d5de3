# Warnings for our own targets. They are errors in every build that we run.
add_library(karez_warnings INTERFACE)
target_compile_options(karez_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Wold-style-cast -Woverloaded-virtual -Werror)
# g++ 12 at -O3 sees overlapping copies inside std::string's operator+ where there are none (GCC bug
# 105651), and overflowing ones inside std::vector's insert (GCC bug 105329).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(karez_warnings INTERFACE -Wno-restrict -Wno-stringop-overflow)
endif()
# clang sees that the sorts of libstdc++ use what it has deprecated itself.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(karez_warnings INTERFACE -Wno-deprecated-declarations)
endif()
