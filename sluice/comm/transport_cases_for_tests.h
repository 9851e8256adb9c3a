// transport_cases_for_tests.h - what every transport must do, as bodies that all ranks run. The
// tests of threads (local_test.cc) and of processes (mpi_test.cc) run the same ones.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <iosfwd>
#include <string>
#include <vector>

#include "sluice/comm/transport.h"

namespace sluice {

struct TransportCase {
  std::string name;
  int min_ranks = 2;
  std::chrono::milliseconds timeout{60000};
  bool rendezvous = false;
  void (*body)(Transport&) = nullptr;
};

void PrintTo(const TransportCase& one, std::ostream* out);

const std::vector<TransportCase>& transport_cases();

}  // namespace sluice
