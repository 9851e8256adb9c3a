#include "sluice/model/rotary.h"

#include <ATen/ops/from_blob.h>

#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "sluice/model/dtype.h"

namespace sluice {
namespace {

template <typename T>
at::Tensor table_of(std::int64_t positions, std::int64_t half_head, double theta,
                    double (*function)(double), at::Device device) {
  auto values = std::make_shared<std::vector<T>>(static_cast<std::size_t>(positions * half_head));
  for (std::int64_t i = 0; i < half_head; ++i) {
    const double frequency =
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(half_head));
    for (std::int64_t position = 0; position < positions; ++position) {
      (*values)[static_cast<std::size_t>(position * half_head + i)] =
          static_cast<T>(function(static_cast<double>(position) * frequency));
    }
  }
  T* data = values->data();
  const at::Tensor table = at::from_blob(
      data, {positions, half_head}, [values](void*) {},
      at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  return device.is_cpu() ? table : table.to(device);
}

}  // namespace

RotaryTable::RotaryTable(const ModelConfig& config, at::Device device)
    : half_head_(config.head_dim() / 2),
      theta_(config.rope_theta),
      type_(statistics_type(config.dtype)),
      device_(device) {}

const RotaryAngles& RotaryTable::up_to(std::int64_t num_positions) {
  const bool enough = angles_.cosines_PS.defined() && angles_.cosines_PS.size(0) >= num_positions;
  if (!enough) {
    const auto positions =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_positions)));
    const auto make = type_ == at::kDouble ? table_of<double> : table_of<float>;
    angles_.cosines_PS = make(positions, half_head_, theta_, std::cos, device_);
    angles_.sines_PS = make(positions, half_head_, theta_, std::sin, device_);
  }
  return angles_;
}

}  // namespace sluice
