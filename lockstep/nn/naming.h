// Names of layers.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

// "GlobalAveragePooling2D" → "global_average_pooling2d": a kind as a name, as in Keras.
std::string snake_case(std::string_view kind);

// "encoder" and "dense" → "encoder/dense"; without an outer part, just the name.
std::string join_path(std::string_view outer, std::string_view name);

// The name itself, or the first of name_1, name_2, … that is not taken.
std::string unique_name(const std::string& name,
                        const std::function<bool(const std::string&)>& taken);

}  // namespace lockstep
