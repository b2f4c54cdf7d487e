// The results of other programs for single ops (tests/golden/make_ops.py).
#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "lockstep/tensor/safetensors.h"

namespace lockstep::golden {

inline const std::map<std::string, Tensor>& ops() {
  static const std::map<std::string, Tensor> tensors = [] {
    const auto loaded = load_safetensors(LOCKSTEP_SOURCE_DIR "/tests/golden/ops.safetensors");
    return std::map<std::string, Tensor>(loaded.tensors.begin(), loaded.tensors.end());
  }();
  return tensors;
}

inline const Tensor& op(const std::string& name) {
  const auto found = ops().find(name);
  if (found == ops().end()) throw std::out_of_range("ops.safetensors has no " + name);
  return found->second;
}

}  // namespace lockstep::golden
