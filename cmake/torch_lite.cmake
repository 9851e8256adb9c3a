# torch_lite: libtorch from a Python's torch wheel, CPU or CUDA, without find_package(Torch), nvcc or
# CUDA headers. torch_autograd adds the headers of torch/torch.h, for tests that use autograd as the
# oracle; the engine itself never includes them.
set(TORCH_PYTHON "" CACHE STRING "Python interpreter that has torch (default: .venv, then python3)")
if(NOT TORCH_PYTHON)
  if(NOT "$ENV{TORCH_PYTHON}" STREQUAL "")
    set(torch_python $ENV{TORCH_PYTHON})
  elseif(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
    set(torch_python ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  else()
    set(torch_python python3)
  endif()
else()
  set(torch_python ${TORCH_PYTHON})
endif()
string(CONCAT TORCH_QUERY
  "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, "
  "int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')")
execute_process(COMMAND ${torch_python} -c "${TORCH_QUERY}"
                OUTPUT_VARIABLE TORCH_INFO OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE TORCH_RESULT ERROR_VARIABLE TORCH_ERROR)
if(NOT TORCH_RESULT EQUAL 0)
  message(FATAL_ERROR "${torch_python} cannot import torch. Run `make` (it creates .venv with the "
          "pinned wheel), set TORCH_PYTHON, or configure with -DSLUICE_WITH_TORCH=OFF.\n${TORCH_ERROR}")
endif()
list(GET TORCH_INFO 0 TORCH_ROOT)
list(GET TORCH_INFO 1 TORCH_VERSION)
list(GET TORCH_INFO 2 TORCH_CXX11_ABI)
if(TORCH_VERSION VERSION_LESS 2.9)
  message(FATAL_ERROR "torch ${TORCH_VERSION} found, 2.9 or newer is needed (2.13.0 is tested)")
endif()
if(NOT TORCH_CXX11_ABI EQUAL 1)
  message(FATAL_ERROR "this torch was built without the C++11 ABI; take a wheel from 2.7 or newer")
endif()
message(STATUS "torch ${TORCH_VERSION} at ${TORCH_ROOT}")

# The wheel carries the headers of a {fmt} of its own, of another version than the library that
# everything links. This folder is searched before the wheel's and holds our {fmt} alone.
find_path(SLUICE_FMT_INCLUDE fmt/core.h REQUIRED NO_CACHE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fmt_first)
file(CREATE_LINK ${SLUICE_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/fmt_first/fmt SYMBOLIC)

add_library(torch_lite INTERFACE)
target_include_directories(torch_lite SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/fmt_first
                           ${TORCH_ROOT}/include)
target_compile_definitions(torch_lite INTERFACE USE_DISTRIBUTED AT_PER_OPERATOR_HEADERS)
target_link_libraries(torch_lite INTERFACE
  -Wl,--no-as-needed ${TORCH_ROOT}/lib/libtorch.so -Wl,--as-needed
  ${TORCH_ROOT}/lib/libtorch_cpu.so ${TORCH_ROOT}/lib/libc10.so)
target_link_options(torch_lite INTERFACE -Wl,-rpath,${TORCH_ROOT}/lib)

add_library(torch_autograd INTERFACE)
target_link_libraries(torch_autograd INTERFACE torch_lite)
target_include_directories(torch_autograd SYSTEM INTERFACE
                           ${TORCH_ROOT}/include/torch/csrc/api/include)
