// exchange.h - which rank computes which part of a slice's attention (SlimPipe, arXiv 2504.14519).
// Read next: plan_exchange.h (makes the plan), verify_exchange.h (proves it).
//
// A late slice attends to more keys and values than an early one, so the ranks of a pipeline that
// work on different slices at one time have different work. A rank with much of it (the lender)
// lends old K/V, and its Q, to a rank with little (the server), which computes that part of the
// attention and gives the result back. Weights never move.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/schedule/pass.h"

namespace sluice {

/// How attention work is moved between ranks.
enum class ExchangeMode : std::uint8_t {
  kNone,      // every rank computes its own
  kPairwise,  // the published rule: mirror pairs, whole slices, only while all ranks are busy
  kBalanced,  // levelled over all busy ranks in half slices
};

/// "none", "pairwise" or "balanced".
std::string_view to_string(ExchangeMode mode);

/// One transfer, as one side of it carries it: the K/V that a lender's pass lends to a server's
/// pass. K/V counts in half slices: half h is half h % 2 of slice h / 2; [begin, end) is the range.
/// Only slices older than the lender's own are lent, so that every half is dense (no causal mask)
/// and exists before either pass begins.
///
/// What a half of a slice is, the engine chooses once per run, the same for all passes:
///  - by KV-head groups: half 0 is the first half of the KV heads, half 1 the rest, each with the
///    query heads that read them (number of KV heads even);
///  - by rows: half 0 is the first half of the slice's rows of K and V, half 1 the rest, all heads.
struct ExchangeEntry {
  std::int32_t peer = -1;  // the other rank
  Pass peer_pass;          // the other rank's pass in the same slot group
  std::int32_t begin = 0;  // half slices of the lender's K/V: first
  std::int32_t end = 0;    // and past the last

  std::int32_t num_halves() const { return end - begin; }
  friend bool operator==(const ExchangeEntry&, const ExchangeEntry&) = default;
};

/// What one pass F, B or I of a rank gives away and takes over, in each of its layers.
///
/// Layers. The entries repeat for every layer: layer l of the lender's pass (counted from the first
/// of its stage) goes with layer l of the server's pass. Of stages with different numbers of layers
/// only the layers that both have take part; the lender computes the others whole.
///
/// Protocol of layer l, forward. Nothing is waited for before the step that needs it:
///  1. lend: post K and V of each range, before the layer's own projections;
///  2. own projections; post Q (after the rotary embedding) to every server;
///  3. own attention: the diagonal, then own older slices that are not lent, newest first;
///  4. serve, in list order: wait for K, V, Q; compute; post partial output and log-sum-exp, one
///     for each slice of the range (each half, when halves are rows), not merged;
///  5. wait for the partials of each lend entry; merge.
/// Backward, layers descending: post K, V, Q, merged output and log-sum-exp as soon as the layer is
/// entered, the output's gradient when it is there; own part; serve; wait. What comes back is a dQ
/// partial for each slice of the range, to be added up in the same order as the own ones, and dK,
/// dV of the lent halves, to be added to the lender's accumulators: no gradient state stays with
/// the server. Step 5 waits for step 4 of peers, step 4 for what peers post before they wait for
/// anything of the layer: by induction over the layers nobody waits in a circle, as long as all
/// passes of a slot can run at the same time, which verify() proves.
///
/// Bits. The merged result does not depend on who computed a partial: partials are made per slice
/// (per half, when halves are rows) everywhere, also without any exchange, and merged in one order,
/// newest slice first; lent ranges are the oldest slices, so theirs come last.
struct PassExchange {
  Pass pass;                         // F, B or I
  std::int32_t slot = 0;             // passes of all ranks with one slot form a slot group
  std::vector<ExchangeEntry> lend;   // ranges of this pass's own older slices, ascending, disjoint
  std::vector<ExchangeEntry> serve;  // ranges of the peers' slices, by peer ascending

  /// Half slices that all entries of a list hold.
  static std::int64_t num_halves(const std::vector<ExchangeEntry>& entries);

  friend bool operator==(const PassExchange&, const PassExchange&) = default;
};

/// All exchange of one step, planned once for a Program. Part of the Program: the pass stays the
/// unit there, the messages of its layers follow from the entries by the protocol above.
struct ExchangePlan {
  ExchangeMode mode = ExchangeMode::kNone;
  /// Per rank the passes that lend or serve, in the order in which the rank runs them: whoever
  /// walks the actions keeps a cursor. Empty (also of ranks) when nothing is exchanged.
  std::vector<std::vector<PassExchange>> ranks;

  bool empty() const;
  /// K/V slices that forwards lend in one step, all ranks together; backwards move about as many
  /// again. A stage moves them in each of its layers.
  double num_forward_kv_slices() const;
  /// Transfers of forwards: each is a Q out and a partial output back.
  std::int64_t num_forward_transfers() const;
  /// The most half slices that one forward or backward of `rank` serves, and the most that one
  /// entry holds: sizes for receive buffers.
  std::int64_t most_served(int rank) const;
  std::int64_t largest_entry() const;

  friend bool operator==(const ExchangePlan&, const ExchangePlan&) = default;
};

}  // namespace sluice
