// calibrate.h - how fast the ranks of this machine multiply matrices.
#pragma once

#include <memory>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/model/config.h"

namespace sluice {

/// FLOP/s of all ranks of the run together when each multiplies matrices of the model's own shapes
/// at the same time as the others: the base of MFU and of predictions before a step was measured.
/// Takes about a tenth of a second. `tokens`: rows of a pass. CPU only: 0 on other devices.
double measure_gemm_rate(const std::vector<std::unique_ptr<Transport>>& transports,
                         const ModelConfig& model, std::int64_t tokens);

}  // namespace sluice
