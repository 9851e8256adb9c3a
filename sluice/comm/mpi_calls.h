// mpi_calls.h - MPI's C interface with errors as exceptions. Included by mpi.cc and its tests
// alone.
#pragma once

#define OMPI_SKIP_MPICXX 1  // only C: the C++ bindings are gone from the standard
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <string>

#include "sluice/common/errors.h"

namespace sluice {

/// Throws: CommError with MPI's own words unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(fmt::format("{} failed: {}", call, text.data()));
}

/// Whether a request is over. Once true, `request` is MPI_REQUEST_NULL and stays true.
inline bool test(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, status), "MPI_Test");
  return done != 0;
}

}  // namespace sluice
