// The loops for any machine.
#include "sluice/model/kernels_cpu_loops.h"
#include "sluice/model/kernels_cpu_tables.h"

namespace sluice::detail {

const CpuKernels<float> kBaselineFloat = kLoops<float>;
const CpuKernels<double> kBaselineDouble = kLoops<double>;

}  // namespace sluice::detail
