// lower.h - from a Schedule to a Program.
#pragma once

#include "sluice/program/program.h"

namespace sluice {

/// Adds to the passes of `schedule` everything they need from elsewhere: after each producing pass
/// its send, before each consuming pass its receive (early enough that both ends of a channel have
/// the same order), the dependencies, and the optimizer at the end of each rank.
/// Dependencies of a pass: the receive or the local pass that makes its input (F(s) needs F(s-1);
/// B(s), I(s) need B or I of s+1), its own forward (B, I), its own I (W), and with slices F of the
/// slice before on the same stage, and B or I of the slice after.
/// REQUIRES: validate(schedule) is empty. Throws: InternalError when it is not.
Program lower(const Schedule& schedule);

}  // namespace sluice
