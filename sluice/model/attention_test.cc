#include "sluice/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/model/attention_tiles.h"
#include "sluice/model/gemm.h"

namespace sluice {
namespace {

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }
double difference(const at::Tensor& a, const at::Tensor& b) {
  return largest(a.to(at::kDouble) - b.to(at::kDouble)) / std::max(1.0, largest(b));
}

struct Problem {
  at::Tensor q_BTHS, k_BKTS, v_BKTS, dout_BTHS;  // the whole sequence
};

Problem random_problem(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t size, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  return {at::randn({batch, tokens, heads, size}, options).to(type),
          at::randn({batch, kv_heads, tokens, size}, options).to(type),
          at::randn({batch, kv_heads, tokens, size}, options).to(type),
          at::randn({batch, tokens, heads, size}, options).to(type)};
}

struct Result {
  at::Tensor out_BTHS, lse_BHT, dq_BTHS, dk_BKTS, dv_BKTS;
};

// Whole matrices of scores in fp64.
Result expected_of(const Problem& problem) {
  const at::Tensor q = problem.q_BTHS.to(at::kDouble).transpose(1, 2);
  const at::Tensor dout = problem.dout_BTHS.to(at::kDouble).transpose(1, 2);
  const std::int64_t groups = q.size(1) / problem.k_BKTS.size(1), tokens = q.size(2);
  const at::Tensor k = problem.k_BKTS.to(at::kDouble).repeat_interleave(groups, 1);
  const at::Tensor v = problem.v_BKTS.to(at::kDouble).repeat_interleave(groups, 1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor future = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor scores = (at::matmul(q, k.transpose(-1, -2)) * scale)
                                .masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor lse = at::logsumexp(scores, {-1});
  const at::Tensor p = at::exp(scores - lse.unsqueeze(-1));
  const at::Tensor out = at::matmul(p, v);
  const at::Tensor dp = at::matmul(dout, v.transpose(-1, -2));
  const at::Tensor ds = p * (dp - (dout * out).sum(-1, true)) * scale;
  const auto sum_groups = [&](const at::Tensor& per_head) {
    return per_head.view({q.size(0), -1, groups, tokens, q.size(3)}).sum(2);
  };
  return {out.transpose(1, 2), lse, at::matmul(ds, k).transpose(1, 2),
          sum_groups(at::matmul(ds.transpose(-1, -2), q)),
          sum_groups(at::matmul(p.transpose(-1, -2), dout))};
}

// The same by slices of the given lengths.
Result sliced(const Problem& problem, const std::vector<std::int64_t>& lengths) {
  const at::ScalarType statistics =
      problem.q_BTHS.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Result result{at::empty_like(problem.q_BTHS),
                at::empty({problem.q_BTHS.size(0), problem.q_BTHS.size(2), problem.q_BTHS.size(1)},
                          at::TensorOptions().dtype(statistics)),
                at::empty_like(problem.q_BTHS),
                at::zeros_like(problem.k_BKTS, at::TensorOptions().dtype(statistics)),
                at::zeros_like(problem.v_BKTS, at::TensorOptions().dtype(statistics))};
  KeyValueSlices all;
  std::vector<at::Tensor> dk, dv;
  std::vector<std::int64_t> first;
  std::int64_t at = 0;
  for (const std::int64_t length : lengths) {
    all.k.push_back(problem.k_BKTS.narrow(2, at, length).contiguous());
    all.v.push_back(problem.v_BKTS.narrow(2, at, length).contiguous());
    dk.push_back(result.dk_BKTS.narrow(2, at, length));
    dv.push_back(result.dv_BKTS.narrow(2, at, length));
    first.push_back(at);
    at += length;
  }
  for (std::size_t slice = lengths.size(); slice-- > 0;) {
    const auto end = static_cast<std::ptrdiff_t>(slice) + 1;
    const KeyValueSlices visible{{all.k.begin(), all.k.begin() + end},
                                 {all.v.begin(), all.v.begin() + end}};
    const auto cut = [&](const at::Tensor& tensor) {
      return tensor.narrow(1, first[slice], lengths[slice]).contiguous();
    };
    const at::Tensor q = cut(problem.q_BTHS);
    at::Tensor out = at::empty_like(q), dq = at::empty_like(q);
    at::Tensor lse =
        at::empty({q.size(0), q.size(2), q.size(1)}, at::TensorOptions().dtype(statistics));
    attention_forward(q, visible, out, lse);
    attention_backward(cut(problem.dout_BTHS), q, visible, out, lse, dq, dk, dv);
    result.out_BTHS.narrow(1, first[slice], lengths[slice]).copy_(out);
    result.lse_BHT.narrow(2, first[slice], lengths[slice]).copy_(lse);
    result.dq_BTHS.narrow(1, first[slice], lengths[slice]).copy_(dq);
  }
  return result;
}

void expect_close(const Result& got, const Result& expected, double tolerance) {
  EXPECT_LE(difference(got.out_BTHS, expected.out_BTHS), tolerance) << "out";
  EXPECT_LE(difference(got.lse_BHT, expected.lse_BHT), tolerance) << "lse";
  EXPECT_LE(difference(got.dq_BTHS, expected.dq_BTHS), tolerance) << "dq";
  EXPECT_LE(difference(got.dk_BKTS, expected.dk_BKTS), tolerance) << "dk";
  EXPECT_LE(difference(got.dv_BKTS, expected.dv_BKTS), tolerance) << "dv";
}

TEST(Attention, MatchesWholeMatricesForEveryHeadGroupAndLength) {
  for (const auto& [heads, kv_heads] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {4, 4}, {4, 2}, {6, 2}, {4, 1}}) {
    for (const std::int64_t tokens :
         {std::int64_t{1}, std::int64_t{7}, kScoreRows, kScoreRows + 1, 3 * kScoreRows - 5}) {
      const Problem problem = random_problem(2, tokens, heads, kv_heads, 8, at::kDouble);
      expect_close(sliced(problem, {tokens}), expected_of(problem), 1e-12);
    }
  }
}

TEST(Attention, MatchesWholeMatricesAcrossTilesOfKeys) {
  const std::int64_t tokens = kScoreColumns + kScoreRows + 3;
  const Problem problem = random_problem(1, tokens, 2, 1, 16, at::kDouble);
  expect_close(sliced(problem, {tokens}), expected_of(problem), 1e-12);
  Problem single = problem;
  for (at::Tensor* tensor : {&single.q_BTHS, &single.k_BKTS, &single.v_BKTS, &single.dout_BTHS}) {
    *tensor = tensor->to(at::kFloat);
  }
  expect_close(sliced(single, {tokens}), expected_of(single), 1e-5);
}

TEST(Attention, OfSlicesIsThatOfTheWhole) {
  const Problem problem = random_problem(2, 12, 4, 2, 6, at::kDouble);
  const Result whole = expected_of(problem);
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{
           {12}, {6, 6}, {4, 4, 4}, {3, 3, 3, 3}, {1, 2, 3, 6}, {7, 1, 4}}) {
    expect_close(sliced(problem, lengths), whole, 1e-12);
  }
}

// The last slice of `num_slices`, with the `num_lent` oldest halves computed apart and added as
// another rank's would be.
Result lent(const Problem& problem, int num_slices, int num_lent) {
  const std::int64_t tokens = problem.q_BTHS.size(1) / num_slices;
  const std::int64_t kv_heads = problem.k_BKTS.size(1);
  const std::int64_t groups = problem.q_BTHS.size(2) / kv_heads;
  const at::Tensor q = problem.q_BTHS.narrow(1, 0, tokens).contiguous();
  const at::Tensor dout = problem.dout_BTHS.narrow(1, 0, tokens).contiguous();
  const auto statistics =
      at::TensorOptions().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  KeyValueSlices slices;
  std::vector<at::Tensor> dk, dv;
  for (int slice = 0; slice < num_slices; ++slice) {
    slices.k.push_back(problem.k_BKTS.narrow(2, slice * tokens, tokens).contiguous());
    slices.v.push_back(problem.v_BKTS.narrow(2, slice * tokens, tokens).contiguous());
    // As if later slices had added something.
    dk.push_back((slices.v.back() * 0.5).to(statistics.dtype()));
    dv.push_back((slices.k.back() * 0.5).to(statistics.dtype()));
  }
  Result result;
  result.out_BTHS = at::empty_like(q);
  result.lse_BHT = at::empty({q.size(0), q.size(2), tokens}, statistics);
  result.dq_BTHS = at::empty_like(q);
  if (num_lent == 0) {
    attention_forward(q, slices, result.out_BTHS, result.lse_BHT);
    attention_backward(dout, q, slices, result.out_BTHS, result.lse_BHT, result.dq_BTHS, dk, dv);
  } else {
    AttentionPart sum = attention_own_part(q, slices, num_lent, result.out_BTHS);
    for (int half = num_lent; half-- > 0;) {
      const HalfSlice part = half_slice(kv_heads, tokens, half);
      const auto slice = static_cast<std::size_t>(half / 2);
      attention_merge(sum,
                      attention_half(part.of_queries(q, 2, groups), part.of_keys(slices.k[slice]),
                                     part.of_keys(slices.v[slice])),
                      part.first_head * groups);
    }
    attention_finish(sum, result.out_BTHS, result.lse_BHT);
    attention_backward(dout, q, slices, result.out_BTHS, result.lse_BHT, result.dq_BTHS, dk, dv,
                       num_lent);
    for (int half = num_lent; half-- > 0;) {
      const HalfSlice part = half_slice(kv_heads, tokens, half);
      const auto slice = static_cast<std::size_t>(half / 2);
      const AttentionHalfGradients gradients = attention_half_backward(
          part.of_queries(dout, 2, groups), part.of_queries(q, 2, groups),
          part.of_keys(slices.k[slice]), part.of_keys(slices.v[slice]),
          part.of_queries(result.out_BTHS, 2, groups), part.of_queries(result.lse_BHT, 1, groups));
      part.of_queries(result.dq_BTHS, 2, groups).add_(gradients.dq_BTHS);
      part.of_keys(dk[slice]).add_(gradients.dk_BKTS);
      part.of_keys(dv[slice]).add_(gradients.dv_BKTS);
    }
  }
  result.dk_BKTS = at::cat(dk, 2);
  result.dv_BKTS = at::cat(dv, 2);
  return result;
}

TEST(Attention, GivesTheSameBitsWhereverHalfSlicesAreComputed) {
  constexpr int kSlices = 4;
  for (const auto& [heads, kv_heads] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{4, 2}, {4, 4}, {3, 3}, {4, 1}}) {
    for (const std::int64_t tokens : {std::int64_t{2}, std::int64_t{7}, 2 * kScoreRows + 5}) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
        const Problem problem = random_problem(2, kSlices * tokens, heads, kv_heads, 6, type);
        const Result expected = lent(problem, kSlices, 0);
        for (const int halves : {1, 2, 3, 6}) {
          SCOPED_TRACE(testing::Message() << kv_heads << " of " << heads << " heads, " << tokens
                                          << " tokens, " << halves << " halves");
          const Result got = lent(problem, kSlices, halves);
          EXPECT_TRUE(got.out_BTHS.equal(expected.out_BTHS));
          EXPECT_TRUE(got.lse_BHT.equal(expected.lse_BHT));
          EXPECT_TRUE(got.dq_BTHS.equal(expected.dq_BTHS));
          EXPECT_TRUE(got.dk_BKTS.equal(expected.dk_BKTS));
          EXPECT_TRUE(got.dv_BKTS.equal(expected.dv_BKTS));
        }
      }
    }
  }
  const Problem problem = random_problem(1, 32, 4, 2, 16, at::kBFloat16);
  expect_close(lent(problem, kSlices, 3), lent(problem, kSlices, 0), 0.03);
}

TEST(Attention, InBFloat16StaysCloseAlsoWhenMerged) {
  const Problem problem = random_problem(2, 24, 4, 2, 16, at::kBFloat16);
  const Result whole = expected_of(problem);
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{24}, {12, 12}, {8, 8, 8}}) {
    expect_close(sliced(problem, lengths), whole, 0.03);
  }
}

TEST(Attention, StandsScoresThatWouldOverflow) {
  Problem problem = random_problem(1, 9, 2, 1, 4, at::kFloat);
  problem.q_BTHS.mul_(300.0);
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{9}, {3, 3, 3}}) {
    const Result got = sliced(problem, lengths);
    EXPECT_LE(difference(got.out_BTHS, expected_of(problem).out_BTHS), 1e-4);
    EXPECT_TRUE(got.dq_BTHS.isfinite().all().item<bool>());
  }
}

// What attention.cc relies on where it calls torch's own kernel (bf16): the causal mask is aligned
// top-left, and heads h of queries read head h / (H / K).
TEST(TorchCpuAttention, AlignsItsMaskTopLeftAndGroupsHeadsInOrder) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor q = at::randn({1, 4, 5, 8}, options), k = at::randn({1, 2, 9, 8}, options);
  const at::Tensor v = at::randn({1, 2, 9, 8}, options);
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, /*is_causal=*/true);
  const at::Tensor wide_k = k.repeat_interleave(2, 1), wide_v = v.repeat_interleave(2, 1);
  const at::Tensor future = at::ones({5, 9}, at::kBool).triu(1);
  const at::Tensor scores = (at::matmul(q, wide_k.transpose(-1, -2)) / std::sqrt(8.0))
                                .masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor expected_lse = at::logsumexp(scores, {-1});
  EXPECT_LE(difference(lse, expected_lse), 1e-12);
  EXPECT_LE(difference(out, at::matmul(at::exp(scores - expected_lse.unsqueeze(-1)), wide_v)),
            1e-12);
}

template <typename T>
void compare_gemms(double tolerance) {
  const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value);
  const std::int64_t m = 5, n = 7, k = 3;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const double beta : {0.0, 1.0, 0.5}) {
        // Rows with gaps, so that leading dimensions matter.
        const at::Tensor a = at::randn({ta ? k : m, 11}, options);
        const at::Tensor b = at::randn({tb ? n : k, 13}, options);
        const at::Tensor c = at::randn({m, 9}, options);
        const at::Tensor op_a = ta ? a.narrow(1, 0, m).t() : a.narrow(1, 0, k);
        const at::Tensor op_b = tb ? b.narrow(1, 0, k).t() : b.narrow(1, 0, n);
        at::Tensor expected = c.clone();
        expected.narrow(1, 0, n).copy_(at::matmul(op_a, op_b) * 2.0 + c.narrow(1, 0, n) * beta);
        at::Tensor blas = c.clone(), tensors = c.clone();
        gemm<T>(ta, tb, m, n, k, T{2}, a.const_data_ptr<T>(), 11, b.const_data_ptr<T>(), 13,
                static_cast<T>(beta), blas.mutable_data_ptr<T>(), 9);
        detail::gemm_by_tensors<T>(ta, tb, m, n, k, T{2}, a.const_data_ptr<T>(), 11,
                                   b.const_data_ptr<T>(), 13, static_cast<T>(beta),
                                   tensors.mutable_data_ptr<T>(), 9);
        EXPECT_LE(difference(blas, expected), tolerance);
        EXPECT_LE(difference(tensors, expected), tolerance);
      }
    }
  }
}

TEST(Gemm, MultipliesEveryTranspositionByBlasAndByTensors) {
  compare_gemms<float>(1e-6);
  compare_gemms<double>(1e-14);
}

}  // namespace
}  // namespace sluice
