// gemm.h - matrix product on raw pointers, for tiles too small to pay for tensor views.
#pragma once

#include <cstdint>

namespace sluice {

/// C_MN = alpha op(A) op(B) + beta C, all row-major with leading dimensions; A is [M,K] or, when
/// transposed, [K,M]; B is [K,N] or [N,K]. With beta 0, C is not read. Calls the BLAS inside
/// libtorch when the program exports one, and ATen otherwise. T is float or double.
template <typename T>
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
          T alpha, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c,
          std::int64_t ldc);

/// Whether gemm() found a BLAS; tests run both ways.
bool gemm_uses_blas();

namespace detail {
/// gemm() through ATen.
template <typename T>
void gemm_by_tensors(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                     std::int64_t k, T alpha, const T* a, std::int64_t lda, const T* b,
                     std::int64_t ldb, T beta, T* c, std::int64_t ldc);
}  // namespace detail

}  // namespace sluice
