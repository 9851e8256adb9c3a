#include "sluice/runtime/tcp_store.h"

#include <algorithm>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr auto kLongestPause = milliseconds(20);

class TcpStore final : public Store {
 public:
  TcpStore(c10::intrusive_ptr<c10d::Store> store, std::string name)
      : store_(std::move(store)), name_(std::move(name)) {}

  // The first piece comes last, under the key itself: who sees it finds all others.
  void set(const std::string& key, const std::string& value) override {
    answered([&] {
      const std::size_t pieces = std::max<std::size_t>(1, (value.size() + kPiece - 1) / kPiece);
      for (std::size_t i = pieces; i-- > 0;) {
        std::string piece = value.substr(i * kPiece, kPiece);
        if (i == 0) piece = fmt::format("{}:", pieces) + piece;
        store_->set(piece_key(key, i), std::vector<std::uint8_t>(piece.begin(), piece.end()));
      }
    });
  }

  // Asks again and again: a wait in the server that ends without a value warns on standard error.
  std::optional<std::string> get(const std::string& key, milliseconds limit) override {
    const auto begin = Clock::now();
    for (milliseconds pause{0}; !has(key);
         pause = std::min(pause + milliseconds(1), kLongestPause)) {
      if (Clock::now() - begin >= limit) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::microseconds(pause) / 4);
    }
    std::string value;
    answered([&] {
      value = read(key);
      const std::size_t colon = value.find(':');
      SLUICE_CHECK(colon != std::string::npos, "{} in the store is of another program", key);
      const auto pieces = std::stoul(value.substr(0, colon));
      value.erase(0, colon + 1);
      for (std::size_t i = 1; i < pieces; ++i) value += read(piece_key(key, i));
      if (pieces > 1) pieces_[key] = pieces;
    });
    return value;
  }

  bool has(const std::string& key) override {
    bool found = false;
    answered([&] { found = store_->check({key}); });
    return found;
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    std::int64_t sum = 0;
    answered([&] { sum = store_->add(key, amount); });
    return sum;
  }

  void erase(const std::string& key) override {
    answered([&] {
      const auto large = pieces_.find(key);
      const std::size_t pieces = large == pieces_.end() ? 1 : large->second;
      for (std::size_t i = 0; i < pieces; ++i) store_->deleteKey(piece_key(key, i));
      if (large != pieces_.end()) pieces_.erase(large);
    });
  }

  std::unique_ptr<Store> another() override {
    std::unique_ptr<Store> other;
    answered([&] { other = std::make_unique<TcpStore>(store_->clone(), name_); });
    return other;
  }

 private:
  static std::string piece_key(const std::string& key, std::size_t piece) {
    return piece == 0 ? key : fmt::format("{}#{}", key, piece);
  }

  std::string read(const std::string& key) {
    const std::vector<std::uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

  template <typename Call>
  void answered(Call call) {
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(error);
    }
  }

  [[noreturn]] void fail(const std::exception& error) const {
    const std::string text = error.what();
    throw CommError(
        fmt::format("the store at {} does not answer: the process that serves it is "
                    "gone ({})",
                    name_, text.substr(0, text.find('\n'))));
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string name_;
  std::map<std::string, std::size_t> pieces_;  // of large values that were read here
};

}  // namespace

std::unique_ptr<Store> connect_tcp_store(const TcpStoreAddress& address, milliseconds limit) {
  const std::string name = fmt::format("{}:{}", address.host, address.port);
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.isServer = address.serve;
  options.waitWorkers = false;  // who is there is found out with a time limit of our own
  options.timeout = limit;
  try {
    return std::make_unique<TcpStore>(c10::make_intrusive<c10d::TCPStore>(address.host, options),
                                      name);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(fmt::format("cannot {} the store at {} ({}): check MASTER_ADDR and MASTER_PORT",
                                address.serve ? "serve" : "reach", name,
                                text.substr(0, text.find('\n'))));
  }
}

}  // namespace sluice
