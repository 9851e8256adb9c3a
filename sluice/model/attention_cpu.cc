#include "sluice/model/attention_cpu.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sluice/common/errors.h"
#include "sluice/model/attention_tiles.h"
#include "sluice/model/gemm.h"
#include "sluice/model/kernels_cpu.h"

namespace sluice {
namespace {

// Sizes of one call. Tensors of queries are [B,T,H,S] with dense heads of S, tokens `row_step`
// apart.
struct Sizes {
  std::int64_t batch, tokens, heads, kv_heads, size, most_keys;
  std::int64_t groups() const { return heads / kv_heads; }
};

Sizes sizes_of(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
               const std::vector<KeyValueBlock>& blocks) {
  Sizes sizes{q_BTHS.size(0), q_BTHS.size(1), q_BTHS.size(2),
              k_BKTS.size(1), q_BTHS.size(3), k_BKTS.size(2)};
  SLUICE_CHECK(sizes.heads % sizes.kv_heads == 0);
  for (const KeyValueBlock& block : blocks) {
    sizes.most_keys = std::max(sizes.most_keys, block.k_BKTS.size(2));
  }
  return sizes;
}

// Row i of the own slice sees its columns 0..i, which is causal only on a square block.
void check_square(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) {
  SLUICE_CHECK(k_BKTS.size(2) == q_BTHS.size(1), "{} keys for {} queries", k_BKTS.size(2),
               q_BTHS.size(1));
}

// Rows of one head, `step` apart.
template <typename T>
struct Rows {
  T* data;
  std::int64_t step;

  Rows from(std::int64_t row) const { return {data + row * step, step}; }
};

// A head of [B,K,T,S] (keys) or [B,T,H,S] (queries).
template <typename T>
Rows<T> key_rows(const at::Tensor& kv_BKTS, std::int64_t batch, std::int64_t head) {
  SLUICE_CHECK(kv_BKTS.stride(3) == 1);
  auto* data = const_cast<T*>(kv_BKTS.const_data_ptr<T>());
  return {data + batch * kv_BKTS.stride(0) + head * kv_BKTS.stride(1), kv_BKTS.stride(2)};
}

template <typename T>
Rows<T> query_rows(const at::Tensor& q_BTHS, std::int64_t batch, std::int64_t head) {
  SLUICE_CHECK(q_BTHS.stride(3) == 1);
  auto* data = const_cast<T*>(q_BTHS.const_data_ptr<T>());
  return {data + batch * q_BTHS.stride(0) + head * q_BTHS.stride(2), q_BTHS.stride(1)};
}

template <typename T>
T* statistics_row(const at::Tensor& rows_BHT, std::int64_t batch, std::int64_t head) {
  SLUICE_CHECK(rows_BHT.size(2) <= 1 || rows_BHT.stride(2) == 1);
  auto* data = const_cast<T*>(rows_BHT.const_data_ptr<T>());
  return data + batch * rows_BHT.stride(0) + head * rows_BHT.stride(1);
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

// One block of queries of a head against all keys of a slice or half.
template <typename T>
struct Meeting {
  std::int64_t first_row, rows, keys, size;
  bool causal;
  Rows<T> q, k, v;

  T scale() const { return static_cast<T>(1.0 / std::sqrt(static_cast<double>(size))); }
};

// Running softmax from nothing: overwrites out, maximum and sum.
template <typename T>
void forward_part(const Meeting<T>& meeting, T* scores, Rows<T> out, T* maximum, T* sum) {
  const CpuKernels<T>& loops = cpu_kernels<T>();
  std::fill_n(maximum, meeting.rows, -std::numeric_limits<T>::infinity());
  std::fill_n(sum, meeting.rows, T{0});
  const auto next = [&](std::int64_t first) {
    return tile_at(first, meeting.keys, meeting.causal, meeting.first_row, meeting.rows);
  };
  for (Tile tile = next(0); tile.columns > 0; tile = next(tile.first + tile.columns)) {
    const Rows<T> k = meeting.k.from(tile.first), v = meeting.v.from(tile.first);
    gemm<T>(false, true, meeting.rows, tile.columns, meeting.size, meeting.scale(), meeting.q.data,
            meeting.q.step, k.data, k.step, T{0}, scores, tile.columns);
    loops.softmax_tile(scores, meeting.rows, tile.columns, tile.columns, tile.first_visible,
                       maximum, sum, out.data, out.step, meeting.size);
    gemm<T>(false, false, meeting.rows, meeting.size, tile.columns, T{1}, scores, tile.columns,
            v.data, v.step, tile.first == 0 ? T{0} : T{1}, out.data, out.step);
  }
}

template <typename T>
void finish_rows(Rows<T> out, std::int64_t rows, std::int64_t size, const T* maximum, const T* sum,
                 T* lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    cpu_kernels<T>().scale_row(out.from(row).data, T{1} / sum[row], size);
    lse[row] = maximum[row] + std::log(sum[row]);
  }
}

template <typename T>
void forward(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS, const at::Tensor& v_BKTS,
             const std::vector<KeyValueBlock>& blocks, at::Tensor& out_BTHS, at::Tensor& lse_BHT,
             at::Tensor& total_BHT) {
  const Sizes sizes = sizes_of(q_BTHS, k_BKTS, blocks);
  const auto layout =
      AttentionScratch::forward(sizes.tokens, sizes.most_keys, sizes.size, !blocks.empty());
  const at::Tensor scratch = at::empty({layout.size}, q_BTHS.options());
  T* scores = scratch.mutable_data_ptr<T>();
  const Rows<T> part{scores + layout.rows, sizes.size};
  std::array<T, kScoreRows> own_sum, part_maximum, part_sum;
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      const std::int64_t kv_head = head / sizes.groups();
      const Rows<T> q = query_rows<T>(q_BTHS, batch, head);
      for (std::int64_t row = 0; row < sizes.tokens; row += kScoreRows) {
        const std::int64_t rows = std::min(kScoreRows, sizes.tokens - row);
        const Rows<T> out = query_rows<T>(out_BTHS, batch, head).from(row);
        T* maximum = statistics_row<T>(lse_BHT, batch, head) + row;
        T* sum =
            total_BHT.defined() ? statistics_row<T>(total_BHT, batch, head) + row : own_sum.data();
        forward_part<T>({row, rows, sizes.tokens, sizes.size, /*causal=*/true, q.from(row),
                         key_rows<T>(k_BKTS, batch, kv_head), key_rows<T>(v_BKTS, batch, kv_head)},
                        scores, out, maximum, sum);
        for (const KeyValueBlock& block : blocks) {
          const std::int64_t place = kv_head - block.first_head;
          if (place < 0 || place >= block.k_BKTS.size(1)) continue;
          forward_part<T>(
              {row, rows, block.k_BKTS.size(2), sizes.size, /*causal=*/false, q.from(row),
               key_rows<T>(block.k_BKTS, batch, place), key_rows<T>(block.v_BKTS, batch, place)},
              scores, part, part_maximum.data(), part_sum.data());
          cpu_kernels<T>().merge_rows(part.data, part.step, part_maximum.data(), part_sum.data(),
                                      out.data, out.step, maximum, sum, rows, sizes.size);
        }
        if (!total_BHT.defined()) finish_rows(out, rows, sizes.size, maximum, sum, maximum);
      }
    }
  }
}

template <typename T>
void half_forward(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS, const at::Tensor& v_BKTS,
                  AttentionPart& result) {
  const Sizes sizes = sizes_of(q_BTHS, k_BKTS, {});
  const auto layout =
      AttentionScratch::forward(sizes.tokens, sizes.most_keys, sizes.size, /*parts=*/true);
  const at::Tensor scratch = at::empty({layout.size}, q_BTHS.options());
  T* scores = scratch.mutable_data_ptr<T>();
  const Rows<T> part{scores + layout.rows, sizes.size};
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      const std::int64_t kv_head = head / sizes.groups();
      const Rows<T> q = query_rows<T>(q_BTHS, batch, head);
      for (std::int64_t row = 0; row < sizes.tokens; row += kScoreRows) {
        const std::int64_t rows = std::min(kScoreRows, sizes.tokens - row);
        forward_part<T>({row, rows, sizes.most_keys, sizes.size, /*causal=*/false, q.from(row),
                         key_rows<T>(k_BKTS, batch, kv_head), key_rows<T>(v_BKTS, batch, kv_head)},
                        scores, part, statistics_row<T>(result.maximum_BHT, batch, head) + row,
                        statistics_row<T>(result.total_BHT, batch, head) + row);
        const Rows<T> out = query_rows<T>(result.weighted_BTHS, batch, head).from(row);
        for (std::int64_t i = 0; i < rows; ++i) {
          std::copy_n(part.from(i).data, sizes.size, out.from(i).data);
        }
      }
    }
  }
}

template <typename T>
void merge(AttentionPart& sum, const AttentionPart& part, std::int64_t first_head) {
  const at::Tensor& weighted_BTHS = part.weighted_BTHS;
  for (std::int64_t batch = 0; batch < weighted_BTHS.size(0); ++batch) {
    for (std::int64_t head = 0; head < weighted_BTHS.size(2); ++head) {
      const Rows<T> from = query_rows<T>(weighted_BTHS, batch, head);
      const Rows<T> to = query_rows<T>(sum.weighted_BTHS, batch, first_head + head);
      cpu_kernels<T>().merge_rows(from.data, from.step,
                                  statistics_row<T>(part.maximum_BHT, batch, head),
                                  statistics_row<T>(part.total_BHT, batch, head), to.data, to.step,
                                  statistics_row<T>(sum.maximum_BHT, batch, first_head + head),
                                  statistics_row<T>(sum.total_BHT, batch, first_head + head),
                                  weighted_BTHS.size(1), weighted_BTHS.size(3));
    }
  }
}

template <typename T>
void finish(const AttentionPart& sum, at::Tensor& out_BTHS, at::Tensor& lse_BHT) {
  SLUICE_CHECK(sum.weighted_BTHS.is_same(out_BTHS), "the sums stand in another tensor");
  for (std::int64_t batch = 0; batch < out_BTHS.size(0); ++batch) {
    for (std::int64_t head = 0; head < out_BTHS.size(2); ++head) {
      finish_rows(query_rows<T>(out_BTHS, batch, head), out_BTHS.size(1), out_BTHS.size(3),
                  statistics_row<T>(sum.maximum_BHT, batch, head),
                  statistics_row<T>(sum.total_BHT, batch, head),
                  statistics_row<T>(lse_BHT, batch, head));
    }
  }
}

// What a block of queries of one head reads in backward, besides keys and values.
template <typename T>
struct Gradient {
  Rows<T> dout, out;
  const T* lse;
};

// Overwrites dq, adds to dk and dv.
template <typename T>
void backward_part(const Meeting<T>& meeting, const Gradient<T>& gradient, T* scores, T* dp,
                   Rows<T> dq, Rows<T> dk, Rows<T> dv) {
  const CpuKernels<T>& loops = cpu_kernels<T>();
  const std::int64_t rows = meeting.rows, size = meeting.size;
  std::array<T, kScoreRows> row_term;
  for (std::int64_t row = 0; row < rows; ++row) {
    row_term[static_cast<std::size_t>(row)] =
        loops.dot(gradient.dout.from(row).data, gradient.out.from(row).data, size);
  }
  const auto next = [&](std::int64_t first) {
    return tile_at(first, meeting.keys, meeting.causal, meeting.first_row, rows);
  };
  for (Tile tile = next(0); tile.columns > 0; tile = next(tile.first + tile.columns)) {
    const std::int64_t columns = tile.columns;
    const Rows<T> k = meeting.k.from(tile.first), v = meeting.v.from(tile.first);
    const Rows<T> k_gradient = dk.from(tile.first), v_gradient = dv.from(tile.first);
    gemm<T>(false, true, rows, columns, size, meeting.scale(), meeting.q.data, meeting.q.step,
            k.data, k.step, T{0}, scores, columns);
    gemm<T>(false, true, rows, columns, size, T{1}, gradient.dout.data, gradient.dout.step, v.data,
            v.step, T{0}, dp, columns);
    loops.softmax_backward_tile(scores, dp, rows, columns, columns, tile.first_visible,
                                gradient.lse, row_term.data(), meeting.scale());
    gemm<T>(true, false, columns, size, rows, T{1}, scores, columns, gradient.dout.data,
            gradient.dout.step, T{1}, v_gradient.data, v_gradient.step);
    gemm<T>(true, false, columns, size, rows, T{1}, dp, columns, meeting.q.data, meeting.q.step,
            T{1}, k_gradient.data, k_gradient.step);
    gemm<T>(false, false, rows, size, columns, T{1}, dp, columns, k.data, k.step,
            tile.first == 0 ? T{0} : T{1}, dq.data, dq.step);
  }
}

// The tensors of queries in backward.
struct QueryTensors {
  const at::Tensor &dout_BTHS, &q_BTHS, &out_BTHS, &lse_BHT;

  template <typename T>
  Gradient<T> gradient(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return {query_rows<T>(dout_BTHS, batch, head).from(row),
            query_rows<T>(out_BTHS, batch, head).from(row),
            statistics_row<T>(lse_BHT, batch, head) + row};
  }
};

// One head of a block with all queries that read it. dk and dv, dense, are made from nothing in
// scratch; take_dq(head, row, rows, part) gets what each block of queries adds to dq.
template <typename T, typename TakeDq>
void backward_head(const QueryTensors& queries, const Sizes& sizes, const at::Tensor& k_BKTS,
                   const at::Tensor& v_BKTS, std::int64_t batch, std::int64_t place,
                   std::int64_t kv_head, T* scratch, const AttentionScratch& layout,
                   TakeDq take_dq) {
  const std::int64_t keys = k_BKTS.size(2);
  const Rows<T> part{scratch + layout.rows, sizes.size};
  const Rows<T> dk{scratch + layout.dk, sizes.size}, dv{scratch + layout.dv, sizes.size};
  std::fill_n(dk.data, keys * sizes.size, T{0});
  std::fill_n(dv.data, keys * sizes.size, T{0});
  for (std::int64_t head = kv_head * sizes.groups(); head < (kv_head + 1) * sizes.groups();
       ++head) {
    for (std::int64_t row = 0; row < sizes.tokens; row += kScoreRows) {
      const std::int64_t rows = std::min(kScoreRows, sizes.tokens - row);
      backward_part<T>({row, rows, keys, sizes.size, /*causal=*/false,
                        query_rows<T>(queries.q_BTHS, batch, head).from(row),
                        key_rows<T>(k_BKTS, batch, place), key_rows<T>(v_BKTS, batch, place)},
                       queries.gradient<T>(batch, head, row), scratch, scratch + layout.dp, part,
                       dk, dv);
      take_dq(head, row, rows, part);
    }
  }
}

template <typename T>
void add_rows(Rows<T> from, Rows<T> to, std::int64_t rows, std::int64_t size) {
  for (std::int64_t row = 0; row < rows; ++row) {
    cpu_kernels<T>().add_row(from.from(row).data, to.from(row).data, size);
  }
}

template <typename T>
void backward(const QueryTensors& queries, const KeyValueBlock& own,
              const std::vector<KeyValueBlock>& blocks, at::Tensor& dq_BTHS) {
  const Sizes sizes = sizes_of(queries.q_BTHS, own.k_BKTS, blocks);
  const auto layout =
      AttentionScratch::backward(sizes.tokens, sizes.most_keys, sizes.size, !blocks.empty());
  const at::Tensor memory = at::empty({layout.size}, queries.q_BTHS.options());
  T* scratch = memory.mutable_data_ptr<T>();
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    // Heads that share keys and values come one after the other, while those are in the cache.
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      const std::int64_t kv_head = head / sizes.groups();
      for (std::int64_t row = 0; row < sizes.tokens; row += kScoreRows) {
        backward_part<T>(
            {row, std::min(kScoreRows, sizes.tokens - row), sizes.tokens, sizes.size,
             /*causal=*/true, query_rows<T>(queries.q_BTHS, batch, head).from(row),
             key_rows<T>(own.k_BKTS, batch, kv_head), key_rows<T>(own.v_BKTS, batch, kv_head)},
            queries.gradient<T>(batch, head, row), scratch, scratch + layout.dp,
            query_rows<T>(dq_BTHS, batch, head).from(row), key_rows<T>(own.dk_BKTS, batch, kv_head),
            key_rows<T>(own.dv_BKTS, batch, kv_head));
      }
    }
    for (const KeyValueBlock& block : blocks) {
      for (std::int64_t place = 0; place < block.k_BKTS.size(1); ++place) {
        backward_head<T>(queries, sizes, block.k_BKTS, block.v_BKTS, batch, place,
                         block.first_head + place, scratch, layout,
                         [&](std::int64_t head, std::int64_t row, std::int64_t rows, Rows<T> part) {
                           add_rows(part, query_rows<T>(dq_BTHS, batch, head).from(row), rows,
                                    sizes.size);
                         });
        const std::int64_t keys = block.k_BKTS.size(2);
        add_rows({scratch + layout.dk, sizes.size}, key_rows<T>(block.dk_BKTS, batch, place), keys,
                 sizes.size);
        add_rows({scratch + layout.dv, sizes.size}, key_rows<T>(block.dv_BKTS, batch, place), keys,
                 sizes.size);
      }
    }
  }
}

template <typename T>
void half_backward(const QueryTensors& queries, const at::Tensor& k_BKTS, const at::Tensor& v_BKTS,
                   AttentionHalfGradients& gradients) {
  const Sizes sizes = sizes_of(queries.q_BTHS, k_BKTS, {});
  const auto layout =
      AttentionScratch::backward(sizes.tokens, sizes.most_keys, sizes.size, /*parts=*/true);
  const at::Tensor memory = at::empty({layout.size}, queries.q_BTHS.options());
  T* scratch = memory.mutable_data_ptr<T>();
  const auto copy_rows = [&](const T* from, Rows<T> to, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(from + row * sizes.size, sizes.size, to.from(row).data);
    }
  };
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t head = 0; head < sizes.kv_heads; ++head) {
      backward_head<T>(
          queries, sizes, k_BKTS, v_BKTS, batch, head, head, scratch, layout,
          [&](std::int64_t query_head, std::int64_t row, std::int64_t rows, Rows<T> part) {
            copy_rows(part.data, query_rows<T>(gradients.dq_BTHS, batch, query_head).from(row),
                      rows);
          });
      copy_rows(scratch + layout.dk, key_rows<T>(gradients.dk_BKTS, batch, head), k_BKTS.size(2));
      copy_rows(scratch + layout.dv, key_rows<T>(gradients.dv_BKTS, batch, head), k_BKTS.size(2));
    }
  }
}

// Calls `body` with a value of the tensor's type.
template <typename Body>
void for_type(const at::Tensor& tensor, Body body) {
  tensor.scalar_type() == at::kDouble ? body(double{}) : body(float{});
}

}  // namespace

void attention_forward_cpu(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                           const at::Tensor& v_BKTS, const std::vector<KeyValueBlock>& blocks,
                           at::Tensor& out_BTHS, at::Tensor& lse_BHT, at::Tensor& total_BHT) {
  check_square(q_BTHS, k_BKTS);
  for_type(q_BTHS, [&](auto type) {
    forward<decltype(type)>(q_BTHS, k_BKTS, v_BKTS, blocks, out_BTHS, lse_BHT, total_BHT);
  });
}

void attention_half_cpu(const at::Tensor& q_BTHS, const at::Tensor& k_BKTS,
                        const at::Tensor& v_BKTS, AttentionPart& part) {
  for_type(q_BTHS, [&](auto type) { half_forward<decltype(type)>(q_BTHS, k_BKTS, v_BKTS, part); });
}

void attention_merge_cpu(AttentionPart& sum, const AttentionPart& part, std::int64_t first_head) {
  for_type(part.weighted_BTHS, [&](auto type) { merge<decltype(type)>(sum, part, first_head); });
}

void attention_finish_cpu(const AttentionPart& sum, at::Tensor& out_BTHS, at::Tensor& lse_BHT) {
  for_type(out_BTHS, [&](auto type) { finish<decltype(type)>(sum, out_BTHS, lse_BHT); });
}

void attention_backward_cpu(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                            const KeyValueBlock& own, const std::vector<KeyValueBlock>& blocks,
                            const at::Tensor& out_BTHS, const at::Tensor& lse_BHT,
                            at::Tensor& dq_BTHS) {
  check_square(q_BTHS, own.k_BKTS);
  for_type(q_BTHS, [&](auto type) {
    backward<decltype(type)>({dout_BTHS, q_BTHS, out_BTHS, lse_BHT}, own, blocks, dq_BTHS);
  });
}

void attention_half_backward_cpu(const at::Tensor& dout_BTHS, const at::Tensor& q_BTHS,
                                 const at::Tensor& k_BKTS, const at::Tensor& v_BKTS,
                                 const at::Tensor& out_BTHS, const at::Tensor& lse_BHT,
                                 AttentionHalfGradients& gradients) {
  for_type(q_BTHS, [&](auto type) {
    half_backward<decltype(type)>({dout_BTHS, q_BTHS, out_BTHS, lse_BHT}, k_BKTS, v_BKTS,
                                  gradients);
  });
}

}  // namespace sluice
