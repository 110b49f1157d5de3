# Read by CMake at the start of llama-cpp-python's build (CMAKE_PROJECT_INCLUDE in scripts/setup.sh).
#
# That build always switches llama.cpp's library of command-line helpers on, in the cache. Karez does not link
# it, and it is a third of the time. A variable of the same name goes before the one in the cache.
set(LLAMA_BUILD_COMMON OFF)
