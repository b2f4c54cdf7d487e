# lockstep_room(name [INCLUDES room...] [SOURCES file...] [LINKS library...])
# Adds a module: the library of one folder below lockstep/, built from its *.cpp files and SOURCES
# in its subfolders. It may include the modules named in INCLUDES.
function(lockstep_room name)
  cmake_parse_arguments(ROOM "" "" "INCLUDES;SOURCES;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  list(TRANSFORM ROOM_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${name}/)
  add_library(lockstep_${name} STATIC ${sources} ${ROOM_SOURCES})
  add_library(Lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name}
                        POSITION_INDEPENDENT_CODE ON)
  target_include_directories(lockstep_${name} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(lockstep_${name} PUBLIC cxx_std_20)
  lockstep_warnings(lockstep_${name})
  list(TRANSFORM ROOM_INCLUDES PREPEND Lockstep::)
  target_link_libraries(lockstep_${name} PUBLIC ${ROOM_INCLUDES} ${ROOM_LINKS})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_ROOMS lockstep_${name})
  lockstep_together(lockstep_${name})
endfunction()

# With LOCKSTEP_TOGETHER, several files are compiled as one: a full build takes less than half the
# time, but a build after an edit takes longer. Names in the anonymous namespaces of a module, or of
# its tests, must then be unique.
function(lockstep_together target)
  if(LOCKSTEP_TOGETHER)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # GCC then warns as if the files were headers.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
  endif()
endfunction()

function(lockstep_warnings target)
  target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  # "omp simd" is a hint; Clang warns wherever it does not follow it, as in sanitizer builds.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-pass-failed>)
  endif()
  if(LOCKSTEP_WERROR)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
    # GCC 12 wrongly reports overlapping copies in every inlined "text" + string (its bug 105651).
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
      # With precompiled headers it wrongly reports overflows in the same code.
      if(LOCKSTEP_PRECOMPILED_HEADERS)
        target_compile_options(${target} PRIVATE
                               $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>)
      endif()
    endif()
  endif()
endfunction()
