# sluice_folder(NAME LABEL <ctest label> DEPENDS <targets> [TEST_DEPENDS <targets>])
# Makes the static library sluice_NAME from sluice/NAME/*.cc and the test program NAME_test from
# sluice/NAME/*_test.cc. The include edges that DEPENDS allows are the architecture; tests/layering
# proves that no file uses another one.
function(sluice_folder name)
  cmake_parse_arguments(ARG "" "LABEL" "DEPENDS;TEST_DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sluice/${name}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|_for_tests)\\.cc$")
  list(FILTER tests INCLUDE REGEX "(_test|_for_tests)\\.cc$")
  if(sources)
    add_library(sluice_${name} STATIC ${sources})
    target_link_libraries(sluice_${name} PUBLIC sluice_flags ${ARG_DEPENDS})
  else()
    add_library(sluice_${name} INTERFACE)
    target_link_libraries(sluice_${name} INTERFACE sluice_flags ${ARG_DEPENDS})
  endif()
  if(tests AND SLUICE_BUILD_TESTS)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE sluice_${name} ${ARG_TEST_DEPENDS} GTest::gtest
                          GTest::gtest_main)
    sluice_gtest_program(${name}_test LABELS ${ARG_LABEL} SHARDS 2)
  endif()
endfunction()
