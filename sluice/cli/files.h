// files.h - the files that commands read and write.
#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// The contents of a file that the user named. Throws: InvalidArgument with the system's reason.
std::string read_input(const std::string& path);

/// Writes `contents` to `path` so that nobody ever sees a part of it: into `path`.tmp, which is
/// then renamed. A device or pipe is written as it is. Throws: Failure with the system's reason;
/// what was at `path` before is then still there.
void write_output(const std::string& path, std::string_view contents);

}  // namespace sluice::cli
