# Every library that Karez links, in one place. Debian packages, except ggml and libllama: any
# installed copy of the supported version is found through CMAKE_PREFIX_PATH. The default is the
# copy inside the llama-cpp-python wheel, which scripts/setup.sh puts into .venv.
find_package(Threads REQUIRED)
find_package(tl-expected REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.74 REQUIRED)  # headers only: Asio and Beast
# Asio of Boost 1.74 knows coroutines of clang as an experiment only; since 16 they are those of C++20.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 16)
  set_property(TARGET Boost::headers APPEND PROPERTY
    INTERFACE_COMPILE_DEFINITIONS BOOST_ASIO_HAS_CO_AWAIT=1)
endif()
find_package(OpenSSL REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)

# Debian's libxxhash-dev has no CMake package.
find_path(KAREZ_XXHASH_INCLUDE_DIR xxhash.h)
find_library(KAREZ_XXHASH_LIBRARY xxhash)
if(NOT KAREZ_XXHASH_INCLUDE_DIR OR NOT KAREZ_XXHASH_LIBRARY)
  message(FATAL_ERROR "xxHash was not found. Run scripts/setup.sh, which installs libxxhash-dev.")
endif()
add_library(xxhash::xxhash UNKNOWN IMPORTED)
set_target_properties(xxhash::xxhash PROPERTIES
  IMPORTED_LOCATION "${KAREZ_XXHASH_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${KAREZ_XXHASH_INCLUDE_DIR}")

# Nor has liburing-dev.
find_path(KAREZ_LIBURING_INCLUDE_DIR liburing.h)
find_library(KAREZ_LIBURING_LIBRARY uring)
if(NOT KAREZ_LIBURING_INCLUDE_DIR OR NOT KAREZ_LIBURING_LIBRARY)
  message(FATAL_ERROR "liburing was not found. Run scripts/setup.sh, which installs liburing-dev.")
endif()
add_library(liburing::liburing UNKNOWN IMPORTED)
set_target_properties(liburing::liburing PROPERTIES
  IMPORTED_LOCATION "${KAREZ_LIBURING_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${KAREZ_LIBURING_INCLUDE_DIR}")

# Nor has libhiredis-dev.
find_path(KAREZ_HIREDIS_INCLUDE_DIR hiredis/hiredis.h)
find_library(KAREZ_HIREDIS_LIBRARY hiredis)
if(NOT KAREZ_HIREDIS_INCLUDE_DIR OR NOT KAREZ_HIREDIS_LIBRARY)
  message(FATAL_ERROR "hiredis was not found. Run scripts/setup.sh, which installs libhiredis-dev.")
endif()
add_library(hiredis::hiredis UNKNOWN IMPORTED)
set_target_properties(hiredis::hiredis PROPERTIES
  IMPORTED_LOCATION "${KAREZ_HIREDIS_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${KAREZ_HIREDIS_INCLUDE_DIR}")

# UCX has one of its own since 1.14 only; Debian 12 has 1.13.
find_path(KAREZ_UCX_INCLUDE_DIR ucp/api/ucp.h)
find_library(KAREZ_UCP_LIBRARY ucp)
find_library(KAREZ_UCS_LIBRARY ucs)
if(NOT KAREZ_UCX_INCLUDE_DIR OR NOT KAREZ_UCP_LIBRARY OR NOT KAREZ_UCS_LIBRARY)
  message(FATAL_ERROR "UCX was not found. Run scripts/setup.sh, which installs libucx-dev.")
endif()
add_library(ucx::ucs UNKNOWN IMPORTED)
set_target_properties(ucx::ucs PROPERTIES
  IMPORTED_LOCATION "${KAREZ_UCS_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${KAREZ_UCX_INCLUDE_DIR}")
add_library(ucx::ucp UNKNOWN IMPORTED)
set_target_properties(ucx::ucp PROPERTIES
  IMPORTED_LOCATION "${KAREZ_UCP_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${KAREZ_UCX_INCLUDE_DIR}"
  INTERFACE_LINK_LIBRARIES ucx::ucs)

set(KAREZ_GGML_VERSION 0.25)  # ggml of llama-cpp-python 0.3.36, the one that the tests run against

file(GLOB karez_wheel_prefixes "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages")
foreach(prefix IN LISTS karez_wheel_prefixes)
  list(APPEND CMAKE_PREFIX_PATH "${prefix}" "${prefix}/llama_cpp")
endforeach()

find_package(ggml CONFIG QUIET)
find_package(llama CONFIG QUIET)
if(NOT ggml_FOUND OR NOT llama_FOUND)
  message(FATAL_ERROR
    "ggml and llama were not found. Run scripts/setup.sh, which installs them into .venv, or pass "
    "-DCMAKE_PREFIX_PATH=DIR with the prefix of an installed ggml ${KAREZ_GGML_VERSION} and libllama.")
endif()
