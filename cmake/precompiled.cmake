# lockstep_precompile(target [header...] [OWN header...])
# With LOCKSTEP_PRECOMPILED_HEADERS, the standard headers that cost most to parse, and those named,
# are parsed once for the whole target. What a file forgot to include is missed only where the option
# is off.
# Lockstep's own, named from its folder lockstep/, are among them with LOCKSTEP_PRECOMPILE_OWN alone:
# an edit to one rebuilds everything, and the compiler does not warn about what is in them.
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

# lockstep_precompiled_as(target owner): the target, built with the same flags, reads the owner's.
function(lockstep_precompiled_as target owner)
  if(LOCKSTEP_PRECOMPILED_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# ccache keeps what was compiled so only if told that macros and times of a header do not matter, and
# if the preprocessor names the precompiled file.
if(LOCKSTEP_PRECOMPILED_HEADERS AND CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
