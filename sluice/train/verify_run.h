// verify_run.h - one step of a configured run, held against the unsplit model under autograd.
// Read next: pipeline_step.h, model/reference.h.
#pragma once

#include <string>
#include <vector>

#include "sluice/train/config.h"

namespace sluice {

/// Agreement of one parameter's gradient: the largest difference over the largest gradient.
struct GradientAgreement {
  std::string name;
  double largest = 0.0;
  double relative_error = 0.0;
};

struct Verification {
  double loss_pipeline = 0.0;  // nats per target token
  double loss_reference = 0.0;
  double max_relative_gradient_error = 0.0;
  std::string worst_parameter;
  bool bit_identical = false;  // losses and gradients against `plain_ranks` ranks of 1F1B
  int plain_ranks = 1;         // as many as the run has when its vocabulary is sharded, else 1
  int num_slices = 1;
  double bound = 0.0;  // allowed relative error: 1e-12 in fp64, 1e-5 in fp32, 5e-2 in bf16
  bool pass = false;
  std::vector<GradientAgreement> parameters;  // in model order
};

/// Runs the first training batch of `config` through its pipeline, through plain 1F1B with the same
/// slices, and unsplit in fp64 under autograd from the same weights. Needs memory for the whole
/// model in fp64. Throws: InvalidArgument, Failure as training would.
Verification verify_run(const RunConfig& config);

}  // namespace sluice
