// errors.h - the error types every folder throws, and SLUICE_CHECK.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace sluice {

/// Base of everything sluice throws. The command line prints what() as one line.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The user gave something that cannot work (exit code 2). The message names the value, the rule it
/// breaks and the option or key to change.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Something outside failed while the request was right: a file, a disk, a damaged checkpoint (exit
/// code 1). The message names the object and what to do next.
class Failure : public Error {
 public:
  using Error::Error;
};

/// A peer was lost or a wait ran past its time limit (exit code 3). The message names the ranks and
/// the action that was waited for.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant: a bug of ours, never the user's doing (exit code 1).
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {
[[noreturn]] inline void check_failed(const char* condition, const char* file, int line,
                                      const std::string& detail) {
  throw InternalError(fmt::format("internal error: {} does not hold at {}:{}{}{}", condition, file,
                                  line, detail.empty() ? "" : ": ", detail));
}
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
inline std::string check_message() { return {}; }
}  // namespace detail

}  // namespace sluice

/// SLUICE_CHECK(condition) or SLUICE_CHECK(condition, "format", args...): throws InternalError with
/// the condition, the place and the formatted values when the condition is false.
#define SLUICE_CHECK(condition, ...)                                                \
  do {                                                                              \
    if (!(condition)) {                                                             \
      ::sluice::detail::check_failed(#condition, __FILE__, __LINE__,                \
                                     ::sluice::detail::check_message(__VA_ARGS__)); \
    }                                                                               \
  } while (false)
