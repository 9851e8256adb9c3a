// lower.h - from a Schedule to a Program. Read next: verify.h.
#pragma once

#include "sluice/program/program.h"

namespace sluice {

/// Adds to the passes of `schedule` everything they need from elsewhere: after each producing pass
/// its send, before each consuming pass its receive (early enough that both ends of a channel have
/// the same order), the dependencies, and the optimizer at the end of each rank. Stages that are
/// neighbours on one rank need no message, only a dependency.
/// Dependencies of a pass: the receive or the local pass that makes its input (F(s) needs F(s-1);
/// B(s), I(s) need B or I of s+1), its own forward (B, I), its own I (W), and with slices F of the
/// slice before on the same stage, and B or I of the slice after. D and U become actions on the
/// copy lanes; lower_offload.h says what waits for them.
/// Vocabulary passes get their collectives, on the vocabulary lane and in one order on all ranks
/// (collectives.h): E makes the embedding's rows for F of stage 0; S needs the hidden states of F
/// of the last stage; T, and B or I of the last stage, need the statistics of all S, the latter
/// also the hidden gradient of all S (parallel-2) or T (parallel-1); G needs B or I of stage 0.
/// REQUIRES: validate(schedule) is empty.
/// Throws: InternalError for a pass that is missing, doubled, on the wrong rank, or ahead of what
/// it needs on its rank. A deadlock across ranks is left to verify().
Program lower(const Schedule& schedule);

}  // namespace sluice
