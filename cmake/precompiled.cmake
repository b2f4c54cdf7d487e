# lockstep_precompile(target [header...] [OWN header...])
# With LOCKSTEP_PRECOMPILED_HEADERS, the standard headers that are slowest to parse, and the named
# ones, are parsed once per target. A missing #include then shows up only in a build without the
# option.
# The OWN headers, with paths relative to lockstep/, are added only with LOCKSTEP_PRECOMPILE_OWN: an
# edit to one of them rebuilds everything, and the compiler does not warn about code in them.
function(lockstep_precompile target)
  cmake_parse_arguments(PRECOMPILE "" "" "OWN" ${ARGN})
  if(LOCKSTEP_PRECOMPILED_HEADERS)
    set(own)
    if(LOCKSTEP_PRECOMPILE_OWN)
      list(TRANSFORM PRECOMPILE_OWN PREPEND "${PROJECT_SOURCE_DIR}/lockstep/" OUTPUT_VARIABLE own)
      set(own <fmt/format.h> ${own})
    endif()
    set(headers
        <algorithm> <array> <chrono> <cmath> <deque> <filesystem> <functional> <map> <memory> <mutex>
        <optional> <span> <string> <string_view> <unordered_map> <utility> <vector> <fmt/core.h>
        ${PRECOMPILE_UNPARSED_ARGUMENTS} ${own})
    list(JOIN headers "$<SEMICOLON>" headers)
    string(REPLACE ">" "$<ANGLE-R>" headers "${headers}")
    string(REPLACE "$<SEMICOLON$<ANGLE-R>" "$<SEMICOLON>" headers "${headers}")
    target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${headers}>")
  endif()
endfunction()

# lockstep_precompiled_as(target owner): reuses the owner's precompiled headers; both must be built
# with the same flags.
function(lockstep_precompiled_as target owner)
  if(LOCKSTEP_PRECOMPILED_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# ccache caches files that use precompiled headers only if it may ignore the macros and times of the
# headers, and if the preprocessor names the precompiled file.
if(LOCKSTEP_PRECOMPILED_HEADERS AND CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
