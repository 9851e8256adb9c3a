#include "sluice/model/kernels_cpu.h"

#include "sluice/model/kernels_cpu_tables.h"

namespace sluice {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

}  // namespace

template <>
const CpuKernels<float>& cpu_kernels<float>() {
  static const CpuKernels<float>& chosen = has_avx2() ? detail::kAvx2Float : detail::kBaselineFloat;
  return chosen;
}

template <>
const CpuKernels<double>& cpu_kernels<double>() {
  static const CpuKernels<double>& chosen =
      has_avx2() ? detail::kAvx2Double : detail::kBaselineDouble;
  return chosen;
}

int num_cpu_kernel_tables() { return has_avx2() ? 2 : 1; }

template <>
NamedCpuKernels<float> cpu_kernel_table<float>(int index) {
  return index == 0 ? NamedCpuKernels<float>{"baseline", &detail::kBaselineFloat}
                    : NamedCpuKernels<float>{"avx2", &detail::kAvx2Float};
}

template <>
NamedCpuKernels<double> cpu_kernel_table<double>(int index) {
  return index == 0 ? NamedCpuKernels<double>{"baseline", &detail::kBaselineDouble}
                    : NamedCpuKernels<double>{"avx2", &detail::kAvx2Double};
}

}  // namespace sluice
