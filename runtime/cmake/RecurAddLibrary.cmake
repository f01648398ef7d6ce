# recur_add_library(TARGET SPEC file.rec [NAME name] [BIND dk=128 dv=128 ..] [TARGETS x86-64-v3 ..]
#                   [DTYPE f32 ..] [OPTIONS option ..] [SHARED])
#
# Compiles a spec with recurc and makes the static library TARGET from the object. What links TARGET can include
# NAME.h and gets Recur::rt. With SHARED it is a shared library that has Recur::rt in it, as the Python package loads
# it. NAME is the rule's name and that of the files, by default the spec file's; the
# other lists are recurc's --bind, --target and --dtype, and OPTIONS are handed on as they are. The object is
# made again when the spec, a file that it reads, or recurc changes.
function(recur_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "SHARED" "SPEC;NAME" "BIND;TARGETS;DTYPE;OPTIONS")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "recur_add_library(${target}): unknown argument '${ARG_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT ARG_SPEC)
    message(FATAL_ERROR "recur_add_library(${target}): SPEC is missing")
  endif()
  get_filename_component(spec ${ARG_SPEC} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  set(options ${ARG_OPTIONS})
  if(ARG_NAME)
    list(APPEND options --name=${ARG_NAME})
  else()
    get_filename_component(ARG_NAME ${spec} NAME_WE)
  endif()
  foreach(pair BIND:bind TARGETS:target DTYPE:dtype)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 list)
    list(GET pair 1 option)
    if(ARG_${list})
      list(JOIN ARG_${list} "," values)
      list(APPEND options --${option}=${values})
    endif()
  endforeach()

  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}.recur)
  file(MAKE_DIRECTORY ${folder})
  set(base ${folder}/${ARG_NAME})
  add_custom_command(
    OUTPUT ${base}.o ${base}.h
    COMMAND Recur::recurc ${spec} ${options} -o ${base}.o -MD -MF ${base}.d
    DEPENDS ${spec} Recur::recurc
    DEPFILE ${base}.d
    COMMENT "Compiling rule ${ARG_NAME}"
    VERBATIM)
  set(kind STATIC)
  if(ARG_SHARED)
    set(kind SHARED)
  endif()
  add_library(${target} ${kind} ${base}.o ${base}.h)
  set_source_files_properties(${base}.o PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(${target} INTERFACE ${folder})
  if(ARG_SHARED)
    target_link_libraries(${target} PRIVATE Recur::rt)
    target_include_directories(${target} INTERFACE $<TARGET_PROPERTY:Recur::rt,INTERFACE_INCLUDE_DIRECTORIES>)
  else()
    target_link_libraries(${target} PUBLIC Recur::rt)
  endif()
endfunction()
