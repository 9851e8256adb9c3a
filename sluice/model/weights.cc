#include "sluice/model/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "sluice/model/dtype.h"

namespace sluice {

Weight WeightMaker::make(std::vector<ParameterSpec> specs) const {
  std::vector<std::int64_t> shape = specs.front().shape;
  shape.front() = 0;
  for (const ParameterSpec& spec : specs) shape.front() += spec.shape.front();
  const at::TensorOptions options = at::TensorOptions().device(device);
  Weight weight{at::empty(shape, options.dtype(value_type(config.dtype))),
                at::zeros(shape, options.dtype(gradient_type(config.dtype)))};
  if (specs.size() == 1) {  // the tensors themselves, no views
    initialize(specs.front(), seed, weight.value);
    parameters.push_back({std::move(specs.front()), weight.value, weight.gradient});
    return weight;
  }
  std::int64_t first_row = 0;
  for (ParameterSpec& spec : specs) {
    const std::int64_t rows = spec.shape.front();
    Parameter parameter{.spec = std::move(spec),
                        .value = weight.value.narrow(0, first_row, rows),
                        .gradient = weight.gradient.narrow(0, first_row, rows)};
    initialize(parameter.spec, seed, parameter.value);
    parameters.push_back(std::move(parameter));
    first_row += rows;
  }
  return weight;
}

ParameterSpec matrix_spec(std::string name, std::int64_t rows, std::int64_t columns,
                          double init_std) {
  return {.name = std::move(name), .shape = {rows, columns}, .init_std = init_std};
}

ParameterSpec norm_spec(std::string name, std::int64_t columns) {
  return {.name = std::move(name), .shape = {columns}, .init = Init::kOnes, .decayed = false};
}

}  // namespace sluice
