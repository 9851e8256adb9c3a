#include "sluice/comm/nccl_api.h"

#include <cstdlib>

#include "sluice/comm/shared_library.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

std::string default_name() {
  const char* name = std::getenv("SLUICE_NCCL_LIBRARY");
  return name != nullptr && *name != '\0' ? name : "libnccl.so.2";
}

}  // namespace

void NcclApi::check(int result, const char* call) const {
  if (result == kNcclSuccess) return;
  throw CommError(fmt::format("{} failed: {}", call, get_error_string(result)));
}

std::string NcclApi::version() const {
  int code = 0;
  check(get_version(&code), "ncclGetVersion");
  return code < 10000 ? fmt::format("{}.{}.{}", code / 1000, code / 100 % 10, code % 100)
                      : fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::shared_ptr<const NcclApi> load_nccl(const std::string& name) {
  const std::string path = name.empty() ? default_name() : name;
  try {
    const SharedLibrary library = SharedLibrary::open(path);
    auto api = std::make_shared<NcclApi>();
    library.get("ncclGetVersion", api->get_version);
    library.get("ncclGetUniqueId", api->get_unique_id);
    library.get("ncclCommInitRank", api->comm_init_rank);
    library.get("ncclCommDestroy", api->comm_destroy);
    library.get("ncclCommAbort", api->comm_abort);
    library.get("ncclCommGetAsyncError", api->comm_get_async_error);
    library.get("ncclGetErrorString", api->get_error_string);
    library.get("ncclGroupStart", api->group_start);
    library.get("ncclGroupEnd", api->group_end);
    library.get("ncclSend", api->send);
    library.get("ncclRecv", api->recv);
    api->moves_host_memory = library.find("sluice_moves_host_memory") != nullptr;
    return api;
  } catch (const Failure& failure) {
    throw InvalidArgument(
        fmt::format("run.transport = \"nccl\": NCCL cannot be loaded ({}); install NCCL 2.8 or "
                    "newer, or name its library with SLUICE_NCCL_LIBRARY=/path/to/libnccl.so.2",
                    failure.what()));
  }
}

}  // namespace sluice
