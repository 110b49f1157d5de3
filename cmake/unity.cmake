# Unity builds: what scripts/test.sh builds is compiled several sources at a time, so that headers are
# read, and templates of theirs compiled, once for all of them. Its presets switch this on
# (CMAKE_UNITY_BUILD); developers' builds compile each source alone.
#
# Sources of a folder then share a translation unit, so names of their anonymous namespaces must differ.
# Equal things have one definition in a header; a test whose names clash has a namespace of its name
# in place of the anonymous one. CMake itself leaves out sources with compile options of their own.
if(CMAKE_UNITY_BUILD)
  # Its sources are included by a main file, which is what g++ takes for a header here.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

# Sources that share names on purpose, or mean different things by a name that is right in both.
set(karez_compiled_alone
  "src/attention/row_selector\\.cpp"  # Scratch, as row_ranker.cpp; kJobsPerThread, as work_plan.cpp
  "src/engine/eval_report\\.cpp"     # kRowFormat, as bench_report.cpp
  "src/kv/tier/host_tier\\.cpp"      # limits of its own options, as disk_tier.cpp
  "src/model/arch_.*\\.cpp"          # the same three functions for each architecture
  "src/spec/draft_policy\\.cpp")     # kLearning, as speculation.cpp
list(JOIN karez_compiled_alone "|" karez_compiled_alone)

# karez_unity_sources(SOURCE...): of a target of the calling folder, paths absolute or relative to it.
function(karez_unity_sources)
  foreach(source IN LISTS ARGN)
    get_filename_component(path "${source}" ABSOLUTE)
    if(path MATCHES "/(${karez_compiled_alone})$")
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()
