# The preset aarch64, for scripts/check-aarch64: compiles for aarch64 on any machine and links no
# program. Included after project(). Of the libraries only headers are needed, and those in
# /usr/include are the same on every machine.
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_LINK_EXECUTABLE "${CMAKE_COMMAND} -E touch <TARGET>")

# Packages and libraries are found where this machine has its own.
execute_process(COMMAND g++ -print-multiarch OUTPUT_VARIABLE own OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
set(CMAKE_LIBRARY_ARCHITECTURE ${own})

# Some libraries have headers that differ between machines, such as jconfig.h, in a folder of this
# machine. So has the C library, and its headers must not be found here, or a source that needs x86
# would compile. Hence a folder with the former alone, which is searched last.
set(headers ${PROJECT_BINARY_DIR}/library-headers)
file(REMOVE_RECURSE ${headers})
file(MAKE_DIRECTORY ${headers})
file(GLOB names RELATIVE /usr/include/${own} /usr/include/${own}/*)
foreach(name ${names})
  if(NOT EXISTS /usr/aarch64-linux-gnu/include/${name})
    file(CREATE_LINK /usr/include/${own}/${name} ${headers}/${name} SYMBOLIC)
  endif()
endforeach()
add_compile_options(-idirafter ${headers})
