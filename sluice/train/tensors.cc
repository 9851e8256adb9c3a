#include "sluice/train/tensors.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <span>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

ElementType element_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ElementType::kF32;
    case at::kDouble:
      return ElementType::kF64;
    case at::kBFloat16:
      return ElementType::kBF16;
    case at::kHalf:
      return ElementType::kF16;
    default:
      throw InternalError(fmt::format("no stored form for {}", c10::toString(type)));
  }
}

at::ScalarType scalar_type(const TensorView& stored) {
  switch (stored.type) {
    case ElementType::kF32:
      return at::kFloat;
    case ElementType::kF64:
      return at::kDouble;
    case ElementType::kBF16:
      return at::kBFloat16;
    case ElementType::kF16:
      return at::kHalf;
    default:
      throw Failure(fmt::format("{} is {}; weights must be F64, F32, BF16 or F16", stored.name,
                                to_string(stored.type)));
  }
}

}  // namespace

NamedBytes named_bytes(const std::string& name, const at::Tensor& tensor) {
  const auto host = std::make_shared<const at::Tensor>(tensor.cpu().contiguous());
  return {.name = name,
          .type = element_type(host->scalar_type()),
          .shape = host->sizes().vec(),
          .bytes = {static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes()},
          .owner = host};
}

void add_to_checkpoint(const Parameter& parameter, const AdamState& state,
                       std::vector<NamedBytes>& weights, std::vector<NamedBytes>& optimizer) {
  const std::string& name = parameter.spec.name;
  if (!parameter.spec.tied_to.empty()) return;
  weights.push_back(named_bytes(name, parameter.value));
  optimizer.push_back(named_bytes("exp_avg/" + name, state.exp_avg));
  optimizer.push_back(named_bytes("exp_avg_sq/" + name, state.exp_avg_sq));
  if (state.master.defined()) optimizer.push_back(named_bytes("master/" + name, state.master));
}

void copy_into(const TensorView& stored, at::Tensor& destination, std::int64_t first_row,
               std::int64_t full_rows) {
  std::vector<std::int64_t> sizes = destination.sizes().vec();
  if (full_rows > 0) sizes.front() = full_rows;
  if (!std::equal(sizes.begin(), sizes.end(), stored.shape.begin(), stored.shape.end())) {
    throw Failure(fmt::format("{} has shape [{}], the model needs [{}]", stored.name,
                              fmt::join(stored.shape, ", "), fmt::join(sizes, ", ")));
  }
  // Bytes in a file are not aligned: into a tensor of their own first.
  at::Tensor host = at::empty(destination.sizes(), at::TensorOptions().dtype(scalar_type(stored)));
  const std::size_t row_bytes =
      full_rows > 0 ? stored.bytes.size() / static_cast<std::size_t>(full_rows) : 0;
  const std::span<const std::byte> bytes =
      stored.bytes.subspan(static_cast<std::size_t>(first_row) * row_bytes, host.nbytes());
  if (!bytes.empty()) std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  destination.copy_(host);
}

void load_parameter(const TensorFiles& weights, Parameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  copy_into(weights.at(spec.tied_to.empty() ? spec.name : spec.tied_to), parameter.value,
            spec.first_row, spec.full_rows);
}

void load_state(const TensorFiles& optimizer, const Parameter& parameter, AdamState& state) {
  const ParameterSpec& spec = parameter.spec;
  SLUICE_CHECK(spec.tied_to.empty(), "{} is tied", spec.name);
  const auto load = [&](const char* what, at::Tensor& destination) {
    if (!destination.defined()) return;
    copy_into(optimizer.at(what + spec.name), destination, spec.first_row, spec.full_rows);
  };
  load("exp_avg/", state.exp_avg);
  load("exp_avg_sq/", state.exp_avg_sq);
  load("master/", state.master);
}

}  // namespace sluice
