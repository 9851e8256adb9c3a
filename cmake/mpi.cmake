# The MPI transport, or its stub: exactly one of mpi.cc and no_mpi.cc is compiled. SLUICE_MPI_FOUND and
# sluice_mpi_test(NAME RANKS PROGRAM [ARGUMENT...]) are for tests.
set(SLUICE_MPI_FOUND OFF)
if(SLUICE_WITH_MPI AND NOT SLUICE_SANITIZE)  # MPI libraries are full of finds that are not ours
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI 3.1 COMPONENTS CXX)
  set(SLUICE_MPI_FOUND ${MPI_CXX_FOUND})
  if(NOT SLUICE_MPI_FOUND)
    message(STATUS "no MPI: run.transport = \"mpi\" will not work in this build")
  endif()
endif()
if(SLUICE_MPI_FOUND)
  set_source_files_properties(sluice/comm/no_mpi.cc PROPERTIES HEADER_FILE_ONLY ON)
  target_link_libraries(sluice_comm PRIVATE MPI::MPI_CXX)
else()
  set_source_files_properties(sluice/comm/mpi.cc PROPERTIES HEADER_FILE_ONLY ON)
endif()

# Runs PROGRAM on RANKS processes. They spin while they wait: few at a time.
function(sluice_mpi_test name ranks program)
  add_test(NAME ${name}
           COMMAND ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe ${MPIEXEC_NUMPROC_FLAG}
                   ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${program}> ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS 2)
endfunction()
