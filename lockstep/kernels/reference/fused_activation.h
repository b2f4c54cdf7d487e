// Activations fused into matrix products and convolutions: applied to each row of results once it
// is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/graph/attrs.h"
#include "lockstep/kernels/activations.h"

namespace lockstep {

// The activation that a node's attributes name.
template <class T>
class RowActivation {
 public:
  explicit RowActivation(const Attrs& attrs) {
    const std::string kind = attrs.text_or_empty("activation");
    if (kind.empty() || kind == "linear") return;
    const double alpha = attrs.has("alpha") ? attrs.real("alpha") : 0.2;
    function_ = with_activation<StandardMath>(kind, alpha, [](auto activation) -> Function {
      return [activation](T* row, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) row[i] = activation.value(row[i]);
      };
    });
  }

  void apply(T* row, std::int64_t count) const {
    if (function_) function_(row, count);
  }

 private:
  using Function = std::function<void(T*, std::int64_t)>;
  Function function_;
};

}  // namespace lockstep
