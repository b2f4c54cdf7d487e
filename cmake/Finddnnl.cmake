# Finds oneDNN 2 or 3 by its header and library; defines DNNL::dnnl and dnnl_VERSION_MAJOR. The
# package's own configuration file requires OpenCL's headers if oneDNN was built with a GPU engine,
# which Lockstep does not use.
find_path(dnnl_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(dnnl_LIBRARY dnnl)
mark_as_advanced(dnnl_INCLUDE_DIR dnnl_LIBRARY)

set(version_header ${dnnl_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
if(dnnl_INCLUDE_DIR AND EXISTS ${version_header})
  file(STRINGS ${version_header} version_lines REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  foreach(part MAJOR MINOR PATCH)
    string(REGEX REPLACE ".*DNNL_VERSION_${part} +([0-9]+).*" "\\1" dnnl_VERSION_${part}
           "${version_lines}")
  endforeach()
  set(dnnl_VERSION ${dnnl_VERSION_MAJOR}.${dnnl_VERSION_MINOR}.${dnnl_VERSION_PATCH})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR
                                  VERSION_VAR dnnl_VERSION HANDLE_VERSION_RANGE)

if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${dnnl_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${dnnl_INCLUDE_DIR})
endif()
