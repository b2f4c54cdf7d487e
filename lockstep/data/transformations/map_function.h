// What map applies to an element: one of the three kinds of functions that a user may give, its
// random numbers, and what an error in it reads like.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/row_placer.h"

namespace lockstep {

class MappedFunction {
 public:
  MappedFunction(std::variant<MapFunction, RandomMapFunction, WriteFunction> function,
                 MapOptions options)
      : function_(std::move(function)), options_(std::move(options)) {}

  const MapOptions& options() const { return options_; }
  std::string name() const;  // "map decode"
  // Whether it writes to tensors that are already there.
  bool writes() const { return std::holds_alternative<WriteFunction>(function_); }

  // The element made of `input`; in `place` where the function writes. What it throws is an error
  // that names the stage and the sample.
  Element operator()(const Element& input, Element place) const;

 private:
  Element call(const Element& input, Element place) const;

  std::variant<MapFunction, RandomMapFunction, WriteFunction> function_;
  MapOptions options_;
};

}  // namespace lockstep
