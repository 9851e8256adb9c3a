// gemm_roofline.cc - the rate of matrix products this machine reaches when rank threads run a
// model's own shapes and nothing else: the ceiling that training speed is a share of.
//
// Every rank thread has one ATen thread, as in the engine. Each linear layer is measured in its
// three products (forward, gradient of the input, gradient of the weight) into outputs that exist
// already; all threads start each product together and the slowest one counts. The weighted rate is
// what a step would reach if its products ran at these rates: total work over total time.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

/// y_TN = x_TK w_NK^T, `count` times per token and step.
struct Linear {
  std::string name;
  std::int64_t num_inputs = 0, num_outputs = 0;
  double count = 1.0;
};

struct Options {
  std::int64_t hidden = 512, intermediate = 1408, layers = 8, heads = 8, kv_heads = 4;
  std::int64_t vocabulary = 32000, vocabulary_tile = 2000;
  std::vector<std::int64_t> tokens = {512, 2048};
  int num_threads = 2;
  int rounds = 3;
  double seconds = 0.1;
  std::string format = "text";
};

std::vector<Linear> linears(const Options& o) {
  const auto layers = static_cast<double>(o.layers);
  const std::int64_t kv = o.hidden / o.heads * o.kv_heads;
  const double tiles = static_cast<double>(o.vocabulary) / static_cast<double>(o.vocabulary_tile);
  return {{"attention q, o", o.hidden, o.hidden, 2 * layers},
          {"attention k, v", o.hidden, kv, 2 * layers},
          {"mlp gate, up", o.hidden, o.intermediate, 2 * layers},
          {"mlp down", o.intermediate, o.hidden, layers},
          {"vocabulary tile", o.hidden, o.vocabulary_tile, tiles}};
}

enum class Product { kForward, kInputGradient, kWeightGradient };
constexpr Product kProducts[] = {Product::kForward, Product::kInputGradient,
                                 Product::kWeightGradient};

double flops(const Linear& linear, std::int64_t tokens) {
  return 2.0 * static_cast<double>(linear.num_inputs) * static_cast<double>(linear.num_outputs) *
         static_cast<double>(tokens);
}

/// The tensors of one product on one thread.
class Operands {
 public:
  Operands(const Linear& l, std::int64_t tokens, Product product) {
    const at::Tensor w_NK = at::rand({l.num_outputs, l.num_inputs});
    const at::Tensor x_TK = at::rand({tokens, l.num_inputs});
    const at::Tensor dy_TN = at::rand({tokens, l.num_outputs});
    switch (product) {
      case Product::kForward:
        set(x_TK, w_NK.t());
        break;
      case Product::kInputGradient:
        set(dy_TN, w_NK);
        break;
      case Product::kWeightGradient:
        set(dy_TN.t(), x_TK);
        break;
    }
  }
  void run() { at::mm_out(out_, left_, right_); }

 private:
  void set(const at::Tensor& left, const at::Tensor& right) {
    left_ = left;
    right_ = right;
    out_ = at::empty({left.size(0), right.size(1)});
  }
  at::Tensor left_, right_, out_;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds of one product when every thread runs its own: the median of the rounds. A round repeats
/// the product for about `options.seconds`.
double measure(const Linear& linear, std::int64_t tokens, Product product, const Options& options) {
  std::barrier together(options.num_threads);
  std::vector<std::vector<double>> seconds(static_cast<std::size_t>(options.num_threads));
  int repeats = 1;
  const auto rank = [&](int index) {
    at::set_num_threads(1);
    Operands operands(linear, tokens, product);
    operands.run();
    if (index == 0) {
      const auto start = Clock::now();
      operands.run();
      repeats = std::max(1, static_cast<int>(options.seconds / seconds_since(start)));
    }
    for (int round = 0; round < options.rounds; ++round) {
      together.arrive_and_wait();
      const auto start = Clock::now();
      for (int i = 0; i < repeats; ++i) operands.run();
      seconds[static_cast<std::size_t>(index)].push_back(seconds_since(start) / repeats);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < options.num_threads; ++i) threads.emplace_back(rank, i);
  threads.clear();

  std::vector<double> slowest;
  for (std::size_t round = 0; round < seconds[0].size(); ++round) {
    double most = 0.0;
    for (const auto& of_thread : seconds) most = std::max(most, of_thread[round]);
    slowest.push_back(most);
  }
  std::nth_element(slowest.begin(), slowest.begin() + std::ssize(slowest) / 2, slowest.end());
  return slowest[slowest.size() / 2];
}

nlohmann::json measure_all(const Options& options) {
  nlohmann::json result = {{"threads", options.num_threads}, {"lengths", nlohmann::json::array()}};
  for (const std::int64_t tokens : options.tokens) {
    nlohmann::json rows = nlohmann::json::array();
    double work = 0.0, time = 0.0;
    for (const Linear& linear : linears(options)) {
      const double work_of_one = flops(linear, tokens) * options.num_threads;
      nlohmann::json gigaflops = nlohmann::json::array();
      for (const Product product : kProducts) {
        const double seconds = measure(linear, tokens, product, options);
        gigaflops.push_back(work_of_one / seconds / 1e9);
        work += linear.count * work_of_one;
        time += linear.count * seconds;
      }
      rows.push_back({{"name", linear.name},
                      {"inputs", linear.num_inputs},
                      {"outputs", linear.num_outputs},
                      {"gigaflops", gigaflops}});
    }
    result["lengths"].push_back(
        {{"tokens", tokens}, {"products", rows}, {"weighted_gigaflops", work / time / 1e9}});
  }
  return result;
}

void print_text(const nlohmann::json& result) {
  fmt::print("GF/s of {} threads together, fp32\n", result["threads"].get<int>());
  for (const auto& length : result["lengths"]) {
    fmt::print("\n{:5} tokens  {:>12} {:>10} {:>10} {:>10}\n", length["tokens"].get<int>(),
               "in x out", "forward", "d input", "d weight");
    for (const auto& row : length["products"]) {
      fmt::print("{:<16} {:>8}", row["name"].get<std::string>(),
                 fmt::format("{} x {}", row["inputs"].get<int>(), row["outputs"].get<int>()));
      for (const double rate : row["gigaflops"]) fmt::print(" {:10.1f}", rate);
      fmt::print("\n");
    }
    fmt::print("weighted by work {:>40.1f}\n", length["weighted_gigaflops"].get<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Rate of a Llama model's matrix products on this machine.\n"
      "Example: gemm_roofline --hidden 512 --tokens 512 2048"};
  app.add_option("--hidden", options.hidden);
  app.add_option("--intermediate", options.intermediate);
  app.add_option("--layers", options.layers);
  app.add_option("--heads", options.heads);
  app.add_option("--kv-heads", options.kv_heads);
  app.add_option("--vocabulary", options.vocabulary);
  app.add_option("--vocabulary-tile", options.vocabulary_tile, "outputs of one vocabulary product");
  app.add_option("--tokens", options.tokens, "tokens of a product, one table each");
  app.add_option("--threads", options.num_threads, "rank threads")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "rounds; the median counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "length of a round");
  app.add_option("--format", options.format)->check(CLI::IsMember({"text", "json"}));
  CLI11_PARSE(app, argc, argv);
  const nlohmann::json result = measure_all(options);
  if (options.format == "json") {
    fmt::print("{}\n", result.dump());
  } else {
    print_text(result);
  }
  return 0;
}
