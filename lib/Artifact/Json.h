//===- Json.h - the metadata as JSON
//-----------------------------------------------------------------------===//
#pragma once

#include "lib/Artifact/ModelInfo.h"

namespace recur {

/// The metadata of a rule as one JSON object; `indent` 0 is one line. Fields keep their order and meaning,
/// and new ones are added at the end of their object:
///   schema       1
///   abi_version  RECUR_ABI_VERSION
///   name, spec, spec_sha256, class, form, precision, compiler   as in ModelInfo
///   uses_position  whether a step must be given positions
///   dims         symbolic dimensions
///   tensors      in the order of the arguments: {name, role, shape, doc}; shape with the leading dimensions,
///   each a
///                name or a number
///   variants     best first: {target, dims: {symbol: size}, dtypes: {tensor: type}, scratch_bytes}, and
///                gpu_entries: [{name, threads, shards, shared_bytes, scratch_bytes, packed}] on a GPU
///   functions    the symbols that the object defines
std::string emitJson(const ModelInfo &info, unsigned indent = 2);

} // namespace recur
