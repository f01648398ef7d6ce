//===- Header.h - the C header of a compiled rule
//----------------------------------------------------------===//
#pragma once

#include "lib/Artifact/ModelInfo.h"

namespace recur {

/// The text of NAME.h, C11 and C++17: argument structures with a comment on every field, and the five
/// functions.
std::string emitHeader(const ModelInfo &info);

} // namespace recur
