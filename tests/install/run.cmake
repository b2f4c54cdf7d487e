# Installs the build into a separate prefix, configures examples/ against it as a user would, and
# builds and runs every example. Called by ctest with -D SOURCE_DIR, BUILD_DIR, CXX, CXX_FLAGS and
# RELEASE_FLAGS.
set(work ${BUILD_DIR}/install-test)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work}/run)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
                  ERROR_VARIABLE output WORKING_DIRECTORY ${work}/run)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${work}/prefix)
# A copy, so that nothing else from the source tree is found.
file(COPY ${SOURCE_DIR}/examples DESTINATION ${work})
step(${CMAKE_COMMAND} -S ${work}/examples -B ${work}/build -G Ninja
     -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_CXX_COMPILER=${CXX}
     "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}" -DCMAKE_BUILD_TYPE=Release
     "-DCMAKE_CXX_FLAGS_RELEASE=${RELEASE_FLAGS}"
     -DCMAKE_RUNTIME_OUTPUT_DIRECTORY=${work}/bin)
step(${CMAKE_COMMAND} --build ${work}/build)

file(GLOB sources ${SOURCE_DIR}/examples/*.cpp)
if(NOT sources)
  message(FATAL_ERROR "there are no examples in ${SOURCE_DIR}/examples")
endif()
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  if(NOT EXISTS ${work}/bin/${name})
    message(FATAL_ERROR "examples/${name}.cpp was not built")
  endif()
  step(${work}/bin/${name} --quick)
  message(STATUS "examples/${name} ran")
endforeach()

step(${work}/prefix/bin/lockstep devices)
file(REMOVE_RECURSE ${work})
