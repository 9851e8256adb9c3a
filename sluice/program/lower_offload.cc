#include "sluice/program/lower_offload.h"

#include <algorithm>

#include "sluice/common/errors.h"

namespace sluice {

OffloadLowering::OffloadLowering(std::span<const Pass> passes, const PassGrid& grid) : grid_(grid) {
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kOffload) outs_.push_back(pass);
    // A U alone is caught when it looks for its D.
    if (pass.kind == PassKind::kReload && out_.empty()) {
      out_.assign(grid.size(), kNoAction);
      in_.assign(grid.size(), kNoAction);
    }
  }
  if (!outs_.empty()) {
    forward_done_.assign(grid.size(), false);
    out_.assign(grid.size(), kNoAction);
    in_.assign(grid.size(), kNoAction);
  }
}

std::span<const Pass> OffloadLowering::after_compute(const Pass& pass, std::int32_t action) {
  last_compute_ = action;
  if (!is_active() || pass.kind != PassKind::kForward) return {};
  forward_done_[grid_.index(pass)] = true;
  const std::size_t first = next_out_;
  while (next_out_ < outs_.size() && forward_done_[grid_.index(outs_[next_out_])]) ++next_out_;
  return std::span(outs_).subspan(first, next_out_ - first);
}

void OffloadLowering::out_placed(const Pass& out, std::int32_t action) {
  SLUICE_CHECK(out_[grid_.index(out)] == kNoAction, "{} is scheduled twice", to_string(out, true));
  out_[grid_.index(out)] = action;
}

void OffloadLowering::at_out(const Pass& out) {
  const std::int32_t action = out_[grid_.index(out)];
  SLUICE_CHECK(action != kNoAction, "{} is scheduled before its forward", to_string(out, true));
  due_.push_back(action);
}

std::span<const std::int32_t> OffloadLowering::dependencies(const Pass& pass) {
  result_.clear();
  if (out_.empty()) return result_;
  switch (pass.kind) {
    case PassKind::kForward:
      result_.swap(due_);
      break;
    case PassKind::kBackward:
    case PassKind::kBackwardInput:
      if (const std::int32_t in = in_[grid_.index(pass)]; in != kNoAction) result_.push_back(in);
      break;
    case PassKind::kReload: {
      const std::int32_t out = out_[grid_.index(pass)];
      SLUICE_CHECK(out != kNoAction, "{} is scheduled before its copy out", to_string(pass, true));
      SLUICE_CHECK(in_[grid_.index(pass)] == kNoAction, "{} is scheduled twice",
                   to_string(pass, true));
      result_ = due_;
      if (std::find(due_.begin(), due_.end(), out) == due_.end()) result_.push_back(out);
      result_.push_back(last_compute_);
      break;
    }
    default:
      break;
  }
  return result_;
}

void OffloadLowering::in_placed(const Pass& in, std::int32_t action) {
  in_[grid_.index(in)] = action;
}

}  // namespace sluice
