// The entries of the library. In the formulas: p ranks, m microbatches, v chunks, n slices, g the
// group; F, I, W the times of a microbatch on a rank and B = I + W; see docs/schedules.md.
#include "sluice/schedule/generators.h"

namespace sluice {

std::vector<ScheduleInfo> describe_library() {
  std::vector<ScheduleInfo> library;
  library.push_back({.name = "gpipe",
                     .summary = "all forwards, then all backwards: the simplest order",
                     .source = "GPipe, arXiv 1811.06965",
                     .bubble_formula = "(p-1)(F+B)",
                     .memory_formula = "m/p",
                     .rules = "one chunk",
                     .default_chunks = 1,
                     .generate = make_gpipe});
  library.push_back({.name = "1f1b",
                     .summary = "GPipe's bubble with at most p microbatches in flight",
                     .source = "PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv 2007.01045",
                     .bubble_formula = "(p-1)(F+B)",
                     .memory_formula = "min(m, p)/p",
                     .rules = "one chunk",
                     .default_chunks = 1,
                     .generate = make_1f1b});
  library.push_back({.name = "interleaved",
                     .summary = "1F1B over several chunks: less bubble, more messages",
                     .source = "Megatron-LM, arXiv 2104.04473",
                     .bubble_formula = "(p-1)(F+B)/v",
                     .memory_formula = "1 + (p-1)/(pv)",
                     .rules = "any chunks; any group, p by default, best when it divides m",
                     .default_chunks = 2,
                     .generate = make_interleaved});
  library.push_back({.name = "breadth-first",
                     .summary = "GPipe over several chunks: each is visited once per direction",
                     .source = "arXiv 2211.05953",
                     .bubble_formula = "(p-1)(F+B)/v",
                     .memory_formula = "m/p",
                     .rules = "any chunks; best with m >= p",
                     .default_chunks = 2,
                     .generate = make_breadth_first});
  library.push_back({.name = "zb-1p",
                     .summary = "1F1B whose weight passes fill the gaps, in the memory of 1F1B",
                     .source = "Zero Bubble, arXiv 2401.10241",
                     .bubble_formula = "(p-1)(F+I-W)",
                     .memory_formula = "1",
                     .rules = "one chunk; plans with the times it is given",
                     .default_chunks = 1,
                     .generate = make_zb_1p});
  library.push_back({.name = "zb-2p",
                     .summary = "zb-1p with twice the memory and next to no bubble in the span",
                     .source = "Zero Bubble, arXiv 2401.10241",
                     .bubble_formula = "0 in the span at F = I = W",
                     .memory_formula = "2, where a microbatch between I and W counts half",
                     .rules = "one chunk; plans with the times it is given",
                     .default_chunks = 1,
                     .generate = make_zb_2p});
  library.push_back({.name = "zb-v",
                     .summary = "no bubble in the span in the memory of 1F1B, even on all ranks",
                     .source = "Zero Bubble, arXiv 2401.10241",
                     .bubble_formula = "0 in the span at F = I = W",
                     .memory_formula = "1",
                     .rules = "two chunks on a V",
                     .default_chunks = 2,
                     .generate = make_zb_v});
  library.push_back({.name = "1f1b-v",
                     .summary = "two thirds of 1F1B's memory without a split backward",
                     .source = "Controllable memory, arXiv 2405.15362",
                     .bubble_formula = "between 1f1b and interleaved",
                     .memory_formula = "floor((2p+3)/3)/p",
                     .rules = "two chunks on a V",
                     .default_chunks = 2,
                     .generate = make_1f1b_v});
  library.push_back({.name = "v-half",
                     .summary = "half of 1F1B's memory with half of its bubble",
                     .source = "Controllable memory, arXiv 2405.15362",
                     .bubble_formula = "about half of 1f1b at F = I = W",
                     .memory_formula = "floor((p+2)/2)/p",
                     .rules = "two chunks on a V; keep W + 2I >= 2F and W + 2F >= 2I",
                     .default_chunks = 2,
                     .generate = make_v_half});
  library.push_back({.name = "v-min",
                     .summary = "a third of 1F1B's memory, for F, I and W that are alike",
                     .source = "Controllable memory, arXiv 2405.15362",
                     .bubble_formula = "about 2/3 of 1f1b at F = I = W, else more with m",
                     .memory_formula = "floor((p+4)/3)/p",
                     .rules = "two chunks on a V",
                     .default_chunks = 2,
                     .generate = make_v_min});
  library.push_back({.name = "dualpipe-v",
                     .summary = "forwards of one chunk beside backwards of the other",
                     .source = "DeepSeek-V3, arXiv 2412.19437",
                     .bubble_formula = "(p-1)(F+I-W)/2",
                     .memory_formula = "1 + 1/(2p)",
                     .rules = "two chunks on a V; made for m >= 2p",
                     .default_chunks = 2,
                     .generate = make_dualpipe_v});
  library.push_back({.name = "gis",
                     .summary = "interleaved with the backward split in place: less of both",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "(p-1)(F+I)/v + (p-g)(v-1)(F+I-W)/v",
                     .memory_formula = "(g(v-1)+p)/(vp)",
                     .rules = "any chunks; group from ceil(p/2) to p, p by default, best when it "
                              "divides m",
                     .default_chunks = 2,
                     .generate = make_gis});
  library.push_back({.name = "gis-h",
                     .summary = "gis with groups of half the ranks: the least memory",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "that of gis with g = ceil(p/2)",
                     .memory_formula = "that of gis with g = ceil(p/2)",
                     .rules = "any chunks",
                     .default_chunks = 2,
                     .generate = make_gis_h});
  library.push_back({.name = "po",
                     .summary = "gis-h repeated uniformly: made for offload, since few activations "
                                "live long",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "below (p-1)(F+B)",
                     .memory_formula = "about (v+1)/(2v)",
                     .rules = "any chunks",
                     .default_chunks = 2,
                     .generate = make_po});
  library.push_back({.name = "po-h",
                     .summary = "po that copies out the longer-lived half of its chunks",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "that of po",
                     .memory_formula = "about (v+2)/(8v) and what is being copied",
                     .rules = "any chunks; plans with the times and the offload ratio it is given",
                     .default_chunks = 2,
                     .offload = "half",
                     .generate = make_po_h});
  library.push_back({.name = "po-f",
                     .summary = "po that copies out all that the link can carry",
                     .source = "PipeOffload, arXiv 2503.01328",
                     .bubble_formula = "that of po",
                     .memory_formula = "3 to 8 chunks, however many ranks and chunks there are",
                     .rules = "any chunks; plans with the times and the offload ratio it is given",
                     .default_chunks = 2,
                     .offload = "full",
                     .generate = make_po_f});
  library.push_back({.name = "seq1f1b",
                     .summary = "1F1B on slices: activations of little more than one microbatch on "
                                "all ranks together",
                     .source = "Seq1F1B, arXiv 2406.03488",
                     .bubble_formula = "(p-1)(F+B)/n",
                     .memory_formula = "(1 + (p-1)/n)/p",
                     .rules = "one chunk; any slices, best with n >= p; wants attention that all "
                              "slices have alike",
                     .default_chunks = 1,
                     .slices_itself = true,
                     .generate = make_seq1f1b});
  library.push_back({.name = "slimpipe",
                     .summary = "slices through several chunks, attention levelled between ranks: "
                                "the longest sequences",
                     .source = "SlimPipe, arXiv 2504.14519",
                     .bubble_formula = "(p-1)(F+B)/(nv) with exchanged attention",
                     .memory_formula = "(1 + 2(p-1)/(nv))/p",
                     .rules = "any chunks; slices n >= p, best a multiple of p; group: slices that "
                              "visit a chunk together, the least divisor of n from p up by default",
                     .default_chunks = 1,
                     .slices_itself = true,
                     .generate = make_slimpipe});
  library.push_back({.name = "slice-v",
                     .summary = "slices on a V with a split backward: SlimPipe's memory with two "
                                "chunks and less bubble",
                     .source = "the order of DualPipeV, arXiv 2412.19437, on slices",
                     .bubble_formula = "0 in the span at F = I = W",
                     .memory_formula = "(1 + (p-1)/n)/p",
                     .rules = "two chunks on a V; any slices, best with n >= p",
                     .default_chunks = 2,
                     .slices_itself = true,
                     .generate = make_slice_v});
  return library;
}

}  // namespace sluice
