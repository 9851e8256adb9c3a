// The loops for x86 machines with AVX2 and FMA; CMake gives this file those flags. On other
// machines it compiles to the baseline and is not chosen.
#include "sluice/model/kernels_cpu_loops.h"
#include "sluice/model/kernels_cpu_tables.h"

namespace sluice::detail {

const CpuKernels<float> kAvx2Float = kLoops<float>;
const CpuKernels<double> kAvx2Double = kLoops<double>;

}  // namespace sluice::detail
