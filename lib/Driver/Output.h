// Files that are written whole or not at all.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <string>

namespace recur {

/// Writes a file, or to standard output for "-". Where that fails, `error` says why, and no part of the file
/// is left.
bool writeFile(llvm::StringRef path, llvm::StringRef bytes, std::string &error);

} // namespace recur
