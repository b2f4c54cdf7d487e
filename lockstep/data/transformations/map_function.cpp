#include "lockstep/data/transformations/map_function.h"

#include "lockstep/data/pipeline/named_error.h"

namespace lockstep {

std::string MappedFunction::name() const {
  return options_.name.empty() ? "map" : "map " + options_.name;
}

Element MappedFunction::call(const Element& input, Element place) const {
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
    return output;
  } catch (...) {
    rethrow_at(name(), input.sample);
  }
}

}  // namespace lockstep
