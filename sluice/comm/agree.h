// agree.h - texts between ranks, and errors that all of them report alike. Read next: launch.h.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "sluice/comm/transport.h"

namespace sluice {

/// Every rank's text, by rank. All ranks call it together.
std::vector<std::string> gather_texts(Transport& transport, const std::string& mine);

/// Tells the others whether this rank got through a step of its own; `error` is null when it did.
/// Returns when all did. All ranks call it together. Throws: on every rank an error of the kind
/// that the lowest failing rank had (InvalidArgument or Failure), its own where it has one.
void agree(Transport& transport, const std::exception_ptr& error);

}  // namespace sluice
