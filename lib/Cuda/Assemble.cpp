// Chips, and NVIDIA's assembler, run as a program.
#include "lib/Cuda/Cuda.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/Program.h"

using namespace llvm;
using namespace recur;
using namespace recur::cuda;

// PTX 8.0 knows all that the portable path uses; sm_90a's copies and products want newer ones.
static constexpr Chip chips[] = {
    {"sm_80", "+ptx80", 80, false, 163 * 1024, 108},
    {"sm_90", "+ptx80", 90, false, 227 * 1024, 132},
    {"sm_90a", "+ptx86", 90, true, 227 * 1024, 132},
};

Expected<Chip> cuda::lookupChip(StringRef name) {
  std::string known;
  for (const Chip &chip : chips) {
    if (chip.name == name)
      return chip;
    known += (known.empty() ? "" : ", ") + chip.name.str();
  }
  return createStringError("unknown chip '" + name + "', known are " + known);
}

Expected<std::string> cuda::findPtxas() {
  for (const char *variable : {"CUDA_HOME", "CUDA_PATH"})
    if (std::optional<std::string> home = sys::Process::GetEnv(variable)) {
      SmallString<128> path(*home);
      sys::path::append(path, "bin", "ptxas");
      if (sys::fs::can_execute(path))
        return path.str().str();
      return createStringError(Twine("the environment's ") + variable + " is '" + *home +
                               "', but there is no bin/ptxas in it");
    }
  if (ErrorOr<std::string> found = sys::findProgramByName("ptxas"))
    return *found;
  if (ErrorOr<std::string> found = sys::findProgramByName("ptxas", {"/usr/local/cuda/bin"}))
    return *found;
  return createStringError(
      "ptxas is not on the PATH: install the CUDA toolkit, or set CUDA_HOME to its folder");
}

int64_t Cubin::spilledBytes() const {
  int64_t most = 0;
  SmallVector<StringRef> lines;
  StringRef(report).split(lines, '\n');
  for (StringRef line : lines) {
    // "    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads"
    auto [before, after] = line.split(" bytes spill stores");
    int64_t bytes = 0;
    if (before.size() != line.size() && !before.rsplit(' ').second.getAsInteger(10, bytes))
      most = std::max(most, bytes);
  }
  return most;
}

bool Cubin::serialisesProducts() const {
  // All messages about wgmma have numbers from C7500.
  return StringRef(report).contains("(C75");
}

static Error systemError(const Twine &what, std::error_code code) {
  return createStringError(what + ": " + code.message());
}

Error cuda::assemble(StringRef ptxas, StringRef ptx, const Chip &chip, bool lineInfo, Cubin &cubin) {
  SmallString<128> input, output, report;
  for (auto [path, suffix] :
       {std::pair(&input, "ptx"), std::pair(&output, "cubin"), std::pair(&report, "log")})
    if (std::error_code code = sys::fs::createTemporaryFile("recur", suffix, *path))
      return systemError("cannot make a temporary file", code);
  FileRemover removeInput(input), removeOutput(output), removeReport(report);
  {
    std::error_code code;
    raw_fd_ostream file(input, code);
    file << ptx;
    file.close();
    if (file.has_error())
      return systemError("cannot write '" + input + "'", file.error());
  }
  std::string arch = ("-arch=" + chip.name).str();
  SmallVector<StringRef> arguments{ptxas, "-v", arch, input, "-o", output};
  if (lineInfo)
    arguments.push_back("-lineinfo");
  std::optional<StringRef> redirects[] = {StringRef(""), StringRef(report), StringRef(report)};
  std::string message;
  int status = sys::ExecuteAndWait(ptxas, arguments, std::nullopt, redirects, 0, 0, &message);
  auto read = [](StringRef path) -> Expected<std::string> {
    auto buffer = MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);
    if (!buffer)
      return systemError("cannot read '" + path + "'", buffer.getError());
    return (*buffer)->getBuffer().str();
  };
  Expected<std::string> log = read(report);
  if (!log)
    return log.takeError();
  if (status != 0)
    return createStringError("ptxas failed on generated code for " + chip.name + ": " +
                             (message.empty() ? *log : message));
  Expected<std::string> code = read(output);
  if (!code)
    return code.takeError();
  cubin.code = std::move(*code);
  cubin.report = std::move(*log);
  return Error::success();
}
