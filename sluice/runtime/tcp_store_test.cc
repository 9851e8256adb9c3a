#include "sluice/runtime/tcp_store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

std::uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return ntohs(address.sin_port);
}

class TcpStoreTest : public ::testing::Test {
 protected:
  const std::uint16_t port_ = free_port();
  std::unique_ptr<Store> served_ =
      connect_tcp_store({.host = "localhost", .port = port_, .serve = true}, milliseconds(20000));
  std::unique_ptr<Store> joined_ =
      connect_tcp_store({.host = "localhost", .port = port_}, milliseconds(20000));
};

TEST_F(TcpStoreTest, GivesWhatAnotherConnectionHasSet) {
  EXPECT_FALSE(joined_->has("a"));
  served_->set("a", std::string("bytes\0of any kind\xff", 18));
  EXPECT_TRUE(joined_->has("a"));
  EXPECT_EQ(joined_->get("a", milliseconds(20000)), std::string("bytes\0of any kind\xff", 18));
  served_->set("empty", "");
  EXPECT_EQ(joined_->get("empty", milliseconds(20000)), "");
  EXPECT_EQ(joined_->add("n", 2), 2);
  EXPECT_EQ(served_->another()->add("n", 3), 5);
  joined_->erase("a");
  EXPECT_FALSE(served_->has("a"));
}

TEST_F(TcpStoreTest, WaitsForAValueAndGivesUpAtTheLimit) {
  EXPECT_EQ(joined_->get("later", milliseconds(50)), std::nullopt);
  std::jthread setter([&] {
    std::this_thread::sleep_for(milliseconds(100));
    served_->set("later", "now");
  });
  EXPECT_EQ(joined_->get("later", milliseconds(20000)), "now");
}

TEST_F(TcpStoreTest, CarriesValuesLargerThanTheServerTakesAtOnce) {
  std::string large(std::size_t{20} << 20, 'x');
  for (std::size_t i = 0; i < large.size(); i += 4099) large[i] = static_cast<char>(i);
  served_->set("large", large);
  EXPECT_TRUE(joined_->get("large", milliseconds(60000)) == large);
  joined_->erase("large");
  EXPECT_FALSE(joined_->has("large"));
  EXPECT_FALSE(joined_->has("large#1"));
}

TEST_F(TcpStoreTest, SaysThatTheStoreIsGone) {
  served_.reset();
  try {
    joined_->get("a", milliseconds(20000));
    FAIL() << "nobody serves the store";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("does not answer"), std::string::npos) << error.what();
  }
}

TEST_F(TcpStoreTest, RefusesAPortThatIsTaken) {
  EXPECT_THROW(
      connect_tcp_store({.host = "localhost", .port = port_, .serve = true}, milliseconds(2000)),
      CommError);
}

TEST(TcpStore, NamesTheAddressWhereNothingAnswers) {
  const std::uint16_t port = free_port();
  try {
    connect_tcp_store({.host = "localhost", .port = port}, milliseconds(500));
    FAIL() << "nobody serves a store there";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(fmt::format("localhost:{}", port)), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sluice
