// Copies out and back: the bytes survive, device memory falls, and every fault is named.
#include "sluice/runtime/activation_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/runtime/allocator.h"
#include "sluice/schedule/registry.h"

namespace sluice {
namespace {

Pass pass(PassKind kind, int microbatch) { return {kind, 0, microbatch, 0}; }

Program one_rank() { return lower(make_schedule("gpipe", {.ranks = 1, .microbatches = 4})); }

/// Two layers of two tensors each, charged to `ledger`.
StageSaved make_saved(MemoryLedger& ledger, double value) {
  const LedgerScope scope(&ledger, MemoryClass::kActivations);
  StageSaved saved;
  saved.layers.resize(2);
  for (SavedTensors& layer : saved.layers) {
    layer.tensors = {at::full({3, 5}, value), at::full({1000}, value + 0.5)};
  }
  return saved;
}

bool equal(const StageSaved& a, const StageSaved& b) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (!at::equal(a.layers[layer].tensors[i], b.layers[layer].tensors[i])) return false;
    }
  }
  return true;
}

std::int64_t activations(const MemoryLedger& ledger) {
  return ledger.live()[static_cast<std::size_t>(MemoryClass::kActivations)];
}

constexpr std::int64_t kBytes = 2 * (15 + 1000) * 4;

/// A store whose writes and reads do what a test wants.
class FaultyStore final : public FarStore {
 public:
  std::function<void(std::size_t)> before_write = [](std::size_t) {};
  std::function<std::size_t(std::size_t)> read_instead = [](std::size_t unit) { return unit; };
  std::function<bool(std::size_t)> loses_write = [](std::size_t) { return false; };

  void write(std::size_t unit, const ConstParts& parts) override {
    before_write(unit);
    std::vector<std::byte>& held = held_[unit];
    if (held.empty()) held.resize(static_cast<std::size_t>(kBytes));
    if (loses_write(unit)) return;
    std::size_t at = 0;
    for (const auto& part : parts) {
      std::copy(part.begin(), part.end(), held.begin() + static_cast<std::ptrdiff_t>(at));
      at += part.size();
    }
  }
  void read(std::size_t unit, const Parts& parts) override {
    std::vector<std::byte>& held = held_[read_instead(unit)];  // perhaps nothing yet
    held.resize(static_cast<std::size_t>(kBytes));
    std::size_t at = 0;
    for (const auto& part : parts) {
      std::copy_n(held.begin() + static_cast<std::ptrdiff_t>(at), part.size(), part.begin());
      at += part.size();
    }
  }
  std::int64_t capacity() const override { return 0; }

 private:
  std::map<std::size_t, std::vector<std::byte>> held_;
};

class Copies : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_ledger_allocator(); }

  /// Both microbatches out, then both back; what was thrown, or "".
  std::string round_trip(FarStore& store, bool check) {
    ActivationStore copies(program_, ledger_, store, check);
    try {
      for (const int m : {0, 1}) {
        StageSaved saved = make_saved(ledger_, m);
        copies.start_out(pass(PassKind::kOffload, m), saved);
      }
      for (const int m : {0, 1}) {
        copies.start_in(pass(PassKind::kReload, m), {pass(PassKind::kOffload, m)});
      }
      for (const int m : {0, 1}) {
        StageSaved back;
        copies.finish_in(pass(PassKind::kReload, m), back);
        EXPECT_TRUE(check || equal(back, make_saved(ledger_, m)));
      }
      EXPECT_EQ(copies.finish_step().size(), 4U);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const Program program_ = one_rank();
  MemoryLedger ledger_;
};

TEST_F(Copies, BringBackTheSameBytesAndFreeTheDeviceMeanwhile) {
  const auto store = make_growing_store();
  ActivationStore copies(program_, ledger_, *store, true);
  StageSaved saved = make_saved(ledger_, 7.0);
  EXPECT_EQ(activations(ledger_), kBytes);
  copies.start_out(pass(PassKind::kOffload, 0), saved);
  EXPECT_TRUE(saved.layers.empty()) << "nobody else may reach what is leaving";
  copies.finish_out(pass(PassKind::kOffload, 0));
  EXPECT_EQ(activations(ledger_), 0);
  copies.start_in(pass(PassKind::kReload, 0), {pass(PassKind::kOffload, 0)});
  StageSaved back;
  copies.finish_in(pass(PassKind::kReload, 0), back);
  EXPECT_EQ(activations(ledger_), kBytes);
  MemoryLedger other;
  EXPECT_TRUE(equal(back, make_saved(other, 7.0)));
  back = {};
  EXPECT_EQ(activations(ledger_), 0);
  EXPECT_EQ(copies.finish_step().size(), 2U);
  EXPECT_EQ(copies.counters().num_bytes_out, kBytes);
  EXPECT_EQ(copies.counters().peak_bytes_away, kBytes);
}

TEST_F(Copies, SurviveBothTiers) {
  OffloadSlots slots{
      .offset = {0, 16384, -1, -1}, .size = {kBytes, kBytes, 0, 0}, .capacity = 32768};
  EXPECT_EQ(round_trip(*make_host_store(slots), true), "");
  const std::string folder = std::filesystem::temp_directory_path().string();
  EXPECT_EQ(round_trip(*make_disk_store(slots, folder), true), "");
}

TEST_F(Copies, ACopyOutThatIsLateHoldsUpTheCopyBack) {
  FaultyStore store;
  store.before_write = [](std::size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  EXPECT_EQ(round_trip(store, false), "");
}

TEST_F(Copies, ACopyOutThatNeverLandedIsNamed) {
  FaultyStore store;
  store.loses_write = [](std::size_t unit) { return unit == 1; };
  const std::string told = round_trip(store, true);
  EXPECT_NE(told.find("0U1: the activations that came back are not those that left"),
            std::string::npos)
      << told;
}

TEST_F(Copies, CopiesThatChangePlacesAreNamed) {
  FaultyStore store;
  store.read_instead = [](std::size_t unit) { return 1 - unit; };
  const std::string told = round_trip(store, true);
  EXPECT_NE(told.find("0U0: the activations that came back"), std::string::npos) << told;
}

TEST_F(Copies, ACopyThatFailsStopsTheStepWithItsReason) {
  FaultyStore store;
  store.before_write = [](std::size_t unit) {
    if (unit == 1) throw Failure("the offload file in /x cannot be written: No space left");
  };
  const std::string told = round_trip(store, false);
  EXPECT_NE(told.find("No space left"), std::string::npos) << told;
}

TEST_F(Copies, StatesThatAreSkippedAreNamed) {
  const auto store = make_growing_store();
  ActivationStore copies(program_, ledger_, *store, false);
  StageSaved saved = make_saved(ledger_, 1.0);
  copies.start_out(pass(PassKind::kOffload, 0), saved);
  StageSaved again = make_saved(ledger_, 1.0);
  try {
    copies.start_out(pass(PassKind::kOffload, 0), again);
    FAIL() << "copied out twice";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("instead of saved"), std::string::npos);
  }
  EXPECT_THROW(copies.finish_step(), InternalError) << "an activation is still away";
}

TEST(FarStore, RefusesARoomThatIsNotThereWithTheNumbers) {
  for (const char* folder : {"", "/tmp"}) {
    try {
      check_far_room(std::int64_t{1} << 60, folder);
      FAIL() << folder;
    } catch (const InvalidArgument& error) {
      const std::string told = error.what();
      EXPECT_NE(told.find("MiB are free"), std::string::npos) << told;
      EXPECT_NE(told.find("pipeline.offload"), std::string::npos) << told;
    }
  }
}

/// Bytes of a unit in uneven parts, of several chunks and no whole number of blocks.
std::vector<std::byte> pattern(std::size_t size, std::uint32_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    seed = seed * 1664525 + 1013904223;
    bytes[i] = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

TEST(FarStore, KeepsLargeUnitsOnDiskWhicheverWayItAsks) {
  const std::size_t size = (std::size_t{7} << 20) + 12345;
  const auto place = static_cast<std::int64_t>(std::size_t{8} << 20);
  const OffloadSlots slots{{0, place}, {place, place}, 2 * place};
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (const DiskAccess access : {DiskAccess::kAsync, DiskAccess::kPlain}) {
    const auto store = make_disk_store(slots, folder, access);
    const std::vector<std::vector<std::byte>> units = {pattern(size, 1), pattern(4096, 2)};
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const std::span<const std::byte> whole(units[unit]);
      store->write(unit, {whole.first(1000), whole.subspan(1000, 3000), whole.subspan(4000)});
    }
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      std::vector<std::byte> back(units[unit].size());
      const std::span<std::byte> whole(back);
      store->read(unit, {whole.first(96), whole.subspan(96)});
      EXPECT_TRUE(back == units[unit]) << "unit " << unit;
    }
  }
}

TEST(FarStore, NamesTheFolderAndTheReasonOfAWriteThatFails) {
  // As on a full disk: the system refuses to write where the file may not reach.
  const std::size_t size = std::size_t{3} << 20;
  const OffloadSlots slots{{0}, {static_cast<std::int64_t>(size)}, static_cast<std::int64_t>(size)};
  const std::string folder = std::filesystem::temp_directory_path().string();
  const std::vector<std::byte> bytes = pattern(size, 3);
  const auto before_signal = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const DiskAccess access : {DiskAccess::kAsync, DiskAccess::kPlain}) {
    const auto store = make_disk_store(slots, folder, access);
    rlimit small = before;
    small.rlim_cur = std::size_t{1} << 20;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::string told;
    try {
      store->write(0, {bytes});
    } catch (const Failure& error) {
      told = error.what();
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_NE(told.find("the offload file in " + folder + " cannot be written: File too large"),
              std::string::npos)
        << told;
    store->write(0, {bytes});  // what was under way is settled
  }
  std::signal(SIGXFSZ, before_signal);
}

TEST(FarStore, LeavesNoFileBehind) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("sluice_far_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  {
    const auto store = make_disk_store({{0}, {4096}, 4096}, folder.string());
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << "a killed process would leave this";
  }
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace sluice
