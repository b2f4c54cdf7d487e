// Activations that are fused into products: applied to a row of results when it is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/graph/attrs.h"
#include "lockstep/kernels/activations.h"

namespace lockstep {

// The activation of a node's attributes, ready to be applied to rows.
template <class T>
class RowActivation {
 public:
  explicit RowActivation(const Attrs& attrs) {
    const std::string kind = attrs.text_or_empty("activation");
    if (kind.empty() || kind == "linear") return;
    const double alpha = attrs.has("alpha") ? attrs.real("alpha") : 0.2;
    sweep_ = with_activation<StandardMath>(kind, alpha, [](auto activation) -> Sweep {
      return [activation](T* row, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) row[i] = activation.value(row[i]);
      };
    });
  }

  void apply(T* row, std::int64_t count) const {
    if (sweep_) sweep_(row, count);
  }

 private:
  using Sweep = std::function<void(T*, std::int64_t)>;
  Sweep sweep_;
};

}  // namespace lockstep
