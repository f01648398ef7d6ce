//===- TargetTest.cpp - names of targets
//-------------------------------------------------------------------===//
#include "lib/Artifact/Target.h"
#include "recur/abi.h"

#include <gtest/gtest.h>

using namespace llvm;
using namespace recur;

namespace {

std::string errorText(Error error) { return toString(std::move(error)); }

TEST(Target, KnownNames) {
  uint64_t before = 0;
  for (const StringRef name :
       {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4+bf16", "x86-64-v4+amx"}) {
    Expected<Target> target = lookupTarget(name);
    ASSERT_TRUE(bool(target)) << errorText(target.takeError());
    EXPECT_EQ(target->name, name);
    EXPECT_GE(target->required, before);
    before = target->required;
  }
}

TEST(Target, NativeRunsHere) {
  Expected<Target> target = lookupTarget("native");
  ASSERT_TRUE(bool(target));
  EXPECT_FALSE(target->tuneCpu.empty());
  EXPECT_NE(target->name, "native");
}

TEST(Target, Lists) {
  auto targets = parseTargets("x86-64-v3, x86-64");
  ASSERT_TRUE(bool(targets));
  ASSERT_EQ(targets->size(), 2u);
  EXPECT_GT((*targets)[0].rank, (*targets)[1].rank);
  EXPECT_EQ(errorText(parseTargets("x86-64,x86-64").takeError()), "target 'x86-64' is given twice");
}

TEST(Target, Errors) {
  EXPECT_EQ(errorText(lookupTarget("x87").takeError()),
            "unknown target 'x87', known are x86-64, x86-64-v2, x86-64-v3, x86-64-v4, x86-64-v4+bf16, "
            "x86-64-v4+amx, sm_80, sm_90, sm_90a, native");
  EXPECT_EQ(errorText(parseTargets("").takeError()),
            "unknown target '', known are x86-64, x86-64-v2, x86-64-v3, x86-64-v4, x86-64-v4+bf16, "
            "x86-64-v4+amx, sm_80, sm_90, sm_90a, native");
}

TEST(Target, Listing) {
  std::string text;
  raw_string_ostream os(text);
  printTargets(os);
  EXPECT_NE(text.find("x86-64-v3       AVX2 and FMA\n"), std::string::npos) << text;
}

} // namespace
