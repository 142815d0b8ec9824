# QUIRE_CUDA=AUTO|ON|OFF and the compilation of kernels. Kernels of a component are built twice, each time into a library
# that also has the component's C++ objects:
#
#   quire_NAME_gpu       by nvcc, for GPUs
#   quire_NAME_emulated  by the host compiler, for the tests, with the host emulation of kernels/cuda/*.cuh
#                        (tests/cuda_emulator)
#
# An executable links the CUDA runtime and the first library, or the emulator and the second one if its property
# QUIRE_EMULATED is set.
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
    # CMake 3.25 sets a property of this library, which CUDA 13 does not have.
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
  message(STATUS "CUDA: no (QUIRE_CUDA=${QUIRE_CUDA}), building only the CPU backend")
endif()

# Architectures are listed explicitly: CMake's own list cannot express "90a for these files only".
set(QUIRE_CUDA_ARCHS "80+ptx,90a" CACHE STRING
    "Targets of the portable kernels, in commas: 80+ptx (later GPUs compile its PTX), 80, 90a (that is 9.0)")
set(QUIRE_PORTABLE_ARCHS)
string(REPLACE "," ";" archs "${QUIRE_CUDA_ARCHS}")
foreach(arch IN LISTS archs)
  if(arch STREQUAL "80+ptx")
    list(APPEND QUIRE_PORTABLE_ARCHS "-gencode=arch=compute_80,code=[sm_80,compute_80]")
  elseif(arch MATCHES "^([0-9]+)a?$")
    set(arch ${CMAKE_MATCH_1})
    list(APPEND QUIRE_PORTABLE_ARCHS "-gencode=arch=compute_${arch},code=sm_${arch}")
  else()
    message(FATAL_ERROR "QUIRE_CUDA_ARCHS: ${arch} is not one of 80+ptx, 80, 90a")
  endif()
endforeach()
set(QUIRE_SM90_ARCHS "-gencode=arch=compute_90a,code=sm_90a")
set(QUIRE_NVCC_FLAGS --expt-relaxed-constexpr --Werror=all-warnings
                     -Xcompiler=-Wall,-Wextra -Xptxas=-v,-warn-spills,-warn-lmem-usage,-Werror)

# g++ calls a hook of its thread sanitizer before each memory access; the emulator implements these hooks and reports source
# lines (tests/cuda_emulator/access_hooks.cc). The rest of the sanitizer is not linked, so headers must not depend on it.
# Structs are not split, so that a vector stays one access. Kernels call fused multiply-add explicitly, which is a function
# call without the instruction.
set(QUIRE_EMULATED_FLAGS -Wno-unknown-pragmas -Wno-psabi -ffp-contract=off -g1 -fsanitize=thread -fno-tree-sra
                         --param=tsan-instrument-func-entry-exit=0 -U__SANITIZE_THREAD__)
if(QUIRE_HAS_CUDA)
  include(CheckCXXSourceRuns)
  set(CMAKE_REQUIRED_FLAGS -mfma)
  check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"fma\") ? 0 : 1; }" QUIRE_HAS_FMA)
  unset(CMAKE_REQUIRED_FLAGS)
  if(QUIRE_HAS_FMA)
    list(APPEND QUIRE_EMULATED_FLAGS -mfma)
  endif()
endif()

# quire_cuda_libraries(NAME kernels_x PORTABLE x_cuda.cu SM90 x_sm90.cu SEES base LIBS quire::base): creates the two
# libraries from the objects in quire_kernels_x_objects and the kernels, and the alias for the one that a program needs.
function(quire_cuda_libraries)
  cmake_parse_arguments(CUDA "" "NAME" "PORTABLE;SM90;SEES;LIBS" ${ARGN})
  set(target quire_${CUDA_NAME})
  set(all ${CUDA_PORTABLE} ${CUDA_SM90})
  add_library(${target}_gpu STATIC $<TARGET_OBJECTS:${target}_objects> ${all})
  set_target_properties(${target}_gpu PROPERTIES CUDA_ARCHITECTURES OFF)
  _quire_sees(${target}_gpu ${CUDA_SEES})
  target_compile_options(${target}_gpu PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${QUIRE_NVCC_FLAGS}>)
  set_property(SOURCE ${CUDA_PORTABLE} PROPERTY COMPILE_OPTIONS "${QUIRE_PORTABLE_ARCHS}")
  if(CUDA_SM90)
    set_property(SOURCE ${CUDA_SM90} PROPERTY COMPILE_OPTIONS "${QUIRE_SM90_ARCHS}")
  endif()
  target_link_libraries(${target}_gpu PUBLIC ${CUDA_LIBS})
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE
    $<IF:$<BOOL:$<TARGET_PROPERTY:QUIRE_EMULATED>>,${target}_emulated,${target}_gpu>)
  if(NOT QUIRE_TESTS)
    return()
  endif()
  set(copies)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(source IN LISTS all)
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source}.cc)
    file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${folder}/${source}\"\n" @ONLY)
    list(APPEND copies ${copy})
  endforeach()
  add_library(${target}_emulated STATIC $<TARGET_OBJECTS:${target}_objects> ${copies})
  # BEFORE, so that the emulator's headers hide other headers of the same name. The copies include their sources by path.
  target_include_directories(${target}_emulated BEFORE
                             PRIVATE ${PROJECT_SOURCE_DIR}/tests/cuda_emulator/include)
  target_include_directories(${target}_emulated PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${target}_emulated PRIVATE -Wall -Wextra -Werror ${QUIRE_EMULATED_FLAGS})
  target_link_libraries(${target}_emulated PUBLIC ${CUDA_LIBS} PRIVATE quire_cuda_emulator)
endfunction()
