#include "sluice/train/tensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>

#include "sluice/model/stage.h"
#include "sluice/train/checkpoint.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

ModelConfig small_model(DType dtype, bool tied) {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.tie_word_embeddings = tied;
  config.dtype = dtype;
  return config;
}

/// The whole model in one stage, or in two.
std::vector<Stage> make_stages(const ModelConfig& config, int num_stages, std::uint64_t seed) {
  const auto layers = static_cast<int>(config.num_hidden_layers);
  std::vector<Stage> stages;
  if (num_stages == 1) {
    stages.emplace_back(config, StageLayers{0, layers, true, true}, at::kCPU, seed);
  } else {
    stages.emplace_back(config, StageLayers{0, 1, true, false}, at::kCPU, seed);
    stages.emplace_back(config, StageLayers{1, layers - 1, false, true}, at::kCPU, seed);
  }
  return stages;
}

/// Writes all parameters with moments that are functions of them.
std::filesystem::path save(const std::filesystem::path& folder, const ModelConfig& model,
                           std::vector<Stage>& stages) {
  RunConfig config;
  config.model = model;
  config.data.paths = {"text"};
  CheckpointContents contents{.state = make_state(config, 3, 48, 1, "digest"),
                              .config_toml = to_toml(config)};
  for (Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters()) {
      AdamState state = make_adam_state(parameter);
      state.exp_avg.copy_(parameter.value).mul_(2.0);
      state.exp_avg_sq.copy_(parameter.value).mul_(3.0);
      if (state.master.defined()) state.master.add_(1e-6);
      add_to_checkpoint(parameter, state, contents.weights, contents.optimizer);
    }
  }
  return write_checkpoint(folder, contents, 0);
}

TEST(Tensors, PassThroughACheckpointIntoAnotherLayout) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const bool tied : {false, true}) {
      const TestFolder folder;
      const ModelConfig model = small_model(dtype, tied);
      std::vector<Stage> saved = make_stages(model, 2, 1);
      const Checkpoint checkpoint = open_checkpoint(save(folder.path(), model, saved));

      std::vector<Stage> loaded = make_stages(model, 1, 2);
      std::map<std::string, Parameter*> by_name;
      for (Stage& stage : saved) {
        for (Parameter& parameter : stage.parameters()) by_name[parameter.spec.name] = &parameter;
      }
      for (Parameter& parameter : loaded[0].parameters()) {
        const Parameter& original = *by_name.at(parameter.spec.name);
        load_parameter(checkpoint.weights, parameter);
        EXPECT_TRUE(at::equal(parameter.value, original.value)) << parameter.spec.name;
        if (!parameter.spec.tied_to.empty()) continue;
        AdamState state = make_adam_state(parameter);
        load_state(checkpoint.optimizer, parameter, state);
        const at::Tensor value = original.value.to(state.exp_avg.scalar_type());
        EXPECT_TRUE(at::equal(state.exp_avg, value * 2.0));
        EXPECT_TRUE(at::equal(state.exp_avg_sq, value * 3.0));
        const bool mixed = dtype == DType::kBFloat16;
        EXPECT_EQ(state.master.defined(), mixed);
        if (mixed) {
          EXPECT_TRUE(at::equal(state.master, value + 1e-6));
        }
      }
    }
  }
}

TEST(WeightShapes, AreThoseOfTheStages) {
  for (const bool tied : {false, true}) {
    const ModelConfig model = small_model(DType::kFloat32, tied);
    std::vector<WeightShape> shapes;
    for (Stage& stage : make_stages(model, 2, 1)) {
      for (const Parameter& parameter : stage.parameters()) {
        if (!parameter.spec.tied_to.empty()) continue;
        shapes.push_back({parameter.spec.name, parameter.spec.shape});
        EXPECT_EQ(parameter.value.sizes().vec(), parameter.spec.shape);
      }
    }
    const auto by_name = [](const WeightShape& a, const WeightShape& b) { return a.name < b.name; };
    std::vector<WeightShape> expected = weight_shapes(model);
    std::sort(shapes.begin(), shapes.end(), by_name);
    std::sort(expected.begin(), expected.end(), by_name);
    EXPECT_EQ(shapes, expected);
  }
}

TEST(Tensors, AreConvertedWhenTheTypesDiffer) {
  const TestFolder folder;
  const at::Tensor original = torch::randn({5, 3});
  for (const at::ScalarType stored : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    FileWriter writer(folder.path() / "model.safetensors");
    write_safetensors(writer, {named_bytes("a", original.to(stored))});
    writer.close();
    const TensorFiles files = TensorFiles::open(folder.path(), "model");
    for (const at::ScalarType wanted : {at::kFloat, at::kDouble, at::kBFloat16}) {
      at::Tensor loaded = torch::zeros({5, 3}, wanted);
      copy_into(files.at("a"), loaded);
      EXPECT_TRUE(at::equal(loaded, original.to(stored).to(wanted)));
    }
    at::Tensor wrong = torch::zeros({3, 5});
    EXPECT_CONTAINS(message_of<Failure>([&] { copy_into(files.at("a"), wrong); }),
                    "a has shape [5, 3], the model needs [3, 5]");
  }
}

TEST(Tensors, AreWrittenRowMajor) {
  const at::Tensor tensor = torch::arange(6, at::kFloat).view({2, 3});
  const NamedBytes transposed = named_bytes("t", tensor.t());
  EXPECT_EQ(transposed.shape, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(load_at<float>(transposed.bytes, 4), 3.0F);
  const NamedBytes shared = named_bytes("s", tensor);
  EXPECT_EQ(static_cast<const void*>(shared.bytes.data()), tensor.const_data_ptr());
}

}  // namespace
}  // namespace sluice
