# `cmake --install` installs the modules' libraries and headers, the program, and a package for
# find_package(Lockstep). Lockstep::lockstep links all modules.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY LOCKSTEP_ROOMS)
add_library(lockstep INTERFACE)
add_library(Lockstep::lockstep ALIAS lockstep)
target_link_libraries(lockstep INTERFACE ${rooms})

install(TARGETS lockstep ${rooms} lockstep_cli EXPORT LockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY lockstep/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep
        FILES_MATCHING PATTERN "*.h"
        PATTERN cli EXCLUDE)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Programs that link Lockstep must find the backends that this build found.
get_target_property(kernel_links lockstep_kernels LINK_LIBRARIES)
set(LOCKSTEP_NEEDS_ONEDNN OFF)
if("DNNL::dnnl" IN_LIST kernel_links)
  set(LOCKSTEP_NEEDS_ONEDNN ON)
endif()

set(LOCKSTEP_NEEDS_GRPC ${LOCKSTEP_HAS_GRPC})
get_target_property(comm_links lockstep_comm LINK_LIBRARIES)
foreach(wire IN ITEMS GLOO MPI)
  set(LOCKSTEP_NEEDS_${wire} OFF)
endforeach()
if("gloo" IN_LIST comm_links)
  set(LOCKSTEP_NEEDS_GLOO ON)
endif()
if("MPI::MPI_CXX" IN_LIST comm_links)
  set(LOCKSTEP_NEEDS_MPI ON)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/Finddnnl.cmake
        DESTINATION ${package_dir})
