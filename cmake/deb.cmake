# The Debian package of what is installed, for the machine that the C compiler builds for.
set(machine "${CMAKE_SYSTEM_PROCESSOR}")
string(REPLACE x86_64 amd64 machine "${machine}")
string(REPLACE aarch64 arm64 machine "${machine}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME trtalloc)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "the developers of trtalloc")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "GPU memory allocator for TensorRT")
set(CPACK_PACKAGE_DESCRIPTION
    "A stream-ordered pool on virtual memory behind nvinfer1::IGpuAllocator:\nthe library, its headers, and the command trtalloc.")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE "${machine}")
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)

# Built for this machine's own glibc, the package needs that one.
set(glibc 2.28)
if(NOT TRTALLOC_PORTABLE)
  execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE glibc OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "glibc " "" glibc "${glibc}")
endif()
# The second name of libgcc_s is that of Debian 10.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${glibc}), libgcc-s1 | libgcc1")

# The loader's cache is written again when the library comes and goes, and other packages may depend on it.
set(control "${CMAKE_CURRENT_BINARY_DIR}/deb")
file(WRITE "${control}/triggers" "activate-noawait ldconfig\n")
string(REGEX MATCH "[0-9.]+$" soversion "${soname}")
file(WRITE "${control}/shlibs" "libtrtalloc ${soversion} trtalloc (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${control}/triggers;${control}/shlibs")
include(CPack)
