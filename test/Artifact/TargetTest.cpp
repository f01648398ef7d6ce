//===- TargetTest.cpp - names of targets
//-------------------------------------------------------------------===//
#include "lib/Artifact/Target.h"
#include "recur/abi.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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

// Where a sandbox refuses tile registers, what needs them is no native target. In a process of its own, as
// the filter stays.
TEST(Target, NativeAsksForTiles) {
  auto native = [] {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog program = {std::size(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
      _exit(2); // no filters here
    Expected<Target> target = lookupTarget("native");
    _exit(target && !(target->required & RECUR_CPU_AMX_TILE) ? 0 : 1);
  };
  EXPECT_EXIT(
      native(),
      [](int status) { return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2); },
      "");
}

TEST(Target, Lists) {
  auto targets = parseTargets("x86-64-v3, x86-64");
  ASSERT_TRUE(bool(targets));
  ASSERT_EQ(targets->size(), 2u);
  EXPECT_GT((*targets)[0].rank, (*targets)[1].rank);
  EXPECT_EQ(errorText(parseTargets("x86-64,x86-64").takeError()), "target 'x86-64' is given twice");
  std::string native = lookupTarget("native")->name;
  for (const std::string &list : {native + ",native", "native," + native})
    EXPECT_EQ(parseTargets(list)->size(), 1u);
  EXPECT_EQ(errorText(parseTargets("native,native").takeError()), "target 'native' is given twice");
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
