// The cases of every transport over MPI: run under mpirun, every process runs every case.
#include <gtest/gtest.h>

#include <memory>

#include "sluice/comm/mpi.h"
#include "sluice/comm/transport_cases_for_tests.h"

namespace sluice {
namespace {

std::unique_ptr<MpiSession> session;

class MpiTransport : public ::testing::TestWithParam<TransportCase> {};

TEST_P(MpiTransport, Does) {
  const TransportCase& one = GetParam();
  if (session->size() < one.min_ranks) return;
  // Held up by this one until all have ended the case: those that wait for nothing would be ahead.
  const auto gate = session->connect();
  {
    const auto transport = session->connect({.timeout = one.timeout, .rendezvous = one.rendezvous});
    one.body(*transport);
    gate->barrier();
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MpiTransport, ::testing::ValuesIn(transport_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  sluice::session = std::make_unique<sluice::MpiSession>();
  const int result = RUN_ALL_TESTS();
  sluice::session.reset();
  return result;
}
