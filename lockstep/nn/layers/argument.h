// Arguments that a layer takes both by position and by name: Dense(10) and Dense({.units = 10}).
#pragma once

#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

// The options with an argument that was given by position; UsageError if they name another value.
template <class Options, class Field>
Options with_argument(std::string_view layer, std::string_view name, Field Options::*field,
                      const Field& value, Options options) {
  require(options.*field == Options().*field || options.*field == value,
          "[{}] {} is given twice, as an argument and by name, with different values", layer, name);
  options.*field = value;
  return options;
}

}  // namespace lockstep
