#include "sluice/sim/offload_ratio.h"

#include <gtest/gtest.h>

#include <array>

namespace sluice {
namespace {

constexpr std::array kLengths = {4096.0, 8192.0, 16384.0, 32768.0};

struct Row {
  double hidden_size;
  std::array<double, 4> ratios;  // by kLengths
};

/// The values of the formula with the constants of the published code, to the digits given.
template <std::size_t kRows>
void expect_table(const std::array<Row, kRows>& table, double flops_per_second,
                  double bytes_per_second) {
  for (const Row& row : table) {
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      const OffloadedLayer layer{row.hidden_size, kLengths[i]};
      EXPECT_NEAR(offload_ratio(layer, flops_per_second, bytes_per_second), row.ratios[i], 0.01)
          << row.hidden_size << " " << kLengths[i];
    }
  }
}

TEST(OffloadRatio, IsTheTableOfTheA100) {
  constexpr std::array kTable = {
      Row{4096, {1.71, 1.49, 1.19, 0.85}}, Row{5120, {1.40, 1.26, 1.04, 0.77}},
      Row{6144, {1.19, 1.09, 0.92, 0.70}}, Row{7168, {1.04, 0.95, 0.82, 0.65}},
      Row{8192, {0.92, 0.85, 0.75, 0.60}}, Row{10240, {0.75, 0.70, 0.63, 0.52}}};
  expect_table(kTable, 220e12, 15e9);
}

TEST(OffloadRatio, IsTheTableOfTheH100) {
  constexpr std::array kTable = {
      Row{4096, {2.44, 2.13, 1.71, 1.22}}, Row{5120, {2.01, 1.79, 1.48, 1.10}},
      Row{6144, {1.71, 1.55, 1.31, 1.00}}, Row{7168, {1.48, 1.36, 1.18, 0.92}},
      Row{8192, {1.31, 1.22, 1.07, 0.85}}, Row{10240, {1.07, 1.00, 0.90, 0.74}},
      Row{12288, {0.90, 0.85, 0.78, 0.66}}};
  expect_table(kTable, 440e12, 21e9);
}

}  // namespace
}  // namespace sluice
