// shared_library.h - functions of a library that is looked up at run time. Read next: nccl_api.h.
#pragma once

#include <memory>
#include <string>

namespace sluice {

/// A loaded shared library; stays loaded until the process ends, since its threads may.
class SharedLibrary {
 public:
  /// Loads `name` as the dynamic linker finds it. Throws: Failure with the linker's own words.
  static SharedLibrary open(const std::string& name);

  /// This program and all that it was linked with.
  static SharedLibrary program();

  /// Null when the library has no such symbol.
  void* find(const char* symbol) const;

  /// Points `function` at a symbol. Throws: Failure naming it when the library lacks it.
  template <typename Function>
  void get(const char* symbol, Function*& function) const {
    function = reinterpret_cast<Function*>(require(symbol));
  }

 private:
  SharedLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  void* require(const char* symbol) const;

  std::string name_;
  void* handle_;
};

}  // namespace sluice
