#include "sluice/schedule/pass.h"

#include <gtest/gtest.h>

#include <string>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

TEST(PassText, WritesStageLetterMicrobatchAndSliceOnDemand) {
  const Pass pass{.kind = PassKind::kBackwardInput, .stage = 12, .microbatch = 3, .slice = 4};
  EXPECT_EQ(to_string(pass), "12I3");
  EXPECT_EQ(to_string(pass, true), "12I3.4");
}

TEST(PassText, ReadsBackEveryKind) {
  for (int kind = 0; kind < kNumPassKinds; ++kind) {
    const Pass pass{
        .kind = static_cast<PassKind>(kind), .stage = 7, .microbatch = 10, .slice = kind};
    EXPECT_EQ(parse_pass(to_string(pass, true)), pass);
  }
}

TEST(PassText, UsesTheLettersOfPyTorchAndItsOwn) {
  std::string letters;
  for (int kind = 0; kind < kNumPassKinds; ++kind) letters += letter(static_cast<PassKind>(kind));
  EXPECT_EQ(letters, "FBIWEGSTDU");
}

TEST(PassText, ReadsTheTextWithoutSliceAsSliceZero) {
  EXPECT_EQ(parse_pass("2F0"),
            (Pass{.kind = PassKind::kForward, .stage = 2, .microbatch = 0, .slice = 0}));
  EXPECT_EQ(parse_pass("2147483647W2147483647"), (Pass{.kind = PassKind::kBackwardWeight,
                                                       .stage = 2147483647,
                                                       .microbatch = 2147483647,
                                                       .slice = 0}));
}

TEST(PassText, RefusesEverythingElse) {
  for (const char* text : {"",
                           "2",
                           "F",
                           "2F",
                           "F0",
                           "2F0x",
                           "2F0 ",
                           " 2F0",
                           "2f0",
                           "2X0",
                           "-2F0",
                           "2F-1",
                           "+2F0",
                           "2F0.",
                           "2F0.x",
                           "2F0.3.1",
                           "2F0.-1",
                           "2FF0",
                           "1UNSHARD3",
                           "0REDUCE_GRAD",
                           "(0F5)",
                           "2147483648F0",
                           "2F99999999999999999999",
                           "2F0.2147483648",
                           "2 F0",
                           "0x2F0"}) {
    EXPECT_THROW(parse_pass(text), InvalidArgument) << text;
  }
}

TEST(PassText, RefusalShowsTheTextAndTheForm) {
  try {
    parse_pass("2F0x");
    FAIL() << "2F0x was read";
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("'2F0x'"), std::string::npos) << what;
    EXPECT_NE(what.find("2F0.3"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace sluice
