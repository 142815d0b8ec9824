# quire_embed_files(NAME quire_story NAMESPACE a::b FUNCTION F TYPE T HEADER x/y.h DIR folder FILES a b):
# creates an object library with the bytes of the files.
#
# HEADER declares `std::vector<T> F()` and defines T{name, bytes}. The bytes are in the read-only data of the binary,
# 64-byte aligned, so that tensors are used in place.
function(quire_embed_files)
  cmake_parse_arguments(EMBED "" "NAME;NAMESPACE;FUNCTION;HEADER;TYPE;DIR" "FILES" ${ARGN})
  set(assembly)
  set(declarations)
  set(entries)
  set(inputs)
  set(index 0)
  foreach(file IN LISTS EMBED_FILES)
    set(symbol ${EMBED_NAME}_${index})
    set(path ${EMBED_DIR}/${file})
    list(APPEND inputs ${path})
    string(APPEND assembly
           "asm(\".section .rodata\\n\"\n"
           "    \".balign 64\\n\"\n"
           "    \".global ${symbol}\\n${symbol}:\\n\"\n"
           "    \".incbin \\\"${path}\\\"\\n\"\n"
           "    \".global ${symbol}_end\\n${symbol}_end:\\n\"\n"
           "    \".byte 0\\n.previous\\n\");\n")
    string(APPEND declarations "extern const std::byte ${symbol}[], ${symbol}_end[];\n")
    string(APPEND entries
           "    {\"${file}\", std::span<const std::byte>(${symbol}, ${symbol}_end)},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${EMBED_NAME}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT
"#include \"${EMBED_HEADER}\"

#include <cstddef>
#include <span>
#include <vector>

${assembly}
extern \"C\" {
${declarations}}

namespace ${EMBED_NAMESPACE} {

std::vector<${EMBED_TYPE}> ${EMBED_FUNCTION}() {
  return {
${entries}  };
}

}  // namespace ${EMBED_NAMESPACE}
" @ONLY)
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${inputs}")
  add_library(${EMBED_NAME} OBJECT ${source})
  # A unity build ignores OBJECT_DEPENDS, so it would not recompile after a change of the files.
  set_target_properties(${EMBED_NAME} PROPERTIES UNITY_BUILD OFF)
  target_include_directories(${EMBED_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()
