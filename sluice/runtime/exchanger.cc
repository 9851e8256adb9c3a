#include "sluice/runtime/exchanger.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/tensor_buffer.h"

namespace sluice {
namespace {

std::size_t slice_of(int half) { return static_cast<std::size_t>(half / 2); }

}  // namespace

Exchanger::Exchanger(const ExchangePlan& plan, std::vector<int> layers_of_stage,
                     Transport& transport, MemoryLedger& ledger)
    : layers_of_stage_(std::move(layers_of_stage)), transport_(transport), ledger_(ledger) {
  const auto layers_of = [&](const Pass& pass) {
    return layers_of_stage_[static_cast<std::size_t>(pass.stage)];
  };
  for (const auto& passes : plan.ranks) {
    for (const PassExchange& pass : passes) {
      int layers = layers_of(pass.pass);
      int end = 0;
      for (const ExchangeEntry& entry : pass.lend) {
        layers = std::min(layers, layers_of(entry.peer_pass));
        // Only then is the order of merging that of slices, newest first.
        SLUICE_CHECK(entry.begin == end, "{} lends half slices {} to {} after {}",
                     to_string(pass.pass, true), entry.begin, entry.end, end);
        end = entry.end;
      }
      if (!pass.lend.empty()) num_layers_[pass.pass] = layers;
    }
  }
}

bool Exchanger::takes_part(const Pass& lender, int layer) const {
  const auto found = num_layers_.find(lender);
  SLUICE_CHECK(found != num_layers_.end(), "{} lends nothing", to_string(lender, true));
  return layer < found->second;
}

template <typename Body>
void Exchanger::for_lent(int layer, Body body) const {
  if (share_->lend.empty() || !takes_part(share_->pass, layer)) return;
  for (auto entry = share_->lend.rbegin(); entry != share_->lend.rend(); ++entry) {
    body(*entry, Talk{entry->peer, share_->pass, layer, true});
  }
}

template <typename Body>
void Exchanger::for_served(int layer, Body body) const {
  for (const ExchangeEntry& entry : share_->serve) {
    if (!takes_part(entry.peer_pass, layer)) continue;
    body(entry, Talk{entry.peer, entry.peer_pass, layer, false});
  }
}

int Exchanger::num_lent(int layer) const {
  if (share_->lend.empty() || !takes_part(share_->pass, layer)) return 0;
  return share_->lend.back().end;
}

MessageTag Exchanger::tag_of(const Talk& talk, Item item, int half) {
  return {.direction = Direction::kExchange,
          .stage = talk.lender.stage,
          .microbatch = talk.lender.microbatch,
          .slice = talk.lender.slice,
          .layer = talk.layer,
          .part = kNumItems * half + static_cast<int>(item)};
}

void Exchanger::send(const Talk& talk, Item item, int half, at::Tensor tensor) {
  // A transport that copies needs the bytes in one piece.
  if (transport_.copies()) tensor = tensor.contiguous();
  sends_.push_back(
      transport_.post_send(talk.peer, tag_of(talk, item, half), buffer_of(std::move(tensor))));
}

void Exchanger::give(const Talk& talk, Item item, int half, at::Tensor& result) {
  charge_to(result, nullptr, MemoryClass::kWorkspace);
  send(talk, item, half, std::move(result));
}

at::Tensor Exchanger::receive(const Talk& talk, Item item, int half, at::IntArrayRef sizes,
                              const at::TensorOptions& options) {
  Buffer destination;
  if (transport_.copies()) destination = buffer_of(at::empty(sizes, options));
  try {
    const Buffer buffer = transport_.wait_receive(
        transport_.post_receive(talk.peer, tag_of(talk, item, half), std::move(destination)));
    return std::move(tensor_in(buffer));
  } catch (const CommError& error) {
    const int lender = talk.lending ? transport_.rank() : talk.peer;
    const int server = talk.lending ? talk.peer : transport_.rank();
    throw CommError(fmt::format(
        "{} (exchange slot {}: rank {} lends attention of {}, layer {}, to "
        "rank {})",
        error.what(), share_->slot, lender, to_string(talk.lender, true), talk.layer, server));
  }
}

at::Tensor Exchanger::take(const Talk& talk, Item item, int half, at::IntArrayRef sizes,
                           const at::TensorOptions& options) {
  at::Tensor result = receive(talk, item, half, sizes, options);
  charge_to(result, &ledger_, MemoryClass::kWorkspace);
  return result;
}

void Exchanger::wait_sends() {
  for (const Transport::Ticket ticket : std::exchange(sends_, {})) transport_.wait_send(ticket);
}

void Exchanger::finish() {
  wait_sends();
  share_ = nullptr;
}

void Exchanger::send_keys(const Talk& talk, const ExchangeEntry& entry,
                          const KeyValueSlices& slices) {
  SLUICE_CHECK(slice_of(entry.end - 1) < slices.k.size(), "{} lends half slice {} of {} slices",
               to_string(talk.lender, true), entry.end - 1, slices.k.size());
  for (int half = entry.begin; half < entry.end; ++half) {
    const at::Tensor& k = slices.k[slice_of(half)];
    const HalfSlice part = half_slice(k.size(1), k.size(2), half);
    send(talk, Item::kKey, half, part.of_keys(k));
    send(talk, Item::kValue, half, part.of_keys(slices.v[slice_of(half)]));
  }
}

std::vector<Exchanger::Keys> Exchanger::receive_keys(const Talk& talk, const ExchangeEntry& entry,
                                                     const at::Tensor& k_BKTS) {
  std::vector<Keys> keys;
  for (int half = entry.begin; half < entry.end; ++half) {
    const HalfSlice here = half_slice(k_BKTS.size(1), k_BKTS.size(2), half);
    const std::array<std::int64_t, 4> sizes = {k_BKTS.size(0), here.num_heads, here.num_rows,
                                               k_BKTS.size(3)};
    at::Tensor k = receive(talk, Item::kKey, half, sizes, k_BKTS.options());
    keys.push_back({std::move(k), receive(talk, Item::kValue, half, sizes, k_BKTS.options())});
  }
  return keys;
}

void Exchanger::lend_keys(int layer, const KeyValueSlices& slices) {
  wait_sends();  // of the layer before
  for_lent(layer, [&](const ExchangeEntry& entry, const Talk& talk) {
    kv_heads_ = slices.k.front().size(1);
    send_keys(talk, entry, slices);
  });
}

void Exchanger::lend_queries(int layer, const at::Tensor& q_BTHS) {
  for_lent(layer,
           [&](const ExchangeEntry&, const Talk& talk) { send(talk, Item::kQuery, 0, q_BTHS); });
}

// A result leaves as soon as it is there, and before the last one all that was lent by reference is
// let go: the lender may then free or change it.
void Exchanger::serve_forward(int layer, const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) {
  const std::int64_t kv_heads = k_BKTS.size(1), groups = q_BTHS.size(2) / kv_heads;
  for_served(layer, [&](const ExchangeEntry& entry, const Talk& talk) {
    std::vector<Keys> keys = receive_keys(talk, entry, k_BKTS);
    at::Tensor q = receive(talk, Item::kQuery, 0, q_BTHS.sizes(), q_BTHS.options());
    for (int half = entry.end; half-- > entry.begin;) {
      const HalfSlice here = half_slice(kv_heads, k_BKTS.size(2), half);
      const Keys& of_half = keys.back();
      AttentionPart part =
          attention_half(here.of_queries(q, 2, groups), of_half.k_BKTS, of_half.v_BKTS);
      keys.pop_back();
      if (half == entry.begin) q.reset();
      give(talk, Item::kWeighted, half, part.weighted_BTHS);
      give(talk, Item::kMaximum, half, part.maximum_BHT);
      give(talk, Item::kTotal, half, part.total_BHT);
    }
  });
}

void Exchanger::merge_forward(int layer, AttentionPart& sum) {
  const at::Tensor& all = sum.weighted_BTHS;
  const std::int64_t batch = all.size(0), tokens = all.size(1), groups = all.size(2) / kv_heads_;
  for_lent(layer, [&](const ExchangeEntry& entry, const Talk& talk) {
    for (int half = entry.end; half-- > entry.begin;) {
      const HalfSlice here = half_slice(kv_heads_, tokens, half);
      const std::int64_t heads = here.num_heads * groups;
      AttentionPart part;
      part.weighted_BTHS =
          take(talk, Item::kWeighted, half, {batch, tokens, heads, all.size(3)}, all.options());
      const auto statistics = sum.maximum_BHT.options();
      part.maximum_BHT = take(talk, Item::kMaximum, half, {batch, heads, tokens}, statistics);
      part.total_BHT = take(talk, Item::kTotal, half, {batch, heads, tokens}, statistics);
      attention_merge(sum, part, here.first_head * groups);
    }
  });
}

void Exchanger::lend_backward(int layer, const KeyValueSlices& slices, const at::Tensor& q_BTHS,
                              const at::Tensor& out_BTHS, const at::Tensor& lse_BHT) {
  wait_sends();
  for_lent(layer, [&](const ExchangeEntry& entry, const Talk& talk) {
    kv_heads_ = slices.k.front().size(1);
    send_keys(talk, entry, slices);
    send(talk, Item::kQuery, 0, q_BTHS);
    send(talk, Item::kOut, 0, out_BTHS);
    send(talk, Item::kLse, 0, lse_BHT);
  });
}

void Exchanger::lend_gradient(int layer, const at::Tensor& dout_BTHS) {
  for_lent(layer, [&](const ExchangeEntry&, const Talk& talk) {
    send(talk, Item::kGradient, 0, dout_BTHS);
  });
}

void Exchanger::serve_backward(int layer, const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) {
  const std::int64_t kv_heads = k_BKTS.size(1), groups = q_BTHS.size(2) / kv_heads;
  const auto statistics = q_BTHS.options().dtype(statistics_of(q_BTHS.scalar_type()));
  const std::array<std::int64_t, 3> rows = {q_BTHS.size(0), q_BTHS.size(2), q_BTHS.size(1)};
  for_served(layer, [&](const ExchangeEntry& entry, const Talk& talk) {
    std::vector<Keys> keys = receive_keys(talk, entry, k_BKTS);
    const auto of_queries = [&](Item item) {
      return receive(talk, item, 0, q_BTHS.sizes(), q_BTHS.options());
    };
    at::Tensor q = of_queries(Item::kQuery), out = of_queries(Item::kOut);
    at::Tensor lse = receive(talk, Item::kLse, 0, rows, statistics);
    at::Tensor dout = of_queries(Item::kGradient);
    for (int half = entry.end; half-- > entry.begin;) {
      const HalfSlice here = half_slice(kv_heads, k_BKTS.size(2), half);
      const Keys& of_half = keys.back();
      AttentionHalfGradients part = attention_half_backward(
          here.of_queries(dout, 2, groups), here.of_queries(q, 2, groups), of_half.k_BKTS,
          of_half.v_BKTS, here.of_queries(out, 2, groups), here.of_queries(lse, 1, groups));
      keys.pop_back();
      if (half == entry.begin) {
        for (at::Tensor* lent : {&q, &out, &lse, &dout}) lent->reset();
      }
      give(talk, Item::kDq, half, part.dq_BTHS);
      give(talk, Item::kDk, half, part.dk_BKTS);
      give(talk, Item::kDv, half, part.dv_BKTS);
    }
  });
}

void Exchanger::add_backward(int layer, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                             std::vector<at::Tensor>& dv) {
  const std::int64_t groups = dq_BTHS.size(2) / kv_heads_;
  const auto statistics = dq_BTHS.options().dtype(statistics_of(dq_BTHS.scalar_type()));
  for_lent(layer, [&](const ExchangeEntry& entry, const Talk& talk) {
    for (int half = entry.end; half-- > entry.begin;) {
      const at::Tensor &k_gradient = dk[slice_of(half)], &v_gradient = dv[slice_of(half)];
      const HalfSlice here = half_slice(kv_heads_, k_gradient.size(2), half);
      here.of_queries(dq_BTHS, 2, groups)
          .add_(take(talk, Item::kDq, half,
                     {dq_BTHS.size(0), dq_BTHS.size(1), here.num_heads * groups, dq_BTHS.size(3)},
                     statistics));
      const std::array<std::int64_t, 4> of_keys = {k_gradient.size(0), here.num_heads,
                                                   here.num_rows, k_gradient.size(3)};
      here.of_keys(k_gradient).add_(take(talk, Item::kDk, half, of_keys, statistics));
      here.of_keys(v_gradient).add_(take(talk, Item::kDv, half, of_keys, statistics));
    }
  });
}

}  // namespace sluice
