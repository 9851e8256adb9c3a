#include "sluice/model/attention_cpu.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <limits>

#include "sluice/common/errors.h"
#include "sluice/model/attention_tiles.h"
#include "sluice/model/gemm.h"
#include "sluice/model/kernels_cpu.h"

namespace sluice {
namespace {

// Sizes of one call. Tensors of queries are dense [B,T,H,S], so a head's rows lie H * S apart.
struct Sizes {
  std::int64_t batch, tokens, heads, kv_heads, size;
  std::int64_t most_keys = 0;  // of a slice
  std::int64_t tile_size() const { return score_tile_size(tokens, most_keys); }
  std::int64_t row_step() const { return heads * size; }
};

Sizes sizes_of(const at::Tensor& q_BTHS, const KeyValueSlices& slices) {
  Sizes sizes{q_BTHS.size(0), q_BTHS.size(1), q_BTHS.size(2), slices.k.front().size(1),
              q_BTHS.size(3)};
  // Row i of the last slice sees its columns 0..i, which is causal only on a square block.
  SLUICE_CHECK(slices.k.back().size(2) == sizes.tokens, "{} keys for {} queries",
               slices.k.back().size(2), sizes.tokens);
  SLUICE_CHECK(sizes.heads % sizes.kv_heads == 0);
  for (const at::Tensor& k_BKTS : slices.k) {
    sizes.most_keys = std::max(sizes.most_keys, k_BKTS.size(2));
  }
  return sizes;
}

// Keys or values of one head: rows `step` apart.
template <typename T>
struct HeadRows {
  T* data;
  std::int64_t step;
};

template <typename T>
HeadRows<T> head_rows(const at::Tensor& kv_BKTS, std::int64_t batch, std::int64_t head) {
  SLUICE_CHECK(kv_BKTS.stride(3) == 1);
  auto* data = const_cast<T*>(kv_BKTS.const_data_ptr<T>());
  return {data + batch * kv_BKTS.stride(0) + head * kv_BKTS.stride(1), kv_BKTS.stride(2)};
}

// Columns of a tile that its first row sees: all of an earlier slice, up to the diagonal of its
// own.
struct Tile {
  std::int64_t first, columns, first_visible;
};

// The next tile of a slice of `keys` keys from column `first` on; no columns: there is none.
Tile tile_at(std::int64_t first, std::int64_t keys, bool causal, std::int64_t first_row,
             std::int64_t rows) {
  const std::int64_t end = causal ? std::min(keys, first_row + rows) : keys;
  const std::int64_t columns = std::clamp<std::int64_t>(end - first, 0, kScoreColumns);
  return {first, columns, causal ? first_row - first + 1 : columns};
}

template <typename T>
void forward_block(const Sizes& sizes, const KeyValueSlices& slices, std::int64_t batch,
                   std::int64_t head, std::int64_t first_row, std::int64_t rows, const T* q,
                   T* scores, T* out, T* lse) {
  const CpuKernels<T>& loops = cpu_kernels<T>();
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(sizes.size)));
  const std::int64_t kv_head = head / (sizes.heads / sizes.kv_heads);
  std::array<T, kScoreRows> maximum, sum;
  maximum.fill(-std::numeric_limits<T>::infinity());
  sum.fill(T{0});
  bool fresh = true;
  for (std::size_t slice = slices.k.size(); slice-- > 0;) {
    const bool causal = slice + 1 == slices.k.size();
    const HeadRows<T> k = head_rows<T>(slices.k[slice], batch, kv_head);
    const HeadRows<T> v = head_rows<T>(slices.v[slice], batch, kv_head);
    const std::int64_t keys = slices.k[slice].size(2);
    for (Tile tile = tile_at(0, keys, causal, first_row, rows); tile.columns > 0;
         tile = tile_at(tile.first + tile.columns, keys, causal, first_row, rows)) {
      gemm<T>(false, true, rows, tile.columns, sizes.size, scale, q, sizes.row_step(),
              k.data + tile.first * k.step, k.step, T{0}, scores, tile.columns);
      loops.softmax_tile(scores, rows, tile.columns, tile.columns, tile.first_visible,
                         maximum.data(), sum.data(), out, sizes.row_step(), sizes.size);
      gemm<T>(false, false, rows, sizes.size, tile.columns, T{1}, scores, tile.columns,
              v.data + tile.first * v.step, v.step, fresh ? T{0} : T{1}, out, sizes.row_step());
      fresh = false;
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    loops.scale_row(out + row * sizes.row_step(), T{1} / sum[at], sizes.size);
    lse[row] = maximum[at] + std::log(sum[at]);
  }
}

template <typename T>
void forward(const at::Tensor& q_BTHS, const KeyValueSlices& slices, at::Tensor& out_BTHS,
             at::Tensor& lse_BHT) {
  const Sizes sizes = sizes_of(q_BTHS, slices);
  const at::Tensor scratch = at::empty({sizes.tile_size()}, q_BTHS.options());
  T* scores = scratch.mutable_data_ptr<T>();
  const T* q = q_BTHS.const_data_ptr<T>();
  T* out = out_BTHS.mutable_data_ptr<T>();
  T* lse = lse_BHT.mutable_data_ptr<T>();
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      for (std::int64_t row = 0; row < sizes.tokens; row += kScoreRows) {
        const std::int64_t rows = std::min(kScoreRows, sizes.tokens - row);
        const std::int64_t at = (batch * sizes.tokens + row) * sizes.row_step() + head * sizes.size;
        forward_block(sizes, slices, batch, head, row, rows, q + at, scores, out + at,
                      lse + (batch * sizes.heads + head) * sizes.tokens + row);
      }
    }
  }
}

// What a block of rows of one head reads and writes in backward.
template <typename T>
struct BackwardBlock {
  std::int64_t batch, head, first_row, rows;
  const T *dout, *q, *out, *lse;
  T* dq;
};

template <typename T>
void backward_block(const Sizes& sizes, const KeyValueSlices& slices, const BackwardBlock<T>& block,
                    T* scores, T* dp, std::vector<at::Tensor>& dk, std::vector<at::Tensor>& dv) {
  const CpuKernels<T>& loops = cpu_kernels<T>();
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(sizes.size)));
  const std::int64_t kv_head = block.head / (sizes.heads / sizes.kv_heads);
  const std::int64_t step = sizes.row_step(), rows = block.rows, size = sizes.size;
  std::array<T, kScoreRows> row_term;
  for (std::int64_t row = 0; row < rows; ++row) {
    row_term[static_cast<std::size_t>(row)] =
        loops.dot(block.dout + row * step, block.out + row * step, size);
  }
  bool fresh = true;
  for (std::size_t slice = slices.k.size(); slice-- > 0;) {
    const bool causal = slice + 1 == slices.k.size();
    const HeadRows<T> k = head_rows<T>(slices.k[slice], block.batch, kv_head);
    const HeadRows<T> v = head_rows<T>(slices.v[slice], block.batch, kv_head);
    const HeadRows<T> k_gradient = head_rows<T>(dk[slice], block.batch, kv_head);
    const HeadRows<T> v_gradient = head_rows<T>(dv[slice], block.batch, kv_head);
    const std::int64_t keys = slices.k[slice].size(2);
    for (Tile tile = tile_at(0, keys, causal, block.first_row, rows); tile.columns > 0;
         tile = tile_at(tile.first + tile.columns, keys, causal, block.first_row, rows)) {
      const std::int64_t columns = tile.columns;
      gemm<T>(false, true, rows, columns, size, scale, block.q, step, k.data + tile.first * k.step,
              k.step, T{0}, scores, columns);
      gemm<T>(false, true, rows, columns, size, T{1}, block.dout, step,
              v.data + tile.first * v.step, v.step, T{0}, dp, columns);
      loops.softmax_backward_tile(scores, dp, rows, columns, columns, tile.first_visible, block.lse,
                                  row_term.data(), scale);
      gemm<T>(true, false, columns, size, rows, T{1}, scores, columns, block.dout, step, T{1},
              v_gradient.data + tile.first * v_gradient.step, v_gradient.step);
      gemm<T>(true, false, columns, size, rows, T{1}, dp, columns, block.q, step, T{1},
              k_gradient.data + tile.first * k_gradient.step, k_gradient.step);
      gemm<T>(false, false, rows, size, columns, T{1}, dp, columns, k.data + tile.first * k.step,
              k.step, fresh ? T{0} : T{1}, block.dq, step);
      fresh = false;
    }
  }
}

template <typename T>
void backward(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS, const KeyValueSlices& slices,
              const at::Tensor& out_BTHS, const at::Tensor& lse_BHT, at::Tensor& dq_BTHS,
              std::vector<at::Tensor>& dk, std::vector<at::Tensor>& dv) {
  const Sizes sizes = sizes_of(q_BTHS, slices);
  const std::int64_t tile = sizes.tile_size();
  const at::Tensor scratch = at::empty({2 * tile}, q_BTHS.options());
  T* scores = scratch.mutable_data_ptr<T>();
  // Heads that share keys and values come one after the other, while those are in the cache.
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      for (std::int64_t row = 0; row < sizes.tokens; row += kScoreRows) {
        const std::int64_t at = (batch * sizes.tokens + row) * sizes.row_step() + head * sizes.size;
        const BackwardBlock<T> block{
            .batch = batch,
            .head = head,
            .first_row = row,
            .rows = std::min(kScoreRows, sizes.tokens - row),
            .dout = dout_BTHS.const_data_ptr<T>() + at,
            .q = q_BTHS.const_data_ptr<T>() + at,
            .out = out_BTHS.const_data_ptr<T>() + at,
            .lse = lse_BHT.const_data_ptr<T>() + (batch * sizes.heads + head) * sizes.tokens + row,
            .dq = dq_BTHS.mutable_data_ptr<T>() + at};
        backward_block(sizes, slices, block, scores, scores + tile, dk, dv);
      }
    }
  }
}

}  // namespace

void attention_forward_cpu(const at::Tensor& q_BTHS, const KeyValueSlices& slices,
                           at::Tensor& out_BTHS, at::Tensor& lse_BHT) {
  if (q_BTHS.scalar_type() == at::kDouble) {
    forward<double>(q_BTHS, slices, out_BTHS, lse_BHT);
  } else {
    forward<float>(q_BTHS, slices, out_BTHS, lse_BHT);
  }
}

void attention_backward_cpu(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                            const KeyValueSlices& slices, const at::Tensor& out_BTHS,
                            const at::Tensor& lse_BHT, at::Tensor& dq_BTHS,
                            std::vector<at::Tensor>& dk, std::vector<at::Tensor>& dv) {
  if (q_BTHS.scalar_type() == at::kDouble) {
    backward<double>(dout_BTHS, q_BTHS, slices, out_BTHS, lse_BHT, dq_BTHS, dk, dv);
  } else {
    backward<float>(dout_BTHS, q_BTHS, slices, out_BTHS, lse_BHT, dq_BTHS, dk, dv);
  }
}

}  // namespace sluice
