// exchanger.h - one rank's side of the attention exchange (program/exchange.h), layer by layer.
// Read next: model/attention_exchange.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/model/attention_exchange.h"
#include "sluice/program/exchange.h"
#include "sluice/runtime/ledger.h"

namespace sluice {

/// Lends and serves what the plan says for the pass that runs. Messages travel on the exchange
/// channels of the transport, one per tensor. With a transport that hands owners over, keys, values
/// and queries are lent by reference: the lender does not change them before it got its results,
/// and the server has dropped them by then.
/// Memory: results belong to the server's workspace while it makes them, to the transport on the
/// way, to the lender's workspace until they are merged.
/// Errors: a message that does not come throws CommError naming both ranks, slot, layer and pass.
/// Threads: the rank's own.
class Exchanger final : public AttentionExchange {
 public:
  /// `layers_of_stage`: of all ranks. A lender's layer takes part where its stage and the stages of
  /// all its servers have that layer.
  Exchanger(const ExchangePlan& plan, std::vector<int> layers_of_stage, Transport& transport,
            MemoryLedger& ledger);

  /// The pass `share.pass` begins: all calls until finish() are its layers'. Not owned.
  void begin(const PassExchange& share) { share_ = &share; }
  /// The pass ended: waits until the peers have taken everything.
  void finish();

  int num_lent(int layer) const override;
  void lend_keys(int layer, const KeyValueSlices& slices) override;
  void lend_queries(int layer, const at::Tensor& q_BTHS) override;
  void serve_forward(int layer, const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) override;
  void merge_forward(int layer, AttentionPart& sum) override;
  void lend_backward(int layer, const KeyValueSlices& slices, const at::Tensor& q_BTHS,
                     const at::Tensor& out_BTHS, const at::Tensor& lse_BHT) override;
  void lend_gradient(int layer, const at::Tensor& dout_BTHS) override;
  void serve_backward(int layer, const at::Tensor& q_BTHS, const at::Tensor& k_BKTS) override;
  void add_backward(int layer, at::Tensor& dq_BTHS, std::vector<at::Tensor>& dk,
                    std::vector<at::Tensor>& dv) override;

 private:
  enum class Item : std::uint8_t {
    kKey,
    kValue,
    kQuery,
    kOut,
    kLse,
    kGradient,
    kWeighted,
    kMaximum,
    kTotal,
    kDq,
    kDk,
    kDv
  };
  static constexpr int kNumItems = 12;

  // One conversation: about the lender's pass, with the other rank, in one layer.
  struct Talk {
    int peer;
    const Pass& lender;
    int layer;
    bool lending;
  };
  struct Keys {
    at::Tensor k_BKTS, v_BKTS;
  };

  bool takes_part(const Pass& lender, int layer) const;
  template <typename Body>
  void for_lent(int layer, Body body) const;  // newest first
  template <typename Body>
  void for_served(int layer, Body body) const;  // in the order of the list
  static MessageTag tag_of(const Talk& talk, Item item, int half);
  void send(const Talk& talk, Item item, int half, at::Tensor tensor);
  at::Tensor receive(const Talk& talk, Item item, int half, at::IntArrayRef sizes,
                     const at::TensorOptions& options);
  // send() and receive() of results, which are charged to whoever has them.
  void give(const Talk& talk, Item item, int half, at::Tensor& result);
  at::Tensor take(const Talk& talk, Item item, int half, at::IntArrayRef sizes,
                  const at::TensorOptions& options);
  void send_keys(const Talk& talk, const ExchangeEntry& entry, const KeyValueSlices& slices);
  std::vector<Keys> receive_keys(const Talk& talk, const ExchangeEntry& entry,
                                 const at::Tensor& k_BKTS);
  void wait_sends();

  const std::vector<int> layers_of_stage_;
  Transport& transport_;
  MemoryLedger& ledger_;
  std::map<Pass, int> num_layers_;  // that take part, by lending pass
  const PassExchange* share_ = nullptr;
  std::int64_t kv_heads_ = 1;  // of the layer that lends
  std::vector<Transport::Ticket> sends_;
};

}  // namespace sluice
