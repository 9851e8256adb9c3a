#include "sluice/train/program_trial.h"

#include <algorithm>

#include "sluice/common/errors.h"

namespace sluice {

ProgramTrial::ProgramTrial(std::size_t num_programs) : seconds_(num_programs, 0.0) {
  SLUICE_CHECK(num_programs >= 1, "{} programs to choose from", num_programs);
  decided_ = num_programs == 1;
}

void ProgramTrial::add(double seconds) {
  constexpr std::size_t kRounds = 3;
  if (decided_) return;
  double& least = seconds_[current_];
  const bool warms_up = num_steps_ < seconds_.size();
  if (!warms_up && (least == 0.0 || seconds < least)) least = seconds;
  ++num_steps_;
  current_ = num_steps_ % seconds_.size();
  if (num_steps_ < kRounds * seconds_.size()) return;
  decided_ = true;
  current_ = static_cast<std::size_t>(std::min_element(seconds_.begin(), seconds_.end()) -
                                      seconds_.begin());
}

}  // namespace sluice
