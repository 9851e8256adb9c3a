#include "sluice/cli/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "sluice/common/errors.h"

namespace sluice::cli {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

[[noreturn]] void fail_to_write(const std::string& path) {
  throw Failure(fmt::format("cannot write {}: {}; name a place that can be written", path,
                            std::strerror(errno)));
}

void write_file(const std::string& path, std::string_view contents) {
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) fail_to_write(path);
  if (std::fwrite(contents.data(), 1, contents.size(), file.get()) != contents.size()) {
    fail_to_write(path);
  }
  if (std::fclose(file.release()) != 0) fail_to_write(path);
}

}  // namespace

std::string read_input(const std::string& path) {
  const auto fail = [&](int error) {
    throw InvalidArgument(
        fmt::format("cannot read {}: {}; name an existing file", path, std::strerror(error)));
  };
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(errno);
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    errno = 0;
    const std::size_t count = std::fread(buffer, 1, sizeof buffer, file.get());
    text.append(buffer, count);
    if (count == sizeof buffer) continue;
    if (std::ferror(file.get()) != 0) fail(errno);  // a folder, for one
    return text;
  }
}

void write_output(const std::string& path, std::string_view contents) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  const bool replaces =
      !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
  if (!replaces) return write_file(path, contents);  // renaming would replace the device itself
  const std::string temporary = path + ".tmp";
  try {
    write_file(temporary, contents);
  } catch (const Failure&) {
    std::remove(temporary.c_str());
    throw;
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    errno = error;
    fail_to_write(path);
  }
}

}  // namespace sluice::cli
