#include "sluice/model/gemm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <dlfcn.h>

#include <array>
#include <type_traits>

namespace sluice {
namespace {

// The Fortran interface with 32-bit integers, which MKL and OpenBLAS share.
template <typename T>
using BlasGemm = void (*)(const char*, const char*, const int*, const int*, const int*, const T*,
                          const T*, const int*, const T*, const int*, const T*, T*, const int*);

template <typename T>
BlasGemm<T> find_blas() {
  static const auto found = reinterpret_cast<BlasGemm<T>>(
      dlsym(RTLD_DEFAULT, std::is_same_v<T, float> ? "sgemm_" : "dgemm_"));
  return found;
}

}  // namespace

template <typename T>
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
          T alpha, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c,
          std::int64_t ldc) {
  const BlasGemm<T> blas = find_blas<T>();
  if (blas == nullptr) {
    detail::gemm_by_tensors(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  // BLAS counts columns first: it sees the transposes, so C^T = op(B)^T op(A)^T.
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), depth = static_cast<int>(k);
  const int lead_a = static_cast<int>(lda), lead_b = static_cast<int>(ldb);
  const int lead_c = static_cast<int>(ldc);
  blas(transpose_b ? "T" : "N", transpose_a ? "T" : "N", &rows, &columns, &depth, &alpha, b,
       &lead_b, a, &lead_a, &beta, c, &lead_c);
}

bool gemm_uses_blas() { return find_blas<float>() != nullptr && find_blas<double>() != nullptr; }

namespace detail {

template <typename T>
void gemm_by_tensors(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                     std::int64_t k, T alpha, const T* a, std::int64_t lda, const T* b,
                     std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value);
  // from_blob wants writable memory; the operands are only read.
  const auto view = [&](const T* data, std::int64_t rows, std::int64_t columns, std::int64_t lead,
                        bool transpose) {
    const std::array<std::int64_t, 2> strides = {transpose ? 1 : lead, transpose ? lead : 1};
    return at::from_blob(const_cast<T*>(data), {rows, columns}, strides, options);
  };
  at::Tensor out = view(c, m, n, ldc, false);
  at::addmm_out(out, out, view(a, m, k, lda, transpose_a), view(b, k, n, ldb, transpose_b), beta,
                alpha);
}

template void gemm_by_tensors(bool, bool, std::int64_t, std::int64_t, std::int64_t, float,
                              const float*, std::int64_t, const float*, std::int64_t, float, float*,
                              std::int64_t);
template void gemm_by_tensors(bool, bool, std::int64_t, std::int64_t, std::int64_t, double,
                              const double*, std::int64_t, const double*, std::int64_t, double,
                              double*, std::int64_t);

}  // namespace detail

template void gemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, float, const float*,
                   std::int64_t, const float*, std::int64_t, float, float*, std::int64_t);
template void gemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, double, const double*,
                   std::int64_t, const double*, std::int64_t, double, double*, std::int64_t);

}  // namespace sluice
