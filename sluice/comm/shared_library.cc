#include "sluice/comm/shared_library.h"

#include <dlfcn.h>

#include "sluice/common/errors.h"

namespace sluice {

SharedLibrary SharedLibrary::open(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw Failure(reason == nullptr ? name + " cannot be loaded" : reason);
  }
  return {name, handle};
}

SharedLibrary SharedLibrary::program() { return {"this program", dlopen(nullptr, RTLD_NOW)}; }

void* SharedLibrary::find(const char* symbol) const { return dlsym(handle_, symbol); }

void* SharedLibrary::require(const char* symbol) const {
  void* address = find(symbol);
  if (address == nullptr) throw Failure(fmt::format("{} has no function {}", name_, symbol));
  return address;
}

}  // namespace sluice
