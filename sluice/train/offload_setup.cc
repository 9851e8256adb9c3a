#include "sluice/train/offload_setup.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

std::string folder_of(const PipelineConfig& pipeline) {
  if (pipeline.offload_tier != "disk") return {};
  return pipeline.offload_dir.empty() ? "." : pipeline.offload_dir;
}

std::unique_ptr<FarStore> make_store(const OffloadSlots& slots, const std::string& folder) {
  return folder.empty() ? make_host_store(slots) : make_disk_store(slots, folder);
}

void require_folder(const std::string& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return;
  throw InvalidArgument(
      fmt::format("pipeline.offload_dir = \"{}\": there is no such folder; make it, or name a "
                  "folder that can be written",
                  folder));
}

double seconds_of(const std::function<void()>& what) {
  const auto begin = Clock::now();
  what();
  return std::max(1e-9, std::chrono::duration<double>(Clock::now() - begin).count());
}

}  // namespace

std::string offload_amount(const PipelineConfig& pipeline) {
  return pipeline.offload == "none" ? find_schedule(pipeline.schedule).offload : pipeline.offload;
}

CopyRates measure_copy_rates(const PipelineConfig& pipeline) {
  if (offload_amount(pipeline) == "none") return {};
  constexpr std::int64_t kUnit = std::int64_t{8} << 20;
  constexpr std::size_t kUnits = 4;
  const std::string folder = folder_of(pipeline);
  require_folder(folder);
  OffloadSlots slots;
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    slots.offset.push_back(static_cast<std::int64_t>(unit) * kUnit);
    slots.size.push_back(kUnit);
  }
  slots.capacity = static_cast<std::int64_t>(kUnits) * kUnit;
  const auto num_ranks = static_cast<std::size_t>(pipeline.ranks);
  std::vector<std::unique_ptr<FarStore>> stores;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) stores.push_back(make_store(slots, folder));
  std::vector<CopyRates> rates(num_ranks);
  std::vector<std::exception_ptr> errors(num_ranks);
  const auto measure = [&](std::size_t rank) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(kUnit), std::byte{1});
    const double total = static_cast<double>(slots.capacity);
    for (int round = 0; round < 2; ++round) {  // the first one touches the memory
      rates[rank].out = total / seconds_of([&] {
                          for (std::size_t u = 0; u < kUnits; ++u) stores[rank]->write(u, {bytes});
                        });
      rates[rank].in = total / seconds_of([&] {
                         for (std::size_t u = 0; u < kUnits; ++u) stores[rank]->read(u, {bytes});
                       });
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        measure(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  CopyRates slowest = rates.front();
  for (const CopyRates& rate : rates) {
    slowest.out = std::min(slowest.out, rate.out);
    slowest.in = std::min(slowest.in, rate.in);
  }
  return slowest;
}

std::vector<std::unique_ptr<FarStore>> make_far_stores(
    const PipelineConfig& pipeline, const Program& program,
    const std::vector<std::int64_t>& stage_bytes) {
  const std::string folder = folder_of(pipeline);
  std::vector<OffloadSlots> slots;
  std::int64_t total = 0;
  for (int rank = 0; rank < program.num_ranks(); ++rank) {
    slots.push_back(plan_offload_slots(program, rank, stage_bytes, kFarAlignment));
    total += slots.back().capacity;
  }
  std::vector<std::unique_ptr<FarStore>> stores(slots.size());
  if (total == 0) return stores;
  require_folder(folder);
  check_far_room(total, folder);
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    if (slots[rank].capacity > 0) stores[rank] = make_store(slots[rank], folder);
  }
  return stores;
}

}  // namespace sluice
