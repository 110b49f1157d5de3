# karez_library(NAME kv DEPS karez::base PRIVATE_DEPS fmt::fmt): one static library from all .cpp
# files of the calling folder, so that the linker enforces the include rule of
# docs/architecture.md as well. SOURCES api_error.cpp ...: from these of them.
function(karez_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(sources ${ARG_SOURCES})
  if(NOT sources)
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  endif()
  karez_unity_sources(${sources})
  add_library(karez_${ARG_NAME} STATIC ${sources})
  add_library(karez::${ARG_NAME} ALIAS karez_${ARG_NAME})
  target_include_directories(karez_${ARG_NAME} PUBLIC "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(karez_${ARG_NAME} PUBLIC ${ARG_DEPS} PRIVATE karez_warnings ${ARG_PRIVATE_DEPS})
  if(KAREZ_DCHECKS)
    target_compile_definitions(karez_${ARG_NAME} PUBLIC KAREZ_DCHECKS=1)
  endif()
endfunction()
