#include "sluice/runtime/allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace sluice {
namespace {

class LedgerAllocator : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_ledger_allocator(); }

  std::int64_t live(MemoryClass memory_class) const {
    return ledger_.live()[static_cast<std::size_t>(memory_class)];
  }

  MemoryLedger ledger_;
};

TEST_F(LedgerAllocator, ChargesRequestedBytesToTheClassOfTheThread) {
  {
    const LedgerScope scope(&ledger_, MemoryClass::kWorkspace);
    const at::Tensor a = at::empty({3, 5}, at::kFloat);
    EXPECT_EQ(live(MemoryClass::kWorkspace), 60);
    {
      const LedgerScope inner(&ledger_, MemoryClass::kActivations);
      const at::Tensor b = at::empty({7}, at::kDouble);
      EXPECT_EQ(live(MemoryClass::kActivations), 56);
    }
    EXPECT_EQ(live(MemoryClass::kActivations), 0);
    EXPECT_EQ(live(MemoryClass::kWorkspace), 60);
  }
  EXPECT_EQ(total_bytes(ledger_.live()), 0);
  EXPECT_EQ(ledger_.peaks().total, 116);
}

TEST_F(LedgerAllocator, RefusesWhatWouldPassTheLimitAndCountsNoneOfIt) {
  const LedgerScope scope(&ledger_, MemoryClass::kWorkspace);
  at::Tensor a = at::empty({10}, at::kFloat);
  ledger_.set_limit(100);
  EXPECT_THROW(at::empty({16}, at::kFloat), OutOfDeviceMemory);
  EXPECT_EQ(total_bytes(ledger_.live()), 40);
  const at::Tensor b = at::empty({15}, at::kFloat);
  EXPECT_EQ(total_bytes(ledger_.live()), 100);
  charge_to(a, &ledger_, MemoryClass::kActivations);  // not more than before
  a.reset();
  ledger_.set_limit(0);
  const at::Tensor c = at::empty({1000}, at::kFloat);
  EXPECT_EQ(ledger_.peaks().total, 4060);
}

TEST_F(LedgerAllocator, CountsNothingWhereNoLedgerIsSet) {
  const at::Tensor a = at::empty({100}, at::kFloat);
  EXPECT_EQ(total_bytes(ledger_.live()), 0);
}

TEST_F(LedgerAllocator, AlignsEveryBlockToALine) {
  for (std::int64_t size = 1; size < 300; size += 7) {
    const at::Tensor a = at::empty({size}, at::kByte);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data_ptr()) % 64, 0u);
  }
}

TEST_F(LedgerAllocator, MovesATensorBetweenClassesAndLedgers) {
  MemoryLedger other;
  const LedgerScope scope(&ledger_, MemoryClass::kWorkspace);
  at::Tensor a = at::empty({10}, at::kFloat);
  charge_to(a, &ledger_, MemoryClass::kActivations);
  EXPECT_EQ(live(MemoryClass::kWorkspace), 0);
  EXPECT_EQ(live(MemoryClass::kActivations), 40);
  charge_to(a, nullptr, MemoryClass::kBoundary);  // on its way
  EXPECT_EQ(total_bytes(ledger_.live()), 0);
  charge_to(a, &other, MemoryClass::kBoundary);
  EXPECT_EQ(other.live()[static_cast<std::size_t>(MemoryClass::kBoundary)], 40);
  a.reset();
  EXPECT_EQ(total_bytes(other.live()), 0);
  EXPECT_EQ(ledger_.peaks().total, 40);
}

TEST_F(LedgerAllocator, CreditsTheOwnerWhenAnotherThreadFrees) {
  at::Tensor a;
  {
    const LedgerScope scope(&ledger_, MemoryClass::kWorkspace);
    a = at::empty({10}, at::kFloat);
  }
  std::thread([moved = std::move(a)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(total_bytes(ledger_.live()), 0);
}

TEST_F(LedgerAllocator, LeavesMemoryOfOthersAlone) {
  std::array<float, 4> memory{};
  const at::Tensor foreign = at::from_blob(memory.data(), {4}, at::kFloat);
  charge_to(foreign, &ledger_, MemoryClass::kActivations);
  charge_to(at::Tensor(), &ledger_, MemoryClass::kActivations);
  EXPECT_EQ(total_bytes(ledger_.live()), 0);
}

TEST_F(LedgerAllocator, PeaksStartOverFromWhatIsLive) {
  const LedgerScope scope(&ledger_, MemoryClass::kWorkspace);
  const at::Tensor kept = at::empty({10}, at::kFloat);
  at::empty({1000}, at::kFloat);
  EXPECT_EQ(ledger_.peaks().total, 4040);
  ledger_.reset_peaks();
  EXPECT_EQ(ledger_.peaks().total, 40);
  const at::Tensor more = at::empty({5}, at::kFloat);
  const MemoryPeaks peaks = ledger_.peaks();
  EXPECT_EQ(peaks.total, 60);
  EXPECT_EQ(total_bytes(peaks.at_total_peak), 60);
}

TEST_F(LedgerAllocator, RecordsChangesOfEveryClassButWorkspace) {
  ledger_.record(true);
  const LedgerScope scope(&ledger_, MemoryClass::kActivations);
  at::Tensor a = at::empty({10}, at::kFloat);
  a.reset();
  ledger_.record(false);
  at::empty({10}, at::kFloat);
  const auto samples = ledger_.take_samples();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(total_bytes(samples[0].bytes), 40);
  EXPECT_EQ(total_bytes(samples[1].bytes), 0);
  EXPECT_LE(samples[0].time, samples[1].time);
}

}  // namespace
}  // namespace sluice
