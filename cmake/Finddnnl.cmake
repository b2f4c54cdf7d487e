# Finds oneDNN by its header and library: DNNL::dnnl. The package's own configuration file insists
# on OpenCL's headers wherever it was built with a GPU engine, which nothing here uses.
find_path(dnnl_INCLUDE_DIR dnnl.hpp)
find_library(dnnl_LIBRARY dnnl)
mark_as_advanced(dnnl_INCLUDE_DIR dnnl_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR)

if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${dnnl_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${dnnl_INCLUDE_DIR})
endif()
