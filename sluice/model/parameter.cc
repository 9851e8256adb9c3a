#include "sluice/model/parameter.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"

namespace sluice {
namespace {

std::uint64_t mix(std::uint64_t value) {  // the finalizer of SplitMix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

std::uint64_t hash_name(const std::string& name) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  }
  return hash;
}

// Uniform in (0, 1), never 0, from the upper 53 bits of the counter's hash.
double uniform(std::uint64_t key, std::uint64_t counter) {
  const std::uint64_t bits = mix(key + (counter + 1) * 0x9e3779b97f4a7c15ULL);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
}

void fill_normal(std::uint64_t key, std::uint64_t first, double std_deviation, double* out,
                 std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += 2) {
    const std::uint64_t counter = first + static_cast<std::uint64_t>(i);
    const double radius = std_deviation * std::sqrt(-2.0 * std::log(uniform(key, counter)));
    const double angle = 2.0 * std::numbers::pi * uniform(key, counter + 1);
    out[i] = radius * std::cos(angle);
    if (i + 1 < size) out[i + 1] = radius * std::sin(angle);
  }
}

}  // namespace

at::ScalarType value_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kBFloat16:
      return at::kBFloat16;
  }
  throw InternalError("unknown dtype");
}

at::ScalarType statistics_type(DType dtype) {
  return dtype == DType::kFloat64 ? at::kDouble : at::kFloat;
}

at::ScalarType gradient_type(DType dtype) { return statistics_type(dtype); }

at::ScalarType statistics_of(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

void initialize(const ParameterSpec& spec, std::uint64_t seed, at::Tensor& value) {
  if (spec.init == Init::kOnes) {
    value.fill_(1.0);
    return;
  }
  const std::string& name = spec.tied_to.empty() ? spec.name : spec.tied_to;
  const std::uint64_t key = mix(hash_name(name) ^ mix(seed + 0x9e3779b97f4a7c15ULL));
  // Piece by piece, so that no second copy of a large matrix ever exists.
  constexpr std::int64_t kPiece = 1 << 16;
  const std::int64_t offset = spec.first_row == 0 ? 0 : spec.first_row * value.size(1);
  SLUICE_CHECK(offset % 2 == 0, "{} rows of {} columns: numbers are drawn in pairs", spec.first_row,
               value.size(1));
  std::vector<double> piece(static_cast<std::size_t>(std::min(kPiece, value.numel())));
  at::Tensor flat = value.view(-1);
  for (std::int64_t begin = 0; begin < value.numel(); begin += kPiece) {
    const std::int64_t size = std::min(kPiece, value.numel() - begin);
    fill_normal(key, static_cast<std::uint64_t>(offset + begin), spec.init_std, piece.data(), size);
    flat.narrow(0, begin, size)
        .copy_(at::from_blob(piece.data(), {size}, at::TensorOptions().dtype(at::kDouble)));
  }
}

}  // namespace sluice
