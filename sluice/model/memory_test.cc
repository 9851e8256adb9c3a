// stage_bytes() against what an allocator counted while the passes ran.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "sluice/model/stage.h"

namespace sluice {
namespace {

// Where a block is charged: a pass's own, a boundary tensor, kept between passes, or the context's.
enum class Charge : std::uint8_t { kTransient, kBoundary, kKept, kKeyValue, kKvGradient };

// Counts requested bytes by charge.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    void* data = nullptr;
    if (num_bytes > 0) {
      data = std::aligned_alloc(64, (num_bytes + 63) / 64 * 64);
      const std::lock_guard lock(mutex_);
      blocks_[data] = {static_cast<std::int64_t>(num_bytes), Charge::kTransient};
      add(Charge::kTransient, static_cast<std::int64_t>(num_bytes));
    }
    return {data, data, &release, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }

  void charge(const at::Tensor& tensor, Charge to) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(tensor.storage().mutable_data());
    ASSERT_NE(block, blocks_.end());
    ASSERT_TRUE(block->second.charge == Charge::kTransient ||
                (to == Charge::kKept && block->second.charge == Charge::kBoundary))
        << "reported twice";
    ASSERT_EQ(block->second.num_bytes, static_cast<std::int64_t>(tensor.nbytes()))
        << "a view of a larger storage";
    // Not add(): a moment between both would look like a peak or a dip.
    live(block->second.charge) -= block->second.num_bytes;
    block->second.charge = to;
    add(to, block->second.num_bytes);
  }

  void restart_peak() {
    const std::lock_guard lock(mutex_);
    base_ = peak_ = live(Charge::kTransient);
    total_base_ = total_peak_ = total();
    kept_peak_ = live(Charge::kKept);
    gradient_base_ = gradient_peak_ = live(Charge::kKvGradient);
  }
  /// Peak of what was allocated since restart_peak() and not reported as kept.
  std::int64_t transient_peak() const { return peak_ - base_; }
  /// Peak of everything, beyond what was there at restart_peak().
  std::int64_t total_peak() const { return total_peak_ - total_base_; }
  std::int64_t kept_peak() const { return kept_peak_; }
  /// Likewise of the gradients of keys and values.
  std::int64_t gradient_peak() const { return gradient_peak_ - gradient_base_; }
  std::int64_t kept() const { return live_[static_cast<std::size_t>(Charge::kKept)]; }

  static CountingAllocator& instance() {
    static auto* allocator = [] {
      auto* made = new CountingAllocator;  // outlives every tensor
      c10::SetCPUAllocator(made);
      return made;
    }();
    return *allocator;
  }

 private:
  struct Block {
    std::int64_t num_bytes;
    Charge charge;
  };

  static void release(void* data) {
    if (data == nullptr) return;
    CountingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const Block block = self.blocks_.at(data);
      self.blocks_.erase(data);
      self.add(block.charge, -block.num_bytes);
    }
    std::free(data);
  }

  std::int64_t& live(Charge charge) { return live_[static_cast<std::size_t>(charge)]; }
  void add(Charge charge, std::int64_t num_bytes) {
    live(charge) += num_bytes;
    peak_ = std::max(peak_, live(Charge::kTransient));
    kept_peak_ = std::max(kept_peak_, live(Charge::kKept));
    gradient_peak_ = std::max(gradient_peak_, live(Charge::kKvGradient));
    total_peak_ = std::max(total_peak_, total());
  }
  std::int64_t total() {
    return live(Charge::kTransient) + live(Charge::kBoundary) + live(Charge::kKept) +
           live(Charge::kKeyValue) + live(Charge::kKvGradient);
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::array<std::int64_t, 5> live_{};
  std::int64_t peak_ = 0, base_ = 0, total_peak_ = 0, total_base_ = 0, kept_peak_ = 0;
  std::int64_t gradient_peak_ = 0, gradient_base_ = 0;
};

struct Case {
  std::string name;
  ModelConfig config;
  StageLayers layers;
  std::int64_t batch = 2, tokens = 24;
  int num_slices = 1;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

class Memory : public testing::TestWithParam<Case> {};

std::int64_t saved_bytes(const StageSaved& saved) {
  std::set<const void*> storages;
  std::int64_t bytes = 0;
  const auto add = [&](const SavedTensors& list) {
    for (const at::Tensor& tensor : list.tensors) {
      EXPECT_TRUE(tensor.defined() && tensor.is_contiguous());
      if (storages.insert(tensor.storage().data()).second) {
        bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
      }
    }
  };
  add(saved.embedding);
  for (const SavedTensors& layer : saved.layers) add(layer);
  add(saved.head);
  return bytes;
}

// One microbatch through one stage, its slices in order, with every pass measured.
class MeasuredStage {
 public:
  explicit MeasuredStage(const Case& c)
      : case_(c),
        predicted_(stage_bytes(c.config, c.layers, c.batch, c.tokens, c.num_slices)),
        stage_(c.config, c.layers, at::kCPU, 1) {
    context_.num_slices = c.num_slices;
    context_.keep_key_value = [this](const at::Tensor& t) { hear(t, Charge::kKeyValue, kv_); };
    context_.keep_gradient = [this](const at::Tensor& t) { hear(t, Charge::kKvGradient, dkv_); };
    saved_.resize(static_cast<std::size_t>(c.num_slices));
    const auto ids = at::TensorOptions().dtype(at::kLong);
    // Views of something larger, as a trainer passes them.
    ids_ = at::zeros({c.batch, c.tokens + 3}, ids);
  }

  void forward(int slice) {
    StageInput input{.first_position = slice * case_.tokens, .slice = slice};
    const at::Tensor ids = ids_.narrow(1, 1, case_.tokens);
    if (case_.layers.has_embedding) {
      input.tokens_BT = ids;
    } else {
      input.x_BTD = boundary();
    }
    if (case_.layers.has_head) input.targets_BT = ids;
    StageSaved& saved = saved_[static_cast<std::size_t>(slice)];
    const std::int64_t kept_before = allocator_.kept(), kv_before = kv_;
    allocator_.restart_peak();
    const at::Tensor y = stage_.forward(input, context_, saved, keep_);
    expect_peaks(slice, predicted_.workspace_forward, predicted_.peak_forward);
    input = {};
    EXPECT_EQ(saved_bytes(saved), predicted_.saved);
    EXPECT_EQ(kv_ - kv_before, predicted_.kv_cache);
    EXPECT_EQ(allocator_.kept() - kept_before, predicted_.saved);
    if (y.defined()) {
      EXPECT_EQ(static_cast<std::int64_t>(y.nbytes()), predicted_.boundary);
    }
  }

  void backward(int slice) {
    at::Tensor dy = case_.layers.has_head ? at::Tensor() : boundary();
    allocator_.restart_peak();
    stage_.backward(dy, {}, context_, saved_[static_cast<std::size_t>(slice)], keep_, nullptr);
    const bool last = slice + 1 == case_.num_slices;
    expect_peaks(
        slice, last ? predicted_.last_slice.workspace_backward : predicted_.workspace_backward,
        (last ? predicted_.last_slice.peak_backward : predicted_.peak_backward) - predicted_.saved);
    EXPECT_EQ(allocator_.gradient_peak(), last ? predicted_.last_slice.kv_gradient : 0);
  }

  void backward_input(int slice) {
    at::Tensor dy = case_.layers.has_head ? at::Tensor() : boundary();
    StageSaved& saved = saved_[static_cast<std::size_t>(slice)];
    const std::int64_t kept_before = allocator_.kept();
    allocator_.restart_peak();
    stage_.backward_input(dy, {}, context_, saved, keep_, nullptr);
    const bool last = slice + 1 == case_.num_slices;
    expect_peaks(
        slice,
        last ? predicted_.last_slice.workspace_backward_input : predicted_.workspace_backward_input,
        (last ? predicted_.last_slice.peak_backward_input : predicted_.peak_backward_input) -
            predicted_.saved);
    EXPECT_EQ(allocator_.gradient_peak(), last ? predicted_.last_slice.kv_gradient : 0);
    EXPECT_EQ(allocator_.kept_peak() - kept_before + predicted_.saved,
              predicted_.peak_saved_backward_input);
    EXPECT_EQ(saved_bytes(saved), predicted_.saved_for_weight);
  }

  void backward_weight(int slice) {
    allocator_.restart_peak();
    stage_.backward_weight(saved_[static_cast<std::size_t>(slice)]);
    EXPECT_EQ(allocator_.transient_peak(), predicted_.workspace_backward_weight);
  }

  std::int64_t kv_gradients_heard() const { return dkv_; }
  const StageBytes& predicted() const { return predicted_; }

 private:
  // The first slice has no earlier ones to look at, so it may need less than the prediction, which
  // is for all.
  void expect_peaks(int slice, std::int64_t workspace, std::int64_t total) {
    if (slice > 0 || case_.num_slices == 1) {
      EXPECT_EQ(allocator_.transient_peak(), workspace);
      EXPECT_EQ(allocator_.total_peak(), total);
    } else {
      EXPECT_LE(allocator_.transient_peak(), workspace);
      EXPECT_LE(allocator_.total_peak(), total);
    }
  }
  at::Tensor boundary() const {
    at::Tensor tensor =
        at::zeros({case_.batch, case_.tokens, case_.config.hidden_size},
                  at::TensorOptions().dtype(case_.config.dtype == DType::kFloat64 ? at::kDouble
                                                                                  : at::kFloat));
    allocator_.charge(tensor, Charge::kBoundary);
    return tensor;
  }
  void hear(const at::Tensor& tensor, Charge charge, std::int64_t& sum) {
    allocator_.charge(tensor, charge);
    sum += static_cast<std::int64_t>(tensor.nbytes());
  }

  CountingAllocator& allocator_ = CountingAllocator::instance();
  Case case_;
  StageBytes predicted_;
  Stage stage_;
  KeyValueContext context_;
  std::vector<StageSaved> saved_;
  at::Tensor ids_;
  std::int64_t kv_ = 0, dkv_ = 0;
  KeepTensor keep_ = [this](const at::Tensor& t) { allocator_.charge(t, Charge::kKept); };
};

TEST_P(Memory, OfEveryPassIsPredictedToTheByte) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const Case& c = GetParam();
  CountingAllocator& allocator = CountingAllocator::instance();
  const std::int64_t kept_at_start = allocator.kept();
  MeasuredStage whole(c);
  for (int slice = 0; slice < c.num_slices; ++slice) whole.forward(slice);
  for (int slice = c.num_slices; slice-- > 0;) whole.backward(slice);
  EXPECT_EQ(whole.kv_gradients_heard(), c.num_slices * whole.predicted().kv_gradient);
  EXPECT_EQ(allocator.kept(), kept_at_start) << "B left something";

  MeasuredStage split(c);
  for (int slice = 0; slice < c.num_slices; ++slice) split.forward(slice);
  for (int slice = c.num_slices; slice-- > 0;) split.backward_input(slice);
  for (int slice = 0; slice < c.num_slices; ++slice) split.backward_weight(slice);
  EXPECT_EQ(allocator.kept(), kept_at_start) << "W left something";
}

TEST_P(Memory, OfWeightsAndGradientsIsPredictedToTheByte) {
  const Case& c = GetParam();
  CountingAllocator::instance();
  const Stage stage(c.config, c.layers, at::kCPU, 1);
  const StageBytes predicted = stage_bytes(c.config, c.layers, c.batch, c.tokens, c.num_slices);
  std::int64_t weights = 0, gradients = 0;
  for (const Parameter& parameter : stage.parameters()) {
    weights += static_cast<std::int64_t>(parameter.value.nbytes());
    gradients += static_cast<std::int64_t>(parameter.gradient.nbytes());
  }
  EXPECT_EQ(predicted.weights, weights);
  EXPECT_EQ(predicted.gradients, gradients);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int slices : {1, 3}) {
        for (const int place : {0, 1, 2, 3}) {
          for (const int num_layers : {0, 1, 3}) {
            Case c;
            c.name = fmt::format("{}_recompute_{}_slices_{}{}{}_layers_{}",
                                 dtype == DType::kFloat32 ? "fp32" : "fp64", static_cast<int>(mode),
                                 slices, place & 1 ? "_embedding" : "", place & 2 ? "_head" : "",
                                 num_layers);
            c.config = {.vocab_size = 48,
                        .hidden_size = 32,
                        .intermediate_size = 40,
                        .num_hidden_layers = 3,
                        .num_attention_heads = 4,
                        .num_key_value_heads = 2,
                        .dtype = dtype,
                        .recompute = mode};
            c.layers = {0, num_layers, (place & 1) != 0, (place & 2) != 0};
            c.num_slices = slices;
            cases.push_back(c);
          }
        }
      }
    }
  }
  Case tiles = cases[2 + 9];
  tiles.name = "several_tiles_of_scores_and_logits";
  tiles.config.vocab_size = 70000;
  tiles.tokens = 600;
  tiles.layers = {0, 1, true, true};
  cases.push_back(tiles);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Stage, Memory, testing::ValuesIn(all_cases()),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace sluice
