// kernels_cpu_tables.h - the tables that kernels_cpu.cc chooses from. Not for other files.
#pragma once

#include "sluice/model/kernels_cpu.h"

namespace sluice::detail {

extern const CpuKernels<float> kBaselineFloat, kAvx2Float;
extern const CpuKernels<double> kBaselineDouble, kAvx2Double;

}  // namespace sluice::detail
