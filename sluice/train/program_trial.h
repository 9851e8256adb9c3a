// program_trial.h - which of several programs a run keeps, found by running each of them.
// Read next: trainer.h.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice {

/// The first steps of a run that could train with any of several programs of equal results: they
/// take turns, each runs once to warm up and twice for the clock, and the one with the least time
/// runs from then on; of equal ones the first. A value: ranks that are told the same times decide
/// the same.
class ProgramTrial {
 public:
  /// REQUIRES: num_programs >= 1. One program needs no trial.
  explicit ProgramTrial(std::size_t num_programs);

  /// Index of the program of the next step.
  std::size_t current() const { return current_; }
  bool decided() const { return decided_; }

  /// What the step of current() took. No effect once it is decided.
  void add(double seconds);

  /// Least seconds of a program's measured steps; 0: not yet measured.
  double seconds_of(std::size_t program) const { return seconds_[program]; }

 private:
  std::vector<double> seconds_;
  std::size_t num_steps_ = 0;
  std::size_t current_ = 0;
  bool decided_ = false;
};

}  // namespace sluice
