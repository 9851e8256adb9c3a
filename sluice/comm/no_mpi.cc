// The stub of mpi.h in a build without MPI.
#include "sluice/comm/mpi.h"
#include "sluice/common/errors.h"

namespace sluice {

struct MpiSession::State {};

bool MpiSession::available() { return false; }
bool MpiSession::moves_device_memory() { return false; }

MpiSession::MpiSession() {
  throw InvalidArgument(
      "run.transport = \"mpi\": this sluice was built without MPI; install it (Debian: "
      "libopenmpi-dev, openmpi-bin) and configure with -DSLUICE_WITH_MPI=ON, or set "
      "run.transport = \"threads\"");
}

MpiSession::~MpiSession() = default;
int MpiSession::rank() const { return 0; }
int MpiSession::size() const { return 1; }
std::unique_ptr<Transport> MpiSession::connect(const MpiOptions& /*options*/) { return nullptr; }

}  // namespace sluice
