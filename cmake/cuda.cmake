# QUIRE_CUDA=AUTO|ON|OFF, and how kernels are compiled. Each source of quire_cuda_kernels is built twice:
#
#   quire_kernels_cuda           by nvcc, for GPUs
#   quire_kernels_cuda_emulated  by the host compiler, for the tests, against the emulator's twins of
#                                kernels/cuda/*.cuh (tests/cuda_emulator)
#
# An executable links the CUDA runtime and the first, unless its property QUIRE_EMULATED is set: then the
# emulator and the second.
set(QUIRE_HAS_CUDA OFF)
if(NOT QUIRE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know the flag of nvcc 12 on
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    # CMake 3.25 sets a property of this library, which CUDA 13 has no more.
    if(NOT TARGET CUDA::nvToolsExt)
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit 13.0 REQUIRED)
    set(QUIRE_HAS_CUDA ON)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/nvcc_report.sh)
    if(QUIRE_CCACHE)
      list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${QUIRE_CCACHE})
    endif()
  elseif(QUIRE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_CUDA=ON, but no nvcc was found; put it on PATH or set CUDACXX")
  endif()
endif()
if(QUIRE_HAS_CUDA)
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}")
else()
  message(STATUS "CUDA: no (QUIRE_CUDA=${QUIRE_CUDA}), the build holds the CPU backend only")
endif()

# Architectures are written out: CMake's own list cannot express "90a for these files only".
set(QUIRE_PORTABLE_ARCHS "-gencode=arch=compute_80,code=[sm_80,compute_80]"
                         "-gencode=arch=compute_90,code=sm_90")
set(QUIRE_SM90_ARCHS "-gencode=arch=compute_90a,code=sm_90a")
set(QUIRE_NVCC_FLAGS --expt-relaxed-constexpr --Werror=all-warnings
                     -Xcompiler=-Wall,-Wextra -Xptxas=-v,-warn-spills,-warn-lmem-usage,-Werror)

# quire_cuda_kernels(HDRS cuda/x.cuh PORTABLE x_cuda.cu SM90 x_sm90.cu DEPS quire::base): the two libraries.
function(quire_cuda_kernels)
  cmake_parse_arguments(KERNELS "" "" "HDRS;PORTABLE;SM90;DEPS" ${ARGN})
  set(all ${KERNELS_PORTABLE} ${KERNELS_SM90})
  add_library(quire_kernels_cuda STATIC ${all} ${KERNELS_HDRS})
  set_target_properties(quire_kernels_cuda PROPERTIES CUDA_ARCHITECTURES OFF)
  target_include_directories(quire_kernels_cuda PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(quire_kernels_cuda PRIVATE ${QUIRE_NVCC_FLAGS})
  foreach(source IN LISTS KERNELS_PORTABLE)
    set_property(SOURCE ${source} PROPERTY COMPILE_OPTIONS "${QUIRE_PORTABLE_ARCHS}")
  endforeach()
  foreach(source IN LISTS KERNELS_SM90)
    set_property(SOURCE ${source} PROPERTY COMPILE_OPTIONS "${QUIRE_SM90_ARCHS}")
  endforeach()
  target_link_libraries(quire_kernels_cuda PUBLIC ${KERNELS_DEPS})

  if(QUIRE_TESTS)
    set(copies)
    foreach(source IN LISTS all)
      set(copy ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source}.cc)
      file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"kernels/${source}\"\n" @ONLY)
      list(APPEND copies ${copy})
    endforeach()
    add_library(quire_kernels_cuda_emulated STATIC ${copies})
    # BEFORE: the emulator's headers hide those of the same name.
    target_include_directories(quire_kernels_cuda_emulated BEFORE
                               PRIVATE ${PROJECT_SOURCE_DIR}/tests/cuda_emulator/include)
    target_include_directories(quire_kernels_cuda_emulated PRIVATE ${PROJECT_SOURCE_DIR})
    target_compile_options(quire_kernels_cuda_emulated PRIVATE -Wall -Wextra -Werror
                           -Wno-unknown-pragmas -Wno-psabi -ffp-contract=off)
    target_link_libraries(quire_kernels_cuda_emulated PUBLIC ${KERNELS_DEPS}
                          PRIVATE quire_cuda_emulator)
  endif()
endfunction()
