#include "lib/Artifact/Json.h"

#include "lib/Artifact/Descriptor.h"
#include "recur/abi.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"

using namespace llvm;

namespace recur {
namespace {

void writeTensor(json::OStream &json, const TensorInfo &tensor) {
  json.attribute("name", tensor.name);
  json.attribute("role", roleName(tensor.role));
  json.attributeArray("shape", [&] {
    for (const StringRef dim : leadingDims(tensor.role))
      json.value(dim);
    for (const std::string &dim : tensor.shape) {
      int64_t size = 0;
      if (to_integer(dim, size))
        json.value(size);
      else
        json.value(dim);
    }
  });
  json.attribute("doc", tensor.doc);
}

void writeVariant(json::OStream &json, const ModelInfo &info, const VariantInfo &variant) {
  json.attribute("target", variant.target.name);
  json.attributeObject("dims", [&] {
    for (const auto &[name, size] : zip_equal(info.dims, variant.dims))
      json.attribute(name, size);
  });
  json.attributeObject("dtypes", [&] {
    for (const auto &[tensor, type] : zip_equal(info.tensors, variant.dtypes))
      json.attribute(tensor.name, dtypeName(type));
  });
  json.attribute("scratch_bytes", variant.scratch);
  if (variant.gpu)
    json.attributeArray("gpu_entries", [&] {
      for (const GpuEntry &entry : variant.gpu->entries)
        json.object([&] {
          json.attribute("name", entry.name);
          json.attribute("threads", entry.threads);
          json.attribute("shards", entry.shards);
          json.attribute("shared_bytes", entry.shared);
          json.attribute("scratch_bytes", entry.scratch);
          json.attribute("packed", entry.packed);
        });
    });
}

} // namespace

std::string emitJson(const ModelInfo &info, unsigned indent) {
  std::string text;
  raw_string_ostream os(text);
  json::OStream json(os, indent);
  json.object([&] {
    json.attribute("schema", 1);
    json.attribute("abi_version", RECUR_ABI_VERSION);
    json.attribute("name", info.name);
    json.attribute("spec", json::fixUTF8(info.spec));
    json.attribute("spec_sha256", info.specHash);
    json.attribute("class", info.ruleClass);
    json.attribute("form", info.form);
    json.attribute("precision", info.precision);
    json.attribute("compiler", info.compiler);
    json.attribute("uses_position", info.usesPosition);
    json.attribute("has_step", info.hasStep);
    json.attributeArray("dims", [&] {
      for (const std::string &dim : info.dims)
        json.value(dim);
    });
    json.attributeArray("tensors", [&] {
      for (const TensorInfo &tensor : info.tensors)
        json.object([&] { writeTensor(json, tensor); });
    });
    json.attributeArray("variants", [&] {
      for (const VariantInfo &variant : info.variants)
        json.object([&] { writeVariant(json, info, variant); });
    });
    json.attributeArray("functions", [&] {
      for (const std::string &symbol : publicSymbols(info))
        json.value(symbol);
    });
  });
  return text;
}

} // namespace recur
