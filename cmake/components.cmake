# Components: a folder's sources as one target, which can include only headers of the components that it lists.
#
# quire_component(NAME text_chat HDRS a.h SRCS a.cc DEPS base text_tokenizer LIBS absl::strings)
#
# creates the library quire_text_chat with the alias quire::text_chat. Headers are included by their path from the
# repository's root ("text/chat/a.h"), but the root is on no include path. Every component has an include root in the
# build folder with links to its HDRS, and a target compiles with its own root and those of its DEPS. These roots are not
# passed on, so a missing DEP does not compile. Libraries to link (LIBS and those of DEPS) are passed on.
#
# Without SRCS the library is an interface. With CUDA, CUDA_HOST lists further C++ sources; CUDA_PORTABLE and CUDA_SM90
# list kernels (cuda.cmake). Then there are two libraries with the same C++ objects, one with kernels for GPUs and one with
# kernels for the emulator. quire_NAME stands for the one that the linked program needs.
set(QUIRE_WARNINGS -Wall -Wextra -Wconversion -Werror $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

function(_quire_common_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${QUIRE_WARNINGS}>)
  # Sanitizer builds use -O1, because otherwise one large test compiles for minutes. With a sanitizer, g++ 12 reports
  # inactive members of variants as uninitialized.
  if(QUIRE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
    string(TOUPPER ${QUIRE_SANITIZE} sanitizer)  # clang 14 lacks these macros of g++, which base/check.h reads
    target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:__SANITIZE_${sanitizer}__=1>)
  endif()
  if(QUIRE_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
    # Adds coverage instrumentation for libFuzzer (tests/fuzz), which has no effect in other programs. Warnings of clang
    # are not errors here, because scripts/lint checks them.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fsanitize=fuzzer-no-link>
                           $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-error>)
  elseif(QUIRE_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread -fno-omit-frame-pointer -O1 -g1)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
endfunction()

# _quire_include_root(NAME header...): creates links to the headers of this folder for targets that list NAME.
function(_quire_include_root name)
  set(root ${CMAKE_BINARY_DIR}/include/${name})
  file(REMOVE_RECURSE ${root})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(header IN LISTS ARGN)
    get_filename_component(path ${root}/${folder}/${header} DIRECTORY)
    file(MAKE_DIRECTORY ${path})
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${header} ${root}/${folder}/${header} SYMBOLIC)
  endforeach()
endfunction()

# _quire_sees(TARGET name...): adds the include roots of these components to TARGET.
function(_quire_sees target)
  foreach(name IN LISTS ARGN)
    if(name STREQUAL "proto")  # generated code follows its generator's rules, not our warnings
      target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_BINARY_DIR}/include/proto)
    else()
      target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/include/${name})
    endif()
  endforeach()
endfunction()

function(quire_component)
  cmake_parse_arguments(
    LIB "" "NAME" "HDRS;SRCS;CUDA_HDRS;CUDA_HOST;CUDA_PORTABLE;CUDA_SM90;DEPS;LIBS" ${ARGN})
  set(target quire_${LIB_NAME})
  set(libraries ${LIB_DEPS})
  list(TRANSFORM libraries PREPEND quire::)
  list(APPEND libraries ${LIB_LIBS})
  set(simd ${LIB_SRCS})  # sources that include themselves, once for each instruction set
  list(FILTER simd INCLUDE REGEX "_simd\\.cc$")
  _quire_include_root(${LIB_NAME} ${LIB_HDRS} ${LIB_CUDA_HDRS} ${simd})
  if(QUIRE_HAS_CUDA)
    list(APPEND LIB_SRCS ${LIB_CUDA_HOST})
  endif()
  if(NOT LIB_SRCS)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${libraries})
  elseif(QUIRE_HAS_CUDA AND (LIB_CUDA_PORTABLE OR LIB_CUDA_SM90))
    add_library(${target}_objects OBJECT ${LIB_SRCS})
    _quire_sees(${target}_objects ${LIB_NAME} ${LIB_DEPS})
    target_link_libraries(${target}_objects PRIVATE ${libraries})
    _quire_common_options(${target}_objects)
    quire_cuda_libraries(NAME ${LIB_NAME} PORTABLE ${LIB_CUDA_PORTABLE} SM90 ${LIB_CUDA_SM90}
                         SEES ${LIB_NAME} ${LIB_DEPS} LIBS ${libraries})
  else()
    add_library(${target} STATIC ${LIB_SRCS})
    _quire_sees(${target} ${LIB_NAME} ${LIB_DEPS})
    target_link_libraries(${target} PUBLIC ${libraries})
    _quire_common_options(${target})
  endif()
  add_library(quire::${LIB_NAME} ALIAS ${target})
  if(QUIRE_TESTS AND LIB_HDRS)
    set(alone ${LIB_SRCS})  # these headers are included first by their sources (style_check), so they need no check
    list(TRANSFORM alone REPLACE "\\.cc$" ".h")
    list(REMOVE_ITEM LIB_HDRS ${alone})
    _quire_header_check(${LIB_NAME} "${LIB_HDRS}" "${LIB_DEPS}" "${libraries}")
  endif()
endfunction()

# Compiles each header in a translation unit of its own. A header that needs another one first, or a component that is
# not listed, does not compile.
function(_quire_header_check name headers deps libraries)
  set(units)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(header IN LISTS headers)
    if(header MATCHES "-inl\\.h$")  # included once per instruction set, never alone
      continue()
    endif()
    string(MAKE_C_IDENTIFIER ${folder}/${header} unit)
    set(unit ${CMAKE_BINARY_DIR}/header_check/${unit}.cc)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${folder}/${header}\"\n" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  if(NOT units)
    return()
  endif()
  add_library(quire_${name}_headers OBJECT EXCLUDE_FROM_ALL ${units})
  _quire_sees(quire_${name}_headers ${name} ${deps})
  target_link_libraries(quire_${name}_headers PRIVATE ${libraries})
  target_compile_options(quire_${name}_headers PRIVATE ${QUIRE_WARNINGS} -fsyntax-only -Wno-unused)
  set_property(GLOBAL APPEND PROPERTY QUIRE_HEADER_CHECKS quire_${name}_headers)
endfunction()

# quire_binary(NAME quired HDRS x.h SRCS main.cc DEPS server LIBS CLI11::CLI11): an executable. It is a component of its
# own and can include its HDRS and those of its DEPS.
function(quire_binary)
  cmake_parse_arguments(BIN "" "NAME" "HDRS;SRCS;DEPS;LIBS" ${ARGN})
  set(libraries ${BIN_DEPS})
  list(TRANSFORM libraries PREPEND quire::)
  add_executable(${BIN_NAME} ${BIN_SRCS})
  _quire_include_root(binary_${BIN_NAME} ${BIN_HDRS})
  _quire_sees(${BIN_NAME} binary_${BIN_NAME} ${BIN_DEPS})
  target_link_libraries(${BIN_NAME} PRIVATE ${libraries} ${BIN_LIBS})
  _quire_common_options(${BIN_NAME})
endfunction()

# Sources of tests can include every header of the repository. tests/testing/paths.h has the paths of test data.
function(_quire_test_options target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_BINARY_DIR}/include/proto)
  # Test code is mostly GoogleTest macros and runs once, so -O1 halves its compile time (engine_test.cc: 10.8 s instead of
  # 19.8 s on two Zen 4 cores). The code under test is optimized as in a release. Precompiled headers and -g0 saved less
  # than a second per source.
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  # Test files have helpers of their own, so each source is compiled alone unless quire_compile_together lists it.
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  _quire_common_options(${target})
endfunction()

# quire_compile_together(a_test.cc b_test.cc): tests of one program without conflicting names. With QUIRE_UNITY_TESTS they
# are one translation unit; otherwise, for developers and clang-tidy, each is its own.
function(quire_compile_together)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP "${ARGV0}")
endfunction()

# quire_test_library(NAME quire_engine_testing SRCS harness.cc DEPS quire::engine): code that several tests share.
function(quire_test_library)
  cmake_parse_arguments(LIB "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(${LIB_NAME} STATIC ${LIB_SRCS})
  target_link_libraries(${LIB_NAME} PUBLIC ${LIB_DEPS})
  _quire_test_options(${LIB_NAME})
endfunction()

# quire_test(NAME cache_manager_test SRCS x_test.cc DEPS quire::cache LABELS unit TIMEOUT 60)
# The binary runs in tests/<folder>. EMULATED: CUDA devices are emulated (cmake/cuda.cmake), and the test can include
# tests/cuda_emulator/emulator.h. GPU: the same, and the objects are also linked as NAME_gpu, which runs on a real GPU,
# has the label gpu and is skipped without a GPU.
function(quire_test)
  cmake_parse_arguments(TEST "EMULATED;GPU" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 600)
  endif()
  if(NOT TEST_EMULATED AND NOT TEST_GPU)
    _quire_test_binary(${TEST_NAME} "${TEST_SRCS}" "${TEST_DEPS};GTest::gmock;GTest::gtest_main"
                       "${TEST_LABELS}" ${TEST_TIMEOUT})
    return()
  endif()
  set(sources ${TEST_SRCS})
  if(TEST_GPU)
    add_library(${TEST_NAME}_objects OBJECT ${TEST_SRCS})
    _quire_test_options(${TEST_NAME}_objects)
    target_link_libraries(${TEST_NAME}_objects PRIVATE ${TEST_DEPS} GTest::gmock)
    set(sources $<TARGET_OBJECTS:${TEST_NAME}_objects>)
    _quire_test_binary(${TEST_NAME}_gpu "${sources}" "${TEST_DEPS};GTest::gmock;quire_real_device"
                       gpu ${TEST_TIMEOUT})
    set_tests_properties(${TEST_NAME}_gpu PROPERTIES SKIP_RETURN_CODE 77 RUN_SERIAL ON)
    set_property(GLOBAL APPEND PROPERTY QUIRE_GPU_TESTS ${TEST_NAME}_gpu)
  endif()
  _quire_test_binary(${TEST_NAME} "${sources}"
                     "${TEST_DEPS};GTest::gmock;GTest::gtest_main;quire_cuda_emulator"
                     "${TEST_LABELS};emulated" ${TEST_TIMEOUT})
  set_target_properties(${TEST_NAME} PROPERTIES QUIRE_EMULATED ON)
endfunction()

set(QUIRE_SKIPPED_TESTS "" CACHE STRING "Tests that are neither built by default nor run")
set(QUIRE_TIMEOUT_FACTOR 1 CACHE STRING "How much longer than usual a test binary may take")
function(_quire_test_binary name sources libraries labels timeout)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${libraries} quire_testing)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  _quire_test_options(${name})
  if(name IN_LIST QUIRE_SKIPPED_TESTS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${name})
  math(EXPR timeout "${timeout} * ${QUIRE_TIMEOUT_FACTOR}")
  set(cost ${timeout})  # ctest starts costly tests first, so that no long one runs alone at the end
  if("emulated" IN_LIST labels AND cost LESS 600)
    set(cost 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} COST ${cost})
endfunction()
