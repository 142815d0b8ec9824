# The library for structured output: xgrammar 0.2.8, built from the sources that scripts/fetch_xgrammar unpacks under
# build/, or from an existing folder (-DQUIRE_XGRAMMAR=DIR). Without either, the daemon has no structured output; the
# configuration and GetServerInfo report that. Only one source of engine/constraint can include its headers
# (component_check). It is compiled without our warnings but with our sanitizers.
set(QUIRE_XGRAMMAR "" CACHE PATH "Sources of xgrammar 0.2.8; empty: those of scripts/fetch_xgrammar; OFF: none")
set(xgrammar "${QUIRE_XGRAMMAR}")
if(xgrammar STREQUAL "")
  set(xgrammar ${PROJECT_SOURCE_DIR}/build/xgrammar-0.2.8)
elseif(xgrammar AND NOT EXISTS ${xgrammar}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "QUIRE_XGRAMMAR: ${xgrammar} has no include/xgrammar/xgrammar.h")
endif()
if(xgrammar AND EXISTS ${xgrammar}/include/xgrammar/xgrammar.h)
  message(STATUS "structured output: xgrammar in ${xgrammar}")
  set(QUIRE_HAS_XGRAMMAR ON)
else()
  message(STATUS "structured output: not built; scripts/fetch_xgrammar fetches the library for it")
  set(QUIRE_HAS_XGRAMMAR OFF)
  return()
endif()

file(GLOB converters ${xgrammar}/cpp/converter_ext/*.cc)
file(GLOB sources ${xgrammar}/cpp/*.cc ${xgrammar}/cpp/support/*.cc)
list(APPEND sources ${converters})

# Patched copies replace some sources. xgrammar.patch explains its changes.
set(patch ${CMAKE_CURRENT_LIST_DIR}/xgrammar/xgrammar.patch)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${patch})
find_program(QUIRE_PATCH patch REQUIRED)
set(work ${PROJECT_BINARY_DIR}/xgrammar/work)
file(REMOVE_RECURSE ${work})
file(STRINGS ${patch} patched REGEX "^--- a/cpp/")
list(TRANSFORM patched REPLACE "^--- a/cpp/" "")
foreach(name IN LISTS patched)
  file(COPY ${xgrammar}/cpp/${name} DESTINATION ${work}/cpp)
endforeach()
execute_process(COMMAND ${QUIRE_PATCH} --quiet --strip=1 --fuzz=0 --directory=${work} --input=${patch}
                RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${patch} does not apply to ${xgrammar}: these are not the sources of xgrammar 0.2.8")
endif()
foreach(name IN LISTS patched)
  file(COPY_FILE ${work}/cpp/${name} ${PROJECT_BINARY_DIR}/xgrammar/${name} ONLY_IF_DIFFERENT)
  list(REMOVE_ITEM sources ${xgrammar}/cpp/${name})
  list(APPEND sources ${PROJECT_BINARY_DIR}/xgrammar/${name})
endforeach()

add_library(quire_xgrammar STATIC ${sources})
target_include_directories(quire_xgrammar SYSTEM PUBLIC ${xgrammar}/include ${xgrammar}/3rdparty/dlpack/include
                           PRIVATE ${xgrammar}/3rdparty/picojson ${xgrammar}/cpp ${CMAKE_CURRENT_LIST_DIR}/xgrammar)
# Its log messages go to our wrapper (LogMessageImpl) instead of standard error.
target_compile_definitions(quire_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                           XGRAMMAR_LOG_CUSTOMIZE=1)
set_target_properties(quire_xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD_BATCH_SIZE 6)
# Converters define the same local names.
set_source_files_properties(${converters} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
_quire_common_options(quire_xgrammar)
target_compile_options(quire_xgrammar PRIVATE -w -Wno-error)
