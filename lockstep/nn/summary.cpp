// The table that Network::summary prints, in Keras's form.
#include <algorithm>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/nn/layers/input.h"
#include "lockstep/nn/naming.h"
#include "lockstep/nn/network.h"

namespace lockstep {
namespace {

struct Count {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

Count count(std::span<const VariableRef> variables) {
  Count total;
  for (const VariableRef& variable : variables) {
    const std::int64_t elements = variable->shape.elements();
    total.elements += elements;
    total.bytes += elements * static_cast<std::int64_t>(size_of(variable->dtype));
  }
  return total;
}

// 25557032 → "25,557,032".
std::string grouped(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string readable_bytes(std::int64_t bytes) {
  double amount = static_cast<double>(bytes);
  for (const char* unit : {"B", "KB", "MB", "GB"}) {
    if (amount < 1024) return fmt::format("{:.2f} {}", amount, unit);
    amount /= 1024;
  }
  return fmt::format("{:.2f} TB", amount);
}

std::string total_line(const char* what, const Count& total) {
  return fmt::format("{}: {} ({})\n", what, grouped(total.elements), readable_bytes(total.bytes));
}

}  // namespace

struct Network::Row {
  std::string layer;  // "dense (Dense)"
  Shape shape;
  std::int64_t parameters = 0;
  std::string connected;  // the layers that it reads
};

// Whether each call reads only the one before it, so that the table needs no column of connections.
bool Network::is_chain() const {
  if (input_count() != 1 || output_count() != 1) return false;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i].inputs != std::vector<std::size_t>{i}) return false;
  }
  return true;
}

std::vector<Network::Row> Network::rows(std::span<const ValueType> inputs) const {
  Graph scratch;
  std::vector<Value> values;
  for (const ValueType& type : inputs) {
    values.push_back(scratch.input(fmt::format("{}", values.size()), type));
  }
  values = replay(values, {});

  std::vector<Row> rows;
  std::vector<std::string> names;  // per value
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::string name = i < input_names_.size() ? input_names_[i] : "";
    if (name.empty()) name = i == 0 ? "input_layer" : fmt::format("input_layer_{}", i);
    names.push_back(name);
    if (!sequential_) rows.push_back({name + " (InputLayer)", values[i].shape(), 0, ""});
  }
  std::unordered_map<const LayerBase*, std::size_t> row_of;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const LayerBase& layer = calls_[i].layer.base();
    std::string connected;
    for (std::size_t input : calls_[i].inputs) {
      connected += (connected.empty() ? "" : ", ") + names[input];
    }
    names.push_back(layer.name());
    if (dynamic_cast<const InputLayerBase*>(&layer) != nullptr) continue;
    const auto [found, first] = row_of.emplace(&layer, rows.size());
    if (first) {
      rows.push_back({fmt::format("{} ({})", layer.name(), layer.kind()),
                      values[inputs.size() + i].shape(), count(layer.variables()).elements,
                      connected});
    } else {
      rows[found->second].connected += ", " + connected;
    }
  }
  return rows;
}

std::string Network::summary(std::span<const ValueType> inputs) const {
  std::vector<ValueType> types(inputs.begin(), inputs.end());
  if (types.empty()) types = built() ? built_for() : input_types_;
  require(!types.empty(),
          "{}is not built, and the shape of its input is unknown: start with an InputLayer, call "
          "it on data, or give summary the types of the inputs",
          where());
  const std::vector<Row> table = rows(types);
  const bool show_connections = !is_chain();

  std::size_t layer_width = 28, shape_width = 25, parameter_width = 9, connected_width = 12;
  for (const Row& row : table) {
    layer_width = std::max(layer_width, row.layer.size() + 2);
    shape_width = std::max(shape_width, shape_without_batch(row.shape).size() + 2);
    parameter_width = std::max(parameter_width, grouped(row.parameters).size() + 2);
    connected_width = std::max(connected_width, row.connected.size());
  }
  const auto line = [&](std::string_view layer, std::string_view shape, std::string_view parameters,
                        std::string_view connected) {
    std::string text = fmt::format(" {:<{}}{:<{}}{:<{}}", layer, layer_width, shape, shape_width,
                                   parameters, parameter_width);
    if (show_connections) text += connected;
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  const std::size_t width =
      1 + layer_width + shape_width + parameter_width + (show_connections ? connected_width : 0);

  std::string text = fmt::format("Model: \"{}\"\n", name().empty() ? snake_case(kind()) : name());
  text += std::string(width, '_') + "\n";
  text += line("Layer (type)", "Output Shape", "Param #", "Connected to");
  text += std::string(width, '=') + "\n";
  for (const Row& row : table) {
    text += line(row.layer, shape_without_batch(row.shape), grouped(row.parameters), row.connected);
  }
  text += std::string(width, '=') + "\n";
  const Count all = count(variables()), trainable = count(trainable_variables());
  text += total_line("Total params", all);
  text += total_line("Trainable params", trainable);
  text += total_line("Non-trainable params",
                     {all.elements - trainable.elements, all.bytes - trainable.bytes});
  text += std::string(width, '_') + "\n";
  return text;
}

}  // namespace lockstep
