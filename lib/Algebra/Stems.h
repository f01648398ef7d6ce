// Letters for the names that explanations give to values.
#pragma once

#include "dialect/recur/Recur.h"

namespace recur {

/// The first of the letters that, with a number behind it, is the name of no argument and of no step of a
/// state's update, which are called by the state's name and a number.
std::string freeStem(llvm::ArrayRef<ArgAttr> args, llvm::StringRef letters);

/// What reads of states are called, y1, y2, .., and token-only expressions, x1, x2, ..
std::string readStem(llvm::ArrayRef<ArgAttr> args);
std::string shortStem(llvm::ArrayRef<ArgAttr> args);

} // namespace recur
