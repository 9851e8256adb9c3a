# sluice_gtest_program(TARGET LABELS <ctest labels> [SHARDS N] [PREFIX P]): adds the tests of a GoogleTest
# program to ctest, as N runs of the whole program, each with every N-th of its tests. A process per
# test would load libtorch a thousand times. Each run leaves build/results/NAME.xml, which
# scripts/test.sh counts.
function(sluice_gtest_program target)
  cmake_parse_arguments(ARG "" "SHARDS;PREFIX" "LABELS" ${ARGN})
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  # What takes time in a test is the library; test sources themselves compile four times faster this
  # way under sanitizers, and a third faster without.
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "_test\\.cc$|_for_tests\\.cc$")
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -O0)
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(name ${ARG_PREFIX}${target})
    if(ARG_SHARDS GREATER 1)
      string(APPEND name "_${shard}")
    endif()
    add_test(NAME ${name} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS};gtest" TIMEOUT 900
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard};GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/results/${name}.xml")
  endforeach()
endfunction()
