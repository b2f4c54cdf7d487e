// The function that map applies to an element: one of the three kinds that a user may give, with
// its random numbers and the place named in its errors.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/pipeline/row_placer.h"

namespace lockstep {

class MappedFunction {
 public:
  MappedFunction(std::variant<MapFunction, RandomMapFunction, WriteFunction> function,
                 MapOptions options)
      : function_(std::move(function)), options_(std::move(options)) {}

  const MapOptions& options() const { return options_; }
  std::string name() const;  // "map decode"
  // Whether it writes to existing tensors.
  bool writes() const { return std::holds_alternative<WriteFunction>(function_); }

  // The result for `input`, written to `place` if writes(). Exceptions name stage and sample.
  Element operator()(const Element& input, Element place) const;

 private:
  Element call(const Element& input, Element place) const;
  Element no_rows() const;

  std::variant<MapFunction, RandomMapFunction, WriteFunction> function_;
  MapOptions options_;
};

}  // namespace lockstep
