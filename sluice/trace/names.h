// names.h - the words that pictures, traces and tables use for passes and actions.
#pragma once

#include <string>
#include <string_view>

#include "sluice/program/program.h"
#include "sluice/trace/timeline.h"

namespace sluice {

/// What a kind of pass does, in words, e.g. "backward for the input" for I.
std::string_view long_name(PassKind kind);

/// Whether a span is work of the compute lane (a pass or the optimizer), which is what the rows of
/// pictures and the busy time of a rank are made of.
bool is_compute(const Span& span);

}  // namespace sluice
