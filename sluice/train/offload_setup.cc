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

/// Runs `work` for each of 0 to num_threads - 1, a thread each. Throws: what the first of them
/// threw.
void run_threads(std::size_t num_threads, const std::function<void(std::size_t)>& work) {
  std::vector<std::exception_ptr> errors(num_threads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

constexpr std::int64_t kProbeUnit = std::int64_t{8} << 20;
constexpr std::size_t kProbeUnits = 4;

/// What one rank measures with: stores of a few units, one to write and one to read.
struct Probe {
  std::unique_ptr<FarStore> out, in;
  std::vector<std::byte> bytes_out, bytes_in;

  void write_all() {
    for (std::size_t unit = 0; unit < kProbeUnits; ++unit) out->write(unit, {bytes_out});
  }
  void read_all() {
    for (std::size_t unit = 0; unit < kProbeUnits; ++unit) in->read(unit, {bytes_in});
  }
};

}  // namespace

std::string offload_amount(const PipelineConfig& pipeline) {
  return pipeline.offload == "none" ? find_schedule(pipeline.schedule).offload : pipeline.offload;
}

CopyRates measure_copy_rates(const PipelineConfig& pipeline, int num_ranks_here) {
  if (offload_amount(pipeline) == "none") return {};
  const std::string folder = folder_of(pipeline);
  require_folder(folder);
  OffloadSlots slots;
  for (std::size_t unit = 0; unit < kProbeUnits; ++unit) {
    slots.offset.push_back(static_cast<std::int64_t>(unit) * kProbeUnit);
    slots.size.push_back(kProbeUnit);
  }
  slots.capacity = static_cast<std::int64_t>(kProbeUnits) * kProbeUnit;
  const auto num_ranks = static_cast<std::size_t>(num_ranks_here);
  std::vector<Probe> probes(num_ranks);
  for (Probe& probe : probes) {
    const std::vector<std::byte> bytes(static_cast<std::size_t>(kProbeUnit), std::byte{1});
    probe = {make_store(slots, folder), make_store(slots, folder), bytes, bytes};
  }
  std::vector<CopyRates> rates(num_ranks);
  const double total = static_cast<double>(slots.capacity);
  run_threads(num_ranks, [&](std::size_t rank) {
    Probe& probe = probes[rank];
    for (std::size_t unit = 0; unit < kProbeUnits; ++unit) {
      probe.in->write(unit, {probe.bytes_in});  // something to read, and the memory is touched
    }
    probe.write_all();
    rates[rank].out = total / seconds_of([&] { probe.write_all(); });
    rates[rank].in = total / seconds_of([&] { probe.read_all(); });
  });
  const double together = seconds_of([&] {
    run_threads(2 * num_ranks, [&](std::size_t i) {
      i % 2 == 0 ? probes[i / 2].write_all() : probes[i / 2].read_all();
    });
  });
  CopyRates slowest = rates.front();
  for (const CopyRates& rate : rates) {
    slowest.out = std::min(slowest.out, rate.out);
    slowest.in = std::min(slowest.in, rate.in);
  }
  slowest.both = 2.0 * total / together;
  return slowest;
}

std::vector<std::unique_ptr<FarStore>> make_stores_here(
    const PipelineConfig& pipeline, const Program& program,
    const std::vector<std::int64_t>& stage_bytes, const RanksHere& here) {
  const std::string folder = folder_of(pipeline);
  std::vector<OffloadSlots> slots;
  std::int64_t total = 0;
  for (int i = 0; i < here.num_ranks; ++i) {
    const int rank = (here.first_rank + i) % program.num_ranks();
    slots.push_back(plan_offload_slots(program, rank, stage_bytes, kFarAlignment));
    total += slots.back().capacity;
  }
  std::vector<std::unique_ptr<FarStore>> stores(slots.size());
  if (total == 0) return stores;
  require_folder(folder);
  check_far_room(total * here.num_processes, folder);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].capacity > 0) stores[i] = make_store(slots[i], folder);
  }
  return stores;
}

std::vector<std::unique_ptr<FarStore>> make_far_stores(
    const PipelineConfig& pipeline, const Program& program,
    const std::vector<std::int64_t>& stage_bytes) {
  return make_stores_here(pipeline, program, stage_bytes, {.num_ranks = program.num_ranks()});
}

}  // namespace sluice
