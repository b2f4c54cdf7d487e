#include "lockstep/data/transformations/map_function.h"

#include "lockstep/data/pipeline/named_error.h"

namespace lockstep {

std::string MappedFunction::name() const {
  return options_.name.empty() ? "map" : "map " + options_.name;
}

// A worker may have no rows of a batch; users' functions need not expect that.
Element MappedFunction::no_rows() const {
  Element empty;
  for (const ElementSpec& component : options_.spec) {
    require(component.shape.rank() > 0,
            "the function returns a component without rows, {}, but is .rowwise",
            describe({component}));
    empty.emplace_back(component.dtype, component.shape.with(0, 0));
  }
  return empty;
}

Element MappedFunction::call(const Element& input, Element place) const {
  if (input.piece && input.piece->rows.size() == 0) return no_rows();
  if (const auto* plain = std::get_if<MapFunction>(&function_)) return (*plain)(input);
  RandomSequence random(
      options_.seed, combine(combine(hash_name("map"), input.sample.epoch), input.sample.number));
  if (const auto* drawing = std::get_if<RandomMapFunction>(&function_)) {
    return (*drawing)(input, random);
  }
  std::get<WriteFunction>(function_)(input, random, place);
  return place;
}

Element MappedFunction::operator()(const Element& input, Element place) const {
  try {
    Element output = call(input, std::move(place));
    output.sample = input.sample;
    output.piece = input.piece;
    return output;
  } catch (...) {
    rethrow_at(name(), input.sample);
  }
}

}  // namespace lockstep
