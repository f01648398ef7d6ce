// Files that are written whole or not at all.
#include "lib/Driver/Output.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/raw_ostream.h"

bool recur::writeFile(llvm::StringRef path, llvm::StringRef bytes, std::string &error) {
  llvm::Error failure = llvm::writeToOutput(path, [&](llvm::raw_ostream &os) {
    os << bytes;
    return llvm::Error::success();
  });
  if (!failure)
    return true;
  llvm::handleAllErrors(
      std::move(failure), [&](const llvm::FileError &file) { error = file.messageWithoutFileInfo(); },
      [&](const llvm::ErrorInfoBase &other) { error = other.message(); });
  error = ("cannot write '" + path + "': " + error).str();
  return false;
}
