# Warnings for our own targets. They are errors in every build that we run.
add_library(karez_warnings INTERFACE)
target_compile_options(karez_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Wold-style-cast -Woverloaded-virtual -Werror)
