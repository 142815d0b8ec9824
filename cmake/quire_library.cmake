# The three functions that make every target of quire. A target's DEPS are the layers it may include;
# tools/checks/layer_check.py proves the same rule on the text of the includes.

set(QUIRE_WARNINGS -Wall -Wextra -Wconversion -Werror)

function(_quire_common_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${QUIRE_WARNINGS}>)
  # -O1 under a sanitizer: the compiler needs minutes for one large test otherwise. Its checks make g++ 12 take what
  # variants leave open for values that were never set.
  if(QUIRE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  endif()
  if(QUIRE_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  elseif(QUIRE_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread -fno-omit-frame-pointer -O1 -g1)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
endfunction()

# quire_library(NAME quire_base HDRS a.h b.h SRCS a.cc DEPS absl::status): alias quire::base.
# Without SRCS the target is an interface. Every header is compiled alone by the test `headers`.
function(quire_library)
  cmake_parse_arguments(LIB "" "NAME" "HDRS;SRCS;DEPS" ${ARGN})
  string(REPLACE "quire_" "" short ${LIB_NAME})
  if(LIB_SRCS)
    add_library(${LIB_NAME} STATIC ${LIB_SRCS} ${LIB_HDRS})
    target_include_directories(${LIB_NAME} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${LIB_NAME} PUBLIC ${LIB_DEPS})
    _quire_common_options(${LIB_NAME})
  else()
    add_library(${LIB_NAME} INTERFACE)
    target_include_directories(${LIB_NAME} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${LIB_NAME} INTERFACE ${LIB_DEPS})
  endif()
  add_library(quire::${short} ALIAS ${LIB_NAME})
  if(QUIRE_TESTS AND LIB_HDRS)
    _quire_header_check(${LIB_NAME} "${LIB_HDRS}")
  endif()
endfunction()

# One translation unit per header that holds nothing but the include: a header that needs
# another one first does not compile.
function(_quire_header_check name headers)
  set(units)
  foreach(header IN LISTS headers)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    string(MAKE_C_IDENTIFIER ${path} unit)
    set(unit ${CMAKE_BINARY_DIR}/header_check/${unit}.cc)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${path}\"\n" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  add_library(${name}_headers OBJECT EXCLUDE_FROM_ALL ${units})
  target_link_libraries(${name}_headers PRIVATE ${name})
  target_compile_options(${name}_headers PRIVATE ${QUIRE_WARNINGS} -fsyntax-only -Wno-unused)
  set_property(GLOBAL APPEND PROPERTY QUIRE_HEADER_CHECKS ${name}_headers)
endfunction()

# quire_binary(NAME quired SRCS main.cc DEPS quire::server)
function(quire_binary)
  cmake_parse_arguments(BIN "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${BIN_NAME} ${BIN_SRCS})
  target_link_libraries(${BIN_NAME} PRIVATE ${BIN_DEPS})
  _quire_common_options(${BIN_NAME})
endfunction()

# quire_test(NAME cache_manager_test SRCS x_test.cc DEPS quire::cache LABELS unit TIMEOUT 60)
# The binary runs in tests/<folder>; QUIRE_TESTDATA names the folder of committed test data. EMULATED: CUDA
# devices are emulated (cmake/cuda.cmake); the test may include tests/cuda_emulator/emulator.h. GPU: as EMULATED, and the
# same objects once more as NAME_gpu on a real GPU, label gpu, skipped without one.
function(quire_test)
  cmake_parse_arguments(TEST "EMULATED;GPU" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
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
    set_tests_properties(${TEST_NAME}_gpu PROPERTIES SKIP_RETURN_CODE 77
                         ENVIRONMENT QUIRE_UNPROVEN=1 RUN_SERIAL ON)
  endif()
  _quire_test_binary(${TEST_NAME} "${sources}"
                     "${TEST_DEPS};GTest::gmock;GTest::gtest_main;quire_cuda_emulator"
                     "${TEST_LABELS};emulated" ${TEST_TIMEOUT})
  set_target_properties(${TEST_NAME} PROPERTIES QUIRE_EMULATED ON)
endfunction()

function(_quire_test_options target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE
                             QUIRE_TESTDATA="${PROJECT_SOURCE_DIR}/tests/testdata"
                             QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # -O1: what a test measures is the library under it, which keeps -O3; a test's own code is compiled once for every
  # time that it runs. docs/notes/build_time.md has the seconds.
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  _quire_common_options(${target})
endfunction()

function(_quire_test_binary name sources libraries labels timeout)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${libraries})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  _quire_test_options(${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout})
endfunction()
