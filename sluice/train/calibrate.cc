#include "sluice/train/calibrate.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "sluice/model/dtype.h"
#include "sluice/runtime/rank_thread.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

double measure_gemm_rate(const std::vector<std::unique_ptr<Transport>>& transports,
                         const ModelConfig& model, std::int64_t tokens) {
  const std::int64_t rows = std::clamp<std::int64_t>(tokens, 64, 512);
  const std::int64_t inner = std::min<std::int64_t>(model.hidden_size, 1024);
  const std::int64_t columns = std::min<std::int64_t>(model.intermediate_size, 2048);
  const double flops = 2.0 * static_cast<double>(rows * inner * columns);
  std::mutex mutex;
  double total = 0.0;
  run_ranks(transports, [&](Transport& transport) {
    const auto options = at::TensorOptions().dtype(value_type(model.dtype));
    const at::Tensor x = at::ones({rows, inner}, options);
    const at::Tensor w = at::ones({inner, columns}, options);
    at::mm(x, w);  // first use sets up threads and code paths
    transport.barrier();
    double best = 0.0;
    const auto begin = Clock::now();
    while (seconds_since(begin) < 0.1) {
      const auto start = Clock::now();
      at::mm(x, w);
      best = std::max(best, flops / seconds_since(start));
    }
    // All get the same sum, and so the same plan.
    double sum = 0.0;
    for (const auto& rate : transport.all_gather(std::vector{best})) sum += rate[0];
    const std::lock_guard lock(mutex);
    total = sum;
  });
  return total;
}

}  // namespace sluice
