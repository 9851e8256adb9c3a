// config_keys.h - the table of every key of config.toml: place, rule and meaning. Reading, writing,
// help and "did you mean" all walk it. Read next: config.cc.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/train/config.h"

namespace sluice {

/// `text` as a TOML string in quotes.
std::string quote_toml(std::string_view text);

/// Whole numbers from low to high.
struct IntegerRule {
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};

/// Numbers from low to high; an open end is not allowed itself. NaN never is.
struct RealRule {
  double low = 0.0;
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};

/// One of these words.
struct ChoiceRule {
  std::vector<std::string_view> words;
};

/// Any text.
struct TextRule {};

/// A list of texts; one text counts as a list of one.
struct TextListRule {};

/// A word, a list of whole numbers >= 0 or a layout string: pipeline.layers.
struct LayersRule {};

/// One of the words or a whole number >= 1: pipeline.offload.
struct ChoiceOrCountRule {
  std::vector<std::string_view> words;
};

/// Calls visitor.section(name, meaning) for every section and visitor.key(name, member, rule,
/// meaning) for every key below it, in the order config.toml is written. Config is RunConfig or
/// const RunConfig.
template <typename Config, typename Visitor>
void visit_keys(Config& config, Visitor& visitor) {
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;
  const RealRule above_zero{.low = 0.0, .low_open = true};
  const RealRule share{.low = 0.0, .high = 1.0, .high_open = true};

  auto& model = config.model;
  visitor.section("model", "names as in a Hugging Face config.json");
  visitor.key("vocab_size", model.vocab_size, IntegerRule{1, kMaxInt}, "tokens of the vocabulary");
  visitor.key("hidden_size", model.hidden_size, IntegerRule{1, kMaxInt}, "width of the model");
  visitor.key("intermediate_size", model.intermediate_size, IntegerRule{1, kMaxInt},
              "width of the feed-forward part");
  visitor.key("num_hidden_layers", model.num_hidden_layers, IntegerRule{1, 100000},
              "decoder layers");
  visitor.key("num_attention_heads", model.num_attention_heads, IntegerRule{1, kMaxInt},
              "query heads; divides hidden_size");
  visitor.key("num_key_value_heads", model.num_key_value_heads, IntegerRule{1, kMaxInt},
              "key and value heads; divides num_attention_heads");
  visitor.key("rope_theta", model.rope_theta, above_zero, "base of the rotary embedding");
  visitor.key("rms_norm_eps", model.rms_norm_eps, above_zero, "epsilon of the norms");
  visitor.key("tie_word_embeddings", model.tie_word_embeddings,
              "output layer and embedding share one matrix");
  visitor.key("initializer_range", model.initializer_range, RealRule{},
              "standard deviation of fresh weights");
  visitor.key("dtype", model.dtype, "float32, float64 or bfloat16");
  visitor.key("recompute", model.recompute, "what backward computes again: none, selective, full");
  visitor.key("weights", config.model_weights, TextRule{},
              "folder (Hugging Face or checkpoint) whose weights and sizes to start from");

  auto& data = config.data;
  visitor.section("data", "files or folders of text, or token files");
  visitor.key("paths", data.paths, TextListRule{}, "files, folders or patterns");
  visitor.key("validation_paths", data.validation_paths, TextListRule{},
              "validation data; empty: a part of paths");
  visitor.key("validation_fraction", data.validation_fraction, share,
              "part of paths kept for validation");
  visitor.key("format", data.format, ChoiceRule{{"auto", "text", "nanogpt", "llm.c", "megatron"}},
              "auto, text, nanogpt, llm.c or megatron");
  visitor.key("tokenizer", data.tokenizer, ChoiceRule{{"bytes", "none"}},
              "bytes: text is read as bytes; none: paths are token files");
  visitor.key("include", data.include, TextListRule{}, "patterns of the files taken from folders");
  visitor.key("ignore", data.ignore, TextListRule{}, "patterns of files and folders left out");
  visitor.key("sequence_length", data.sequence_length, IntegerRule{1, kMaxInt},
              "tokens of one sequence");

  auto& pipeline = config.pipeline;
  visitor.section("pipeline", "how a step is cut into passes and who runs them");
  visitor.key("schedule", pipeline.schedule, TextRule{}, "a name of `sluice schedule list`");
  visitor.key("ranks", pipeline.ranks, IntegerRule{1, 65536}, "workers of the pipeline");
  visitor.key("layers", pipeline.layers, LayersRule{},
              "auto, uniform, a list such as [3, 3, 2], or a layout string");
  visitor.key("chunks", pipeline.chunks, IntegerRule{0, 65536},
              "stages per rank; 0: the schedule's default");
  visitor.key("slices", pipeline.slices, IntegerRule{1, 65536}, "pieces of a sequence");
  visitor.key("group", pipeline.group, IntegerRule{0, kMaxInt},
              "microbatch group of interleaved and gis; 0: the schedule's default");
  visitor.key("microbatches", pipeline.microbatches, IntegerRule{1, 1 << 24},
              "microbatches of one step, of all pipelines together");
  visitor.key("microbatch_size", pipeline.microbatch_size, IntegerRule{1, 1 << 24},
              "sequences of one microbatch");
  visitor.key("exchange", pipeline.exchange, ChoiceRule{{"auto", "none", "pairwise", "balanced"}},
              "attention exchange between stages; auto: the first steps find out whether it pays");
  visitor.key("vocab", pipeline.vocab, ChoiceRule{{"last", "parallel-1", "parallel-2", "auto"}},
              "embedding and output layer: on the last stage, or sharded over all ranks");
  visitor.key("vocab_keep", pipeline.vocab_keep, ChoiceRule{{"auto", "probabilities", "recompute"}},
              "what T of a sharded output layer uses");
  visitor.key(
      "offload", pipeline.offload, ChoiceOrCountRule{{"none", "half", "full", "auto"}},
      "activations moved out of device memory: none, half, full, auto or a count of chunks");
  visitor.key("offload_tier", pipeline.offload_tier, ChoiceRule{{"host", "disk"}}, "where to");
  visitor.key("offload_dir", pipeline.offload_dir, TextRule{}, "folder of the disk tier");
  visitor.key("offload_slowdown", pipeline.offload_slowdown, RealRule{},
              "share by which a step may get longer for offload");
  visitor.key(
      "offload_replan", pipeline.offload_replan, RealRule{},
      "share by which measured passes or copies may differ from the plan's before offload is "
      "planned again");

  auto& parallel = config.parallel;
  visitor.section("parallel", "pipelines beside each other");
  visitor.key("data", parallel.data, IntegerRule{1, 65536},
              "pipelines that share a step's microbatches and shard the optimizer");

  auto& train = config.train;
  visitor.section("train", "the optimizer, and how often what happens");
  visitor.key("steps", train.steps, IntegerRule{0, kMaxSize}, "optimizer steps");
  visitor.key("learning_rate", train.learning_rate, RealRule{}, "peak learning rate");
  visitor.key("min_learning_rate", train.min_learning_rate, RealRule{},
              "at the end of the cosine; not given: a tenth of learning_rate");
  visitor.key("warmup_steps", train.warmup_steps, IntegerRule{0, kMaxSize},
              "steps of linear warm-up; not given: a twentieth of steps, at most 100");
  visitor.key("weight_decay", train.weight_decay, RealRule{}, "decoupled, on matrices only");
  visitor.key("beta1", train.beta1, share, "decay of the mean gradient");
  visitor.key("beta2", train.beta2, share, "decay of the mean squared gradient");
  visitor.key("epsilon", train.epsilon, above_zero, "added to AdamW's denominator");
  visitor.key("grad_clip", train.grad_clip, RealRule{}, "largest global gradient norm; 0: any");
  visitor.key("z_loss", train.z_loss, RealRule{}, "weight of the squared logsumexp");
  visitor.key("label_smoothing", train.label_smoothing, share,
              "share of every target spread over the vocabulary; needs a sharded vocabulary");
  visitor.key("eval_every", train.eval_every, IntegerRule{0, kMaxSize},
              "steps between validations; 0: none");
  visitor.key("validation_batches", train.validation_batches, IntegerRule{1, kMaxSize},
              "global batches of one validation");
  visitor.key("checkpoint_every", train.checkpoint_every, IntegerRule{0, kMaxSize},
              "steps between checkpoints; 0: only at the end");

  auto& run = config.run;
  visitor.section("run", "where and on what");
  visitor.key("dir", run.dir, TextRule{}, "folder of everything the run writes");
  visitor.key("seed", run.seed, IntegerRule{}, "of weights and data order");
  visitor.key("transport", run.transport, ChoiceRule{{"auto", "threads", "mpi", "nccl"}},
              "how ranks talk; auto: mpi under mpirun or srun, else threads");
  visitor.key("device", run.device, ChoiceRule{{"cpu", "cuda"}}, "where tensors live");
  visitor.key("trace_step", run.trace_step, IntegerRule{}, "step written to trace.json; 0: none");
  visitor.key("keep_checkpoints", run.keep_checkpoints, IntegerRule{},
              "newest checkpoints kept; 0: all");
  visitor.key("background_checkpoints", run.background_checkpoints,
              "train on while a checkpoint is written, from a copy of what it holds");
  visitor.key("timeout_seconds", run.timeout_seconds, RealRule{0.0, 1e9, true, false},
              "longest wait for a peer");
  visitor.key("check_offload", run.check_offload,
              "compare checksums of activations that come back from host or disk");
  visitor.key("tensorboard", run.tensorboard, "also write TensorBoard event files");
  visitor.key("rank_logs", run.rank_logs,
              "also write ranks/rank-N.jsonl: time, compute time and memory of every rank's steps");
}

/// A word of an enumeration.
template <typename Enum>
struct NamedValue {
  Enum value;
  std::string_view name;
};

/// Names of DType, the first of each value being the one that is written.
inline constexpr NamedValue<DType> kDTypeNames[] = {
    {DType::kFloat32, "float32"}, {DType::kFloat64, "float64"}, {DType::kBFloat16, "bfloat16"},
    {DType::kFloat32, "fp32"},    {DType::kFloat64, "fp64"},    {DType::kBFloat16, "bf16"},
};
inline constexpr NamedValue<Recompute> kRecomputeNames[] = {
    {Recompute::kNone, "none"},
    {Recompute::kSelective, "selective"},
    {Recompute::kFull, "full"},
};

/// The first name of `value` in `names`.
template <typename Enum, std::size_t N>
std::string_view name_of(Enum value, const NamedValue<Enum> (&names)[N]) {
  for (const auto& entry : names) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

}  // namespace sluice
