#include "TestSupport.h"

using namespace recur::frontend;

static const char text[] = "a = b\nsecond line\n";

TEST(Diagnostics, PointsIntoTheText) {
  SourceFile file("f.rec", text);
  DiagnosticEngine diags;
  diags.setFile(&file);
  diags.error({6, 12}, "'second' is wrong").note({0, 1}, "'a' is here").fix({6, 12}, "third");
  EXPECT_EQ(rendered(diags), "f.rec:2:1: error: 'second' is wrong\n"
                             "    second line\n"
                             "    ^~~~~~\n"
                             "    third\n"
                             "f.rec:1:1: note: 'a' is here\n"
                             "    a = b\n"
                             "    ^\n");
}

TEST(Diagnostics, TakesLinesAndColumns) {
  SourceFile file("f.rec", text);
  DiagnosticEngine diags;
  diags.setFile(&file);
  diags.report(Severity::Remark, {2, 8}, {2, 12}, "look");
  EXPECT_EQ(rendered(diags), "f.rec:2:8: remark: look\n    second line\n           ^~~~\n");
}

TEST(Diagnostics, KeepsTheLimit) {
  DiagnosticEngine diags;
  diags.errorLimit = 2;
  for (int i = 0; i < 5; ++i)
    diags.error(llvm::Twine("error ") + llvm::Twine(i));
  EXPECT_EQ(diags.numErrors(), 5u);
  EXPECT_EQ(rendered(diags),
            "error: error 0\nerror: error 1\nerror: 3 more errors are not shown, the limit is 2\n");
}

TEST(Diagnostics, SaysTheSameOnce) {
  DiagnosticEngine diags;
  diags.error("again");
  diags.error("again");
  EXPECT_EQ(diags.numErrors(), 1u);
}

TEST(Diagnostics, WarningsHaveClasses) {
  DiagnosticEngine diags;
  diags.warning(WarningClass::Perf, {}, "slow");
  EXPECT_EQ(rendered(diags), "warning: slow [-Wperf]\n");

  DiagnosticEngine quiet;
  EXPECT_TRUE(quiet.setWarningFlag("no-perf"));
  quiet.warning(WarningClass::Perf, {}, "slow");
  EXPECT_EQ(rendered(quiet), "");

  DiagnosticEngine strict;
  EXPECT_TRUE(strict.setWarningFlag("error=perf"));
  strict.warning(WarningClass::Perf, {}, "slow");
  EXPECT_EQ(rendered(strict), "error: slow [-Werror=perf]\n");

  DiagnosticEngine all;
  EXPECT_TRUE(all.setWarningFlag("error"));
  EXPECT_TRUE(all.setWarningFlag("no-error=perf"));
  all.warning(WarningClass::Perf, {}, "slow");
  EXPECT_FALSE(all.hasErrors());
  EXPECT_FALSE(all.setWarningFlag("everything"));
}

TEST(Diagnostics, WritesJson) {
  SourceFile file("f.rec", text);
  DiagnosticEngine diags;
  diags.setFile(&file);
  diags.warning(WarningClass::Unused, {0, 1}, "unused");
  std::string json = rendered(diags, DiagnosticEngine::Format::Json);
  EXPECT_NE(json.find("\"flag\": \"-Wunused\""), std::string::npos);
  EXPECT_NE(json.find("\"endColumn\": 2"), std::string::npos);
}

TEST(SourceFile, CountsLines) {
  SourceFile file("a/b-c.rec", text);
  EXPECT_EQ(file.lineColumn(8).line, 2u);
  EXPECT_EQ(file.lineColumn(8).column, 3u);
  EXPECT_EQ(file.offset({2, 3}), 8u);
  EXPECT_EQ(file.offset({9, 99}), sizeof(text) - 1);
  EXPECT_EQ(file.line(2), "second line");
  EXPECT_EQ(file.ruleName(), "b_c");
}

TEST(SourceFile, RefusesWhatIsNoText) {
  auto refused = [](llvm::StringRef bytes) {
    SourceFile file("f.rec", bytes);
    DiagnosticEngine diags;
    EXPECT_EQ(check(file, diags), nullptr);
    EXPECT_EQ(diags.numErrors(), 1u);
    return rendered(diags);
  };
  EXPECT_EQ(refused(llvm::StringRef("o = q\0", 6)),
            "error: 'f.rec' is no text: byte 5 is the control byte 0x00\n");
  EXPECT_EQ(refused("o = \xff"), "error: 'f.rec' is no text: byte 4 is 0xff, which is not UTF-8\n");
  EXPECT_EQ(refused(std::string(11 << 20, ' ')),
            "error: 'f.rec' is no spec: it has 11534336 bytes, the limit is 1048576\n");
  DiagnosticEngine diags;
  EXPECT_EQ(SourceFile::open("/nowhere.rec", diags), nullptr);
  EXPECT_EQ(rendered(diags), "error: cannot read '/nowhere.rec': No such file or directory\n");
}
